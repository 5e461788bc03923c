"""Load a model folder in the qkv or the Hugging Face format: the entry point of every command.

See docs/reference/files.md, "Model folder".
"""

from pathlib import Path

import torch

from qkv.checkpoint.folder import load_model, read_folder_spec
from qkv.checkpoint.loaded_model import LoadedModel
from qkv.errors import QkvError
from qkv.messages import _
from qkv.model.spec import Spec
from qkv.model.transformer import Transformer

__all__ = ["load_folder", "load_spec"]

HALF_DTYPES = (torch.float16, torch.bfloat16)


def load_folder(
    folder: str | Path,
    device: str = "cpu",
    dtype: torch.dtype | None = None,
    *,
    as_stored: bool = False,
    only_finite: bool = True,
    check_vocabulary: bool = True,
) -> LoadedModel:
    """Load the model of a folder.

    Args:
        folder: A model folder in the qkv format (model.json) or Hugging Face's (config.json).
        device: A torch device.
        dtype: The data type of the weights. None: float32 for a Hugging Face folder; for a qkv
            folder the stored type, but float32 instead of half precision on a CPU.
        as_stored: Keep the stored data type in every case.
        only_finite: Raise an error for weights with NaN or infinity.
        check_vocabulary: Raise an error for a tokenizer with more tokens than embedding rows.
    """
    check_device(device)
    if is_huggingface(folder):
        from qkv.checkpoint.huggingface.reader import load_huggingface

        stored_or_float32 = dtype if dtype or as_stored else torch.float32
        loaded = load_huggingface(folder, device, stored_or_float32, only_finite)
    else:
        loaded = load_model(folder, device, dtype, only_finite)
        if dtype is None and not as_stored:
            half_to_float32(loaded.model)
    if check_vocabulary:
        refuse_larger_vocabulary(folder, loaded)
    return loaded


def refuse_larger_vocabulary(folder: str | Path, loaded: LoadedModel) -> None:
    """Raise an error if a tokenizer has ids for which the model has no embedding."""
    for name, n_rows in embedding_rows(loaded.model.spec).items():
        tokenizer = loaded.tokenizers.get(name)
        if tokenizer is not None and tokenizer.vocab_size > n_rows:
            wrong = _(
                "{name}: {tokens:,} tokens, but the embedding has {rows:,} rows",
                name=name,
                tokens=tokenizer.vocab_size,
                rows=n_rows,
            )
            raise QkvError(folder, wrong, _("it is another model's tokenizer: copy the right one"))


def embedding_rows(spec: Spec) -> dict[str, int]:
    """The rows of the embedding that each tokenizer of a model uses, by its name."""
    source = spec.source_vocab_size or spec.vocab_size
    return {"tokenizer": min(spec.vocab_size, source), "source": source, "target": spec.vocab_size}


def load_spec(folder: str | Path) -> Spec:
    """The spec of the model in a folder, without its weights."""
    if is_huggingface(folder):
        from qkv.checkpoint.huggingface.reader import read_spec

        return read_spec(Path(folder))
    return read_folder_spec(Path(folder))


def is_huggingface(folder: str | Path) -> bool:
    """Whether this is a Hugging Face folder: it has config.json and no model.json."""
    return (Path(folder) / "config.json").exists() and not (Path(folder) / "model.json").exists()


def half_to_float32(model: Transformer) -> Transformer:
    """Convert half precision on a CPU to float32: it is slow there, and crashes on some CPUs."""
    has_half = any(
        weight.dtype in HALF_DTYPES and weight.device.type == "cpu" for weight in model.parameters()
    )
    return model.float() if has_half else model


def check_device(name: str) -> str:
    """Raise an error if this machine has no such device; return its name."""
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError, NotImplementedError):
        raise QkvError("device", _("'{name}' is not available", name=name), _("use cpu")) from None
    return name
