"""Proof that a conversion changed nothing: the same inputs through both, the answers side by side.

In: a model of ours and someone who should agree: transformers where it is installed, else the files read once more.
Out: a report: the largest difference, how many greedy texts are the same, the files with their hashes.
Told in docs/convert.md, "The report".
"""

import importlib.util
import json
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor

from qkv.checkpoint.durable import fingerprint
from qkv.checkpoint.huggingface.reader import load_huggingface, read_config
from qkv.checkpoint.shards import Shards
from qkv.model.spec import LmHead, MaskedHead, Spec
from qkv.model.transformer import Transformer

LENGTH, STEPS = 12, 20  # tokens of an input, and of the greedy text after it
ROUNDING = 1e-4  # of the largest answer: what float32 may differ by when sums run in another order

Answer = Callable[
    [Tensor, Tensor], Tensor
]  # (source ids, target ids) -> logits, or vectors where there is no head


@dataclass(frozen=True)
class Report:
    """What was compared with whom, and how it went."""

    against: str
    largest: float
    tolerance: float
    n_same: int
    n_inputs: int
    greedy: bool  # whether texts were compared, or only vectors and logits
    files: dict[str, dict[str, Any]]

    @property
    def same(self) -> bool:
        return self.largest <= self.tolerance and self.n_same == self.n_inputs


def compare(spec: Spec, ours: Answer, theirs: Answer, n_inputs: int) -> tuple[float, float, int]:
    """The largest difference, how much of it may be rounding, on how many inputs they agree (in greedy text, if any)."""
    chance = torch.Generator().manual_seed(0)
    length = min(LENGTH, spec.max_len)
    source = torch.randint(
        0, spec.source_vocab_size or spec.vocab_size, (n_inputs, length), generator=chance
    )
    target = torch.randint(0, spec.vocab_size, (n_inputs, length), generator=chance)
    mine, their = ours(source, target), theirs(source, target)
    gaps = (mine - their).abs().flatten(1).amax(dim=1).nan_to_num(nan=torch.inf)  # (inputs,)
    tolerance = ROUNDING * max(1.0, float(their.abs().max()))
    if not writes_text(spec):
        return float(gaps.max()), tolerance, int((gaps <= tolerance).sum())
    texts = [
        greedy(answer, source, target[:, :1], min(STEPS, spec.max_len - 1))
        for answer in (ours, theirs)
    ]
    return float(gaps.max()), tolerance, int((texts[0] == texts[1]).all(dim=1).sum())


def writes_text(spec: Spec) -> bool:
    return spec.decoder is not None and isinstance(spec.head, LmHead)


def greedy(answer: Answer, source: Tensor, ids: Tensor, steps: int) -> Tensor:
    """The likeliest tokens one after the other, (inputs, 1 + steps); no cache, for nothing may be shared but weights."""
    for _ in range(steps):
        ids = torch.cat([ids, answer(source, ids)[:, -1:].argmax(dim=-1)], dim=1)
    return ids


def our_answer(model: Transformer) -> Answer:
    @torch.no_grad()
    def answer(source: Tensor, target: Tensor) -> Tensor:
        if model.decoder is None:
            states = model.encode(source).states
            return model.logits(states) if isinstance(model.spec.head, MaskedHead) else states
        states = model.decode(target, model.encode(source) if model.encoder else None)
        return model.logits(states) if model.spec.head else states

    return answer


def hashes(folder: Path) -> dict[str, dict[str, Any]]:
    """Size and SHA-256 of every file."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): fingerprint(path) for path in files}


# ── Who should agree ─────────────────────────────────────────────────────────────────────────────────────────────
def has_transformers() -> bool:
    return importlib.util.find_spec("transformers") is not None


def peer(folder: Path, spec: Spec, stay: ExitStack) -> tuple[str, Answer]:
    """Who reads their folder independently of us, by name; without transformers only we ourselves, once more."""
    if not has_transformers():
        return "the same files, read again (transformers is not installed)", our_answer(
            load_huggingface(folder).model
        )
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    kind = _auto_class(spec)
    clean = stay.enter_context(TemporaryDirectory())
    _lay_out(folder, Path(clean))
    model = getattr(transformers, kind).from_pretrained(
        clean,
        local_files_only=True,
        trust_remote_code=False,
        use_safetensors=True,
        dtype=torch.float32,
    )
    return f"transformers {transformers.__version__}", their_answer(model.eval(), spec)


def their_answer(model: Any, spec: Spec) -> Answer:
    @torch.no_grad()
    def answer(source: Tensor, target: Tensor) -> Tensor:
        if spec.encoder is not None and spec.decoder is not None:
            out = model(input_ids=source, decoder_input_ids=target, use_cache=False)
        else:
            out = model(input_ids=source if spec.decoder is None else target)
        return out.logits if "logits" in out else out.last_hidden_state

    return answer


def _auto_class(spec: Spec) -> str:
    if spec.decoder is None:
        return "AutoModelForMaskedLM" if isinstance(spec.head, MaskedHead) else "AutoModel"
    if spec.head is None:
        return "AutoModel"
    return "AutoModelForSeq2SeqLM" if spec.encoder else "AutoModelForCausalLM"


def _lay_out(folder: Path, clean: Path) -> None:
    """Only what we have read ourselves is shown to the peer: the weights, and the config without its hints to code."""
    config = {
        name: value
        for name, value in read_config(folder).items()
        if name not in ("auto_map", "custom_pipelines")
    }
    (clean / "config.json").write_text(json.dumps(config))
    shards = Shards(folder)
    if len(shards.files) == 1:
        (clean / "model.safetensors").symlink_to(shards.files[0])
        return
    for number, path in enumerate(shards.files):
        (clean / f"model-{number}.safetensors").symlink_to(path)
    numbers = {path: number for number, path in enumerate(shards.files)}
    names = {
        name: f"model-{numbers[entry.path]}.safetensors" for name, entry in shards.entries.items()
    }
    (clean / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {}, "weight_map": names})
    )
