"""Import and export whole folders, each with its report.

In: a folder of theirs or of ours. Out: a folder of the other kind, and the proof that both compute the same.
Told in docs/convert.md.
"""

import json
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from qkv.checkpoint.folder import LoadedModel, load_model, save_model
from qkv.checkpoint.huggingface.export import refuse_occupied, save_huggingface
from qkv.checkpoint.huggingface.reader import load_huggingface
from qkv.checkpoint.parity import Report, compare, hashes, our_answer, peer, writes_text
from qkv.checkpoint.shards import read_json

GENERATION, POOLING = "generation.json", "pooling.json"  # what a folder of ours keeps of theirs beside the model
ALIGNMENT = "alignment.json"  # the cross-attention head that guided alignment has trained


def import_folder(folder: str | Path, out: str | Path, n_inputs: int = 8) -> tuple[dict[str, Any], Report | None]:
    """Their folder as one of ours, weights as they are stored; 0 inputs: no comparison."""
    folder, out = Path(folder), Path(out)
    refuse_occupied(out)
    loaded = load_huggingface(folder, dtype=None)
    facts = loaded.facts
    save_model(out, loaded.model, loaded.tokenizers, extras(facts["generation"], facts["pooling"]))
    del loaded
    return facts, check_parity(out, folder, n_inputs, out)


def export_folder(folder: str | Path, out: str | Path, n_inputs: int = 8) -> tuple[dict[str, Any], Report | None]:
    """Our folder as one of theirs, of the family that can say all of it."""
    folder, out = Path(folder), Path(out)
    loaded = with_extras(load_model(folder), folder)
    family = save_huggingface(out, loaded)
    facts = loaded.facts | {"family": family}
    del loaded
    return facts, check_parity(folder, out, n_inputs, out)


def extras(
    generation: Mapping[str, Any] | None = None, pooling: Mapping[str, Any] | None = None, alignment: Mapping[str, Any] | None = None
) -> dict[str, bytes]:
    """What is kept beside a model, as files; what is empty has none."""
    kept = {GENERATION: generation, POOLING: pooling, ALIGNMENT: alignment}
    return {name: (json.dumps(content, indent=2) + "\n").encode() for name, content in kept.items() if content}


def with_extras(loaded: LoadedModel, folder: Path) -> LoadedModel:
    """A folder of ours with what an import kept beside the model."""
    return replace(loaded, facts=loaded.facts | {
        "generation": read_json(folder, GENERATION, {}), "pooling": read_json(folder, POOLING, {}) or None,
        "alignment": read_json(folder, ALIGNMENT, {}) or None})


def check_parity(ours: Path, theirs: Path, n_inputs: int, written: Path) -> Report | None:
    """Both folders read from the disk and asked the same."""
    if n_inputs == 0:
        return None
    model = load_model(ours, dtype=torch.float32).model
    with ExitStack() as stay:
        name, answer = peer(theirs, model.spec, stay)
        largest, tolerance, n_same = compare(model.spec, our_answer(model), answer, n_inputs)
    return Report(name, largest, tolerance, n_same, n_inputs, writes_text(model.spec), hashes(written))
