"""Load a model folder, ours or Hugging Face's: the one entry point of every command.

In: a folder, a device, a data type. Out: the model with its tokenizers and typed config, or its spec alone.
Explained in docs/files.md, "A model folder".
"""

from pathlib import Path

import torch

from qkv.checkpoint.folder import load_model, read_folder_spec
from qkv.checkpoint.huggingface.reader import is_huggingface, load_huggingface, read_spec
from qkv.checkpoint.loaded_model import LoadedModel
from qkv.errors import QkvError
from qkv.messages import _
from qkv.model.spec import Spec
from qkv.model.transformer import Transformer

HALVES = (torch.float16, torch.bfloat16)


def load_folder(
    folder: str | Path,
    device: str = "cpu",
    dtype: torch.dtype | None = None,
    *,
    as_stored: bool = False,
    only_finite: bool = True,
) -> LoadedModel:
    """The model of a folder, on `device`.

    Args:
        folder: A model folder of ours (model.json) or of Hugging Face's (config.json).
        device: A torch device.
        dtype: The data type of the weights. None: float32 for a Hugging Face folder; for ours the stored type, but
            float32 instead of half precision on a CPU.
        as_stored: Keep the stored data type in every case.
        only_finite: Refuse weights that hold NaN or infinity.
    """
    check_device(device)
    if is_huggingface(folder):
        return load_huggingface(
            folder, device, dtype if dtype or as_stored else torch.float32, only_finite
        )
    loaded = load_model(folder, device, dtype, only_finite)
    if dtype is None and not as_stored:
        widen_halves(loaded.model)
    return loaded


def load_spec(folder: str | Path) -> Spec:
    """The spec of the model in a folder, without its weights."""
    return read_spec(Path(folder)) if is_huggingface(folder) else read_folder_spec(Path(folder))


def widen_halves(model: Transformer) -> Transformer:
    """Half precision on a CPU becomes float32: there it is slow and imprecise, and on some CPUs it ends the process."""
    halved = any(
        weight.dtype in HALVES and weight.device.type == "cpu" for weight in model.parameters()
    )
    return model.float() if halved else model


def check_device(name: str) -> str:
    """The name, if this machine has such a device."""
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError, NotImplementedError):
        raise QkvError("device", _("no '{name}' here", name=name), _("use cpu")) from None
    return name
