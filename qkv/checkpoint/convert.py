"""Import and export whole folders, each with its report.

In: a folder of theirs or of ours. Out: a folder of the other kind, and the proof that both compute the same.
Told in docs/convert.md.
"""

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import torch

from qkv.checkpoint.folder import save_model
from qkv.checkpoint.huggingface.export import refuse_occupied, save_huggingface
from qkv.checkpoint.huggingface.reader import load_huggingface
from qkv.checkpoint.load import load_folder
from qkv.checkpoint.loaded_model import WeightsMetadata, stored_files
from qkv.checkpoint.parity import Report, compare, hashes, our_answer, peer, writes_text


def import_folder(
    folder: str | Path, out: str | Path, n_inputs: int = 8
) -> tuple[WeightsMetadata, Report | None]:
    """Their folder as one of ours, weights as they are stored; 0 inputs: no comparison."""
    folder, out = Path(folder), Path(out)
    refuse_occupied(out)
    loaded = load_huggingface(folder, dtype=None)
    metadata = loaded.metadata
    save_model(
        out, loaded.model, loaded.tokenizers, stored_files(loaded.generation, loaded.pooling)
    )
    del loaded
    return metadata, check_parity(out, folder, n_inputs, out)


def export_folder(
    folder: str | Path, out: str | Path, n_inputs: int = 8
) -> tuple[WeightsMetadata, Report | None]:
    """A model folder as one of Hugging Face's, of the family that can express all of it."""
    folder, out = Path(folder), Path(out)
    loaded = load_folder(folder, as_stored=True)
    metadata = replace(loaded.metadata, family=save_huggingface(out, loaded))
    del loaded
    return metadata, check_parity(folder, out, n_inputs, out)


def check_parity(ours: Path, theirs: Path, n_inputs: int, written: Path) -> Report | None:
    """Both folders read from the disk and asked the same."""
    if n_inputs == 0:
        return None
    model = load_folder(ours, dtype=torch.float32).model
    with ExitStack() as stay:
        name, answer = peer(theirs, model.spec, stay)
        largest, tolerance, n_same = compare(model.spec, our_answer(model), answer, n_inputs)
    return Report(
        name, largest, tolerance, n_same, n_inputs, writes_text(model.spec), hashes(written)
    )
