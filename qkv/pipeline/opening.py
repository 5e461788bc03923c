"""Opening a model folder, whoever wrote it.

In: a folder of ours or of Hugging Face's, and a device. Out: the model, its tokenizers and what stands beside them.
Told in docs/files.md, "A model folder".
"""

from pathlib import Path

import torch

from qkv.checkpoint.convert import with_extras
from qkv.checkpoint.folder import MODEL, LoadedModel, load_model, refuse_incomplete, refuse_no_folder, standing_version
from qkv.checkpoint.huggingface.reader import is_huggingface, load_huggingface, read_spec
from qkv.errors import QkvError
from qkv.language import say
from qkv.model.door import from_json
from qkv.model.spec import Spec
from qkv.model.transformer import Transformer

HALVES = (torch.float16, torch.bfloat16)


def open_folder(folder: str | Path, device: str = "cpu") -> LoadedModel:
    """The model of a folder; `facts` hold how it generates and how it pools, where the folder says so."""
    check_device(device)
    theirs = is_huggingface(folder)
    loaded = load_huggingface(folder, device) if theirs else with_extras(load_model(folder, device), Path(folder))
    computable(loaded.model)
    return loaded


def computable(model: Transformer) -> Transformer:
    """The model itself; on a CPU half precision becomes float32, for there it is slow and coarse, or ends the process."""
    halved = any(one.dtype in HALVES and one.device.type == "cpu" for one in model.parameters())
    return model.float() if halved else model


def spec_of(folder: str | Path) -> Spec:
    """What the model of a folder is, without its weights."""
    folder = Path(folder)
    if is_huggingface(folder):
        return read_spec(folder)
    refuse_no_folder(folder)
    version = standing_version(folder)
    refuse_incomplete(folder, version)
    return from_json(version.files[MODEL].read_text("utf-8", "replace"), str(folder / MODEL))


def check_device(name: str) -> str:
    """The name, if this machine has such a device."""
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError, NotImplementedError):
        raise QkvError("device", say(f"no '{name}' here", f"这里没有 '{name}'"), say("use cpu", "请用 cpu")) from None
    return name
