"""Parity report of a conversion: the outputs of two models on the same random inputs.

The reference is transformers if it is installed, else the converted files read again.
See docs/guides/import-export.md, "Parity report".
"""

import importlib.util
import json
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor

from qkv.checkpoint.durable import Manifest, fingerprint
from qkv.checkpoint.huggingface.reader import load_huggingface
from qkv.checkpoint.loaded_model import WeightsMetadata
from qkv.checkpoint.shards import INDEX, Shards, read_table
from qkv.model.spec import LmHead, MaskedHead, Spec
from qkv.model.transformer import Transformer

INPUT_TOKENS, GREEDY_STEPS = 12, 20  # tokens of an input, and of the greedy text after it
RELATIVE_TOLERANCE = 1e-4  # of the largest output: float32 rounding when sums run in another order

# (source ids, target ids) -> logits, or hidden states of a model without a head
Forward = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class ParityReport:
    """How far the outputs of a converted model differ from those of the reference."""

    reference: str
    max_difference: float
    tolerance: float
    n_same: int
    n_inputs: int
    greedy: bool  # whether greedy texts were compared, or only hidden states and logits
    files: Manifest

    @property
    def same(self) -> bool:
        return self.max_difference <= self.tolerance and self.n_same == self.n_inputs


Conversion = tuple[WeightsMetadata, ParityReport | None]  # the report, if they were compared


def compare(
    model: Transformer, name: str, reference: Forward, n_inputs: int, files: Manifest
) -> ParityReport:
    """Compare a model with the reference of this name on random inputs.

    They agree on an input if their greedy texts are equal, or, if they generate none, their
    outputs within the tolerance.
    """
    spec, native = model.spec, native_forward(model)
    source, target = random_ids(spec, n_inputs, spec.max_len)
    report = compare_outputs(name, native(source, target), reference(source, target), files)
    if spec.decoder is None or not isinstance(spec.head, LmHead):
        return report
    texts = [
        greedy(forward, source, target[:, :1], min(GREEDY_STEPS, spec.max_len - 1))
        for forward in (native, reference)
    ]
    n_same = int((texts[0] == texts[1]).all(dim=1).sum())
    return replace(report, n_same=n_same, greedy=True)


def random_ids(
    spec: Spec, n_inputs: int, max_len: int, excluded: Collection[int] = ()
) -> tuple[Tensor, Tensor]:
    """Sources and targets (inputs, length); targets without the excluded ids."""
    generator, shape = torch.Generator().manual_seed(0), (n_inputs, min(INPUT_TOKENS, max_len))
    source = torch.randint(0, spec.source_vocab_size or spec.vocab_size, shape, generator=generator)
    tokens = torch.tensor([id for id in range(spec.vocab_size) if id not in excluded])
    return source, tokens[torch.randint(0, len(tokens), shape, generator=generator)]


def compare_outputs(
    name: str,
    outputs: Tensor,
    expected: Tensor,
    files: Manifest,
    relative_tolerance: float = RELATIVE_TOLERANCE,
) -> ParityReport:
    """Compare outputs, (inputs, ...); the tolerance is relative to the largest expected one."""
    differences = (outputs - expected).abs().flatten(1).amax(dim=1)  # (inputs,)
    differences = differences.nan_to_num(nan=torch.inf)
    tolerance = relative_tolerance * max(1.0, float(expected.abs().max()))
    n_same = int((differences <= tolerance).sum())
    return ParityReport(
        name, float(differences.max()), tolerance, n_same, len(outputs), False, files
    )


def greedy(forward: Forward, source: Tensor, ids: Tensor, steps: int) -> Tensor:
    """Greedy decoding without a cache, (inputs, 1 + steps): the models share only the weights."""
    for _ in range(steps):
        ids = torch.cat([ids, forward(source, ids)[:, -1:].argmax(dim=-1)], dim=1)
    return ids


def native_forward(model: Transformer) -> Forward:
    @torch.no_grad()
    def forward(source: Tensor, target: Tensor) -> Tensor:
        if model.decoder is None:
            states = model.encode(source).states
            return model.logits(states) if isinstance(model.spec.head, MaskedHead) else states
        states = model.decode(target, model.encode(source) if model.encoder else None)
        return model.logits(states) if model.spec.head else states

    return forward


def file_hashes(folder: Path) -> Manifest:
    """Size and SHA-256 of every file."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): fingerprint(path) for path in files}


# ── The reference ───────────────────────────────────────────────────────────────────────────────
def has_transformers() -> bool:
    return importlib.util.find_spec("transformers") is not None


def load_reference(folder: Path, spec: Spec) -> tuple[str, Forward]:
    """The model of a Hugging Face folder in transformers, and its name in the report.

    Without transformers, this library reads the folder again.
    """
    if not has_transformers():
        name = "the same files, read again (transformers is not installed)"
        return name, native_forward(load_huggingface(folder).model)
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    with TemporaryDirectory() as clean:
        _copy_data(folder, Path(clean))
        model = getattr(transformers, _auto_class(spec)).from_pretrained(
            clean,
            local_files_only=True,
            trust_remote_code=False,
            use_safetensors=True,
            dtype=torch.float32,
        )
    return f"transformers {transformers.__version__}", huggingface_forward(model.eval(), spec)


def huggingface_forward(model: Any, spec: Spec) -> Forward:
    @torch.no_grad()
    def forward(source: Tensor, target: Tensor) -> Tensor:
        if spec.encoder is not None and spec.decoder is not None:
            out = model(input_ids=source, decoder_input_ids=target, use_cache=False)
        else:
            out = model(input_ids=source if spec.decoder is None else target)
        return out.logits if "logits" in out else out.last_hidden_state

    return forward


def _auto_class(spec: Spec) -> str:
    if isinstance(spec.head, MaskedHead):
        return "AutoModelForMaskedLM"
    if spec.decoder is None or spec.head is None:
        return "AutoModel"
    return "AutoModelForSeq2SeqLM" if spec.encoder else "AutoModelForCausalLM"


def _copy_data(folder: Path, clean: Path) -> None:
    """Give transformers only the weights and the config without its references to code."""
    config = read_table(folder / "config.json")
    for name in ("auto_map", "custom_pipelines"):
        config.pop(name, None)
    (clean / "config.json").write_text(json.dumps(config))
    shards = Shards(folder)
    links = {path: f"model-{number}.safetensors" for number, path in enumerate(shards.files)}
    for path, link in links.items():
        (clean / link).symlink_to(path)
    names = {name: links[entry.path] for name, entry in shards.entries.items()}
    (clean / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": names}))
