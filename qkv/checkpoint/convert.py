"""Import and export Hugging Face folders, each with a parity report.

See docs/guides/import-export.md.
"""

from dataclasses import replace
from pathlib import Path

import torch

from qkv.checkpoint.disk import refuse_occupied
from qkv.checkpoint.folder import save_model
from qkv.checkpoint.huggingface.export import save_huggingface
from qkv.checkpoint.huggingface.reader import load_huggingface
from qkv.checkpoint.load import load_folder
from qkv.checkpoint.loaded_model import stored_files
from qkv.checkpoint.parity import Conversion, ParityReport, compare, file_hashes, load_reference

__all__ = ["export_folder"]


def import_folder(folder: str | Path, out: str | Path, n_inputs: int = 8) -> Conversion:
    """Convert a Hugging Face folder to a qkv folder; weights keep their type.

    Args:
        folder: The Hugging Face folder.
        out: The new model folder.
        n_inputs: Random inputs on which both models are compared; 0: no comparison.
    """
    folder, out = Path(folder), Path(out)
    refuse_occupied(out)
    loaded = load_huggingface(folder, dtype=None)
    metadata = loaded.metadata
    save_model(
        out, loaded.model, loaded.tokenizers, stored_files(loaded.generation, loaded.pooling)
    )
    del loaded
    return metadata, check_parity(out, folder, n_inputs, out)


def export_folder(folder: str | Path, out: str | Path, n_inputs: int = 8) -> Conversion:
    """Convert a model folder to a Hugging Face folder, of the first family that supports its spec.

    Args:
        folder: The model folder.
        out: The new Hugging Face folder.
        n_inputs: Random inputs on which both models are compared; 0: no comparison.
    """
    folder, out = Path(folder), Path(out)
    refuse_occupied(out)
    loaded = load_folder(folder, as_stored=True)
    metadata = replace(loaded.metadata, family=save_huggingface(out, loaded))
    del loaded
    return metadata, check_parity(folder, out, n_inputs, out)


def check_parity(native: Path, foreign: Path, n_inputs: int, output: Path) -> ParityReport | None:
    """Load both folders and compare their outputs on the same inputs."""
    if n_inputs == 0:
        return None
    model = load_folder(native, dtype=torch.float32).model
    return compare(model, *load_reference(foreign, model.spec), n_inputs, file_hashes(output))
