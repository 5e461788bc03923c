"""Proof that a CTranslate2 folder says what our model says: the same random inputs through both.

In: our model and their folder. Out: the report of parity.py: the largest difference between the log-probabilities of
given texts, and how many greedy texts are the same. Told in docs/ctranslate2.md, "The report".
"""

import copy
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from qkv.checkpoint.ctranslate2.folder import read_names
from qkv.checkpoint.ctranslate2.int8 import quantized
from qkv.checkpoint.parity import LENGTH, ROUNDING, STEPS, Report, greedy, hashes, our_answer
from qkv.model.transformer import Transformer

INT8_ROUNDING = 0.05  # of the largest log-probability: activations of 8 bits keep two digits, and random inputs are the hardest


def check_parity(model: Transformer, folder: Path, facts: dict[str, Any], n_inputs: int) -> Report:
    """In int8 our model has the same rounded weights; activations are rounded by CTranslate2 alone, so texts are not compared."""
    theirs, int8 = Theirs(folder, facts), facts["dtype"] == "int8"
    model = with_rounded_weights(model.float()) if int8 else model.float()
    source, target = random_ids(model, facts, n_inputs)
    begun = torch.cat([torch.full_like(target[:, :1], facts["bos"]), target], dim=1)
    answer = our_answer(model)
    want = (
        answer(source, begun[:, :-1]).log_softmax(dim=-1).gather(2, target[..., None])[..., 0]
    )  # (inputs, length)
    gaps = (
        (theirs.log_probs(source, target) - want).abs().amax(dim=1).nan_to_num(nan=torch.inf)
    )  # (inputs,)
    tolerance = (INT8_ROUNDING if int8 else ROUNDING) * max(1.0, float(want.abs().max()))
    n_same = int((gaps <= tolerance).sum())
    if not int8:
        given = begun[
            :, : 1 if theirs.translates else 3
        ]  # without a source, the first words make the texts differ
        steps = min(STEPS, model.spec.max_len - given.shape[1])
        said = greedy(answer, source, given, steps)[:, given.shape[1] :].tolist()
        ours = [up_to(row, facts["eos"]) for row in said]
        n_same = sum(a == b for a, b in zip(ours, theirs.greedy(source, given, steps), strict=True))
    return Report(
        theirs.name, float(gaps.max()), tolerance, n_same, n_inputs, not int8, hashes(folder)
    )


def with_rounded_weights(model: Transformer) -> Transformer:
    """A copy whose matrices are the numbers that the int8 export holds; tables of positions stay as they are."""
    model = copy.deepcopy(model)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.ndim == 2 and not name.endswith("positions.weight"):
                whole, scales = quantized(weight.cpu().numpy())
                weight.copy_(torch.from_numpy(whole / scales[:, None]))
    return model


def random_ids(model: Transformer, facts: dict[str, Any], n_inputs: int) -> tuple[Tensor, Tensor]:
    """Sources and targets (inputs, length); a target never holds the tokens that begin and end it."""
    spec, chance = model.spec, torch.Generator().manual_seed(0)
    shape = (n_inputs, min(LENGTH, spec.max_len - 1))
    source = torch.randint(0, spec.source_vocab_size or spec.vocab_size, shape, generator=chance)
    words = torch.tensor(
        [
            id
            for id in range(spec.vocab_size)
            if id not in (facts["bos"], facts["eos"], facts["pad"])
        ]
    )
    return source, words[torch.randint(0, len(words), shape, generator=chance)]


def up_to(ids: list[int], end: int) -> list[int]:
    return ids[: ids.index(end) + 1] if end in ids else ids


class Theirs:
    """Their runtime on a folder, asked in ids; one thread, for torch's stand in the same process."""

    def __init__(self, folder: Path, facts: dict[str, Any]):
        import ctranslate2

        self.name = f"ctranslate2 {ctranslate2.__version__}"
        self.translates = facts["kind"] == "translator"
        kind = ctranslate2.Translator if self.translates else ctranslate2.Generator
        self.core = kind(str(folder), compute_type=facts["dtype"], intra_threads=1)
        self.start, (self.source_names, self.names) = facts["bos"], read_names(folder)
        self.ids = {name: id for id, name in enumerate(self.names)}

    def log_probs(self, source: Tensor, target: Tensor) -> Tensor:
        """Of each token of the targets, (inputs, length)."""
        rows = [[self.names[id] for id in row] for row in target.tolist()]
        if self.translates:
            scored = self.core.score_batch(self._sources(source), rows)
        else:
            scored = self.core.score_batch([[self.names[self.start], *row] for row in rows])
        return torch.tensor([one.log_probs[: target.shape[1]] for one in scored])

    def greedy(self, source: Tensor, given: Tensor, steps: int) -> list[list[int]]:
        """At most `steps` tokens for each input, with the one that ends."""
        if self.translates:
            found = self.core.translate_batch(
                self._sources(source),
                beam_size=1,
                max_decoding_length=steps,
                min_decoding_length=0,
                return_end_token=True,
            )
            said = [one.hypotheses[0] for one in found]
        else:
            found = self.core.generate_batch(
                [[self.names[id] for id in row] for row in given.tolist()],
                beam_size=1,
                max_length=steps,
                min_length=0,
                include_prompt_in_result=False,
                return_end_token=True,
            )
            said = [one.sequences[0] for one in found]
        return [[self.ids[name] for name in row] for row in said]

    def _sources(self, source: Tensor) -> list[list[str]]:
        return [[self.source_names[id] for id in row] for row in source.tolist()]
