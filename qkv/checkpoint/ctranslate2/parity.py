"""Parity report of a CTranslate2 export: log-probabilities and greedy texts on random inputs.

See docs/guides/import-export.md, "Parity report".
"""

import copy
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import pad

from qkv.checkpoint.ctranslate2.folder import Metadata, read_names
from qkv.checkpoint.ctranslate2.int8 import quantized
from qkv.checkpoint.parity import (
    GREEDY_STEPS,
    RELATIVE_TOLERANCE,
    ParityReport,
    compare_outputs,
    file_hashes,
    greedy,
    native_forward,
    random_ids,
)
from qkv.model.transformer import Transformer

# Relative to the largest log-probability: 8-bit activations keep two digits.
INT8_TOLERANCE = 0.05


def check_parity(
    model: Transformer, folder: Path, metadata: Metadata, n_inputs: int
) -> ParityReport:
    """Compare model and folder.

    In int8 the model has the same quantized weights, but only CTranslate2 quantizes activations:
    then greedy texts are not compared.
    """
    runtime, int8 = CTranslate2Runtime(folder, metadata), metadata["dtype"] == "int8"
    model = with_quantized_weights(model.float()) if int8 else model.float()
    special = {metadata[role] for role in ("bos", "eos", "pad")}
    source, target = random_ids(model.spec, n_inputs, model.spec.max_len - 1, special)
    decoder_input = pad(target, (1, 0), value=metadata["bos"])
    log_probs = native_forward(model)(source, decoder_input[:, :-1]).log_softmax(dim=-1)
    expected = log_probs.gather(2, target[..., None])[..., 0]  # (inputs, length)
    report = compare_outputs(
        runtime.name,
        runtime.logprobs(source, target),
        expected,
        file_hashes(folder),
        INT8_TOLERANCE if int8 else RELATIVE_TOLERANCE,
    )
    if int8:
        return report
    # A language model has no source: longer prompts make the texts differ.
    prompt = decoder_input[:, : 1 if runtime.translates else 3]
    return replace(report, n_same=same_texts(model, runtime, source, prompt), greedy=True)


def same_texts(
    model: Transformer, runtime: "CTranslate2Runtime", source: Tensor, prompt: Tensor
) -> int:
    """The number of inputs with the same greedy text."""
    start, forward = prompt.shape[1], native_forward(model)
    steps = min(GREEDY_STEPS, model.spec.max_len - start)
    rows = greedy(forward, source, prompt, steps)[:, start:].tolist()
    texts = [truncate_after(row, runtime.eos) for row in rows]
    found = runtime.greedy(source, prompt, steps)
    return sum(a == b for a, b in zip(texts, found, strict=True))


def with_quantized_weights(model: Transformer) -> Transformer:
    """A copy with the weights of the int8 export; learned positions are not quantized."""
    model = copy.deepcopy(model)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.ndim == 2 and not name.endswith("positions.weight"):
                values, scales = quantized(weight.cpu().numpy())
                weight.copy_(torch.from_numpy(values / scales[:, None]))
    return model


def truncate_after(ids: list[int], end: int) -> list[int]:
    return ids[: ids.index(end) + 1] if end in ids else ids


class CTranslate2Runtime:
    """CTranslate2 with token ids as input; one thread, because torch runs in the same process."""

    def __init__(self, folder: Path, metadata: Metadata):
        import ctranslate2

        self.name = f"ctranslate2 {ctranslate2.__version__}"
        self.translates = metadata["kind"] == "translator"
        kind = ctranslate2.Translator if self.translates else ctranslate2.Generator
        self.core = kind(str(folder), compute_type=metadata["dtype"], intra_threads=1)
        self.start, self.eos = metadata["bos"], metadata["eos"]
        self.source_names, self.names = read_names(folder)
        self.ids = {name: id for id, name in enumerate(self.names)}

    def logprobs(self, source: Tensor, target: Tensor) -> Tensor:
        """The log-probabilities of the target tokens, (inputs, length)."""
        rows = to_names(target, self.names)
        if self.translates:
            scored = self.core.score_batch(to_names(source, self.source_names), rows)
        else:
            scored = self.core.score_batch([[self.names[self.start], *row] for row in rows])
        return torch.tensor([result.log_probs[: target.shape[1]] for result in scored])

    def greedy(self, source: Tensor, prompt: Tensor, steps: int) -> list[list[int]]:
        """At most `steps` tokens for each input, including eos."""
        if self.translates:
            options = {"max_decoding_length": steps, "min_decoding_length": 0, "beam_size": 1}
            found = self.core.translate_batch(
                to_names(source, self.source_names), return_end_token=True, **options
            )
            rows = [result.hypotheses[0] for result in found]
        else:
            options = {"max_length": steps, "include_prompt_in_result": False}
            found = self.core.generate_batch(
                to_names(prompt, self.names), return_end_token=True, **options
            )
            rows = [result.sequences[0] for result in found]
        return [[self.ids[name] for name in row] for row in rows]


def to_names(ids: Tensor, names: list[str]) -> list[list[str]]:
    """The token names of ids, (inputs, length)."""
    return [[names[id] for id in row] for row in ids.tolist()]
