"""Opening a model folder, whoever wrote it.

In: a folder of ours or of Hugging Face's, and a device. Out: the model, its tokenizers and what stands beside them.
Told in docs/files.md, "A model folder".
"""

from pathlib import Path

import torch

from qkv.checkpoint.convert import with_extras
from qkv.checkpoint.folder import LoadedModel, load_model
from qkv.checkpoint.huggingface import is_huggingface, load_huggingface
from qkv.errors import QkvError
from qkv.language import say


def open_folder(folder: str | Path, device: str = "cpu") -> LoadedModel:
    """The model of a folder; `facts` hold how it generates and how it pools, where the folder says so."""
    check_device(device)
    if is_huggingface(folder):
        return load_huggingface(folder, device)
    return with_extras(load_model(folder, device), Path(folder))


def check_device(name: str) -> str:
    """The name, if this machine has such a device."""
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError, NotImplementedError):
        raise QkvError("device", say(f"no '{name}' here", f"这里没有 '{name}'"), say("use cpu", "请用 cpu")) from None
    return name
