"""Read a CTranslate2 folder written by `qkv export`: qkv.json, tokenizers, vocabularies, the model.

Does not import torch. See docs/guides/import-export.md.
"""

import os
from pathlib import Path
from typing import Any

from qkv.checkpoint.disk import refuse_missing_folder, refuse_not_installed
from qkv.errors import QkvError
from qkv.json_files import check_regular, read_json
from qkv.messages import N_, _
from qkv.text.tokenizer import Tokenizer

Metadata = dict[str, Any]  # the content of qkv.json
REQUIRED_FIELDS = {
    "translator": {"dtype", "max_len", "bos", "eos", "pad"},
    "generator": {"dtype", "max_len", "begin", "first", "ends"},
}  # fields of qkv.json, by its kind
WRONG_KIND = {
    "translator": (N_("not a translation model"), N_("a translation model has an encoder")),
    "generator": (N_("not a language model"), N_("a language model has a decoder only")),
}


def read_metadata(folder: Path, kind: str = "") -> Metadata:
    """Read qkv.json; with a `kind` (translator or generator), any other kind is an error."""
    refuse_missing_folder(folder)
    if not (folder / "qkv.json").exists() or not (folder / "model.bin").exists():
        wrong = _("not a CTranslate2 model folder")
        raise QkvError(folder, wrong, _("create one: qkv export FOLDER --to ctranslate2 --out NEW"))
    for file in folder.iterdir():  # CTranslate2 would wait for a FIFO
        if not file.is_dir():
            check_regular(file)
    metadata = read_exported(folder / "qkv.json")
    fields = metadata if isinstance(metadata, dict) else {}
    required = REQUIRED_FIELDS.get(str(fields.get("kind")))
    if required is None or not required <= fields.keys():
        raise damaged(folder / "qkv.json")
    if kind and metadata["kind"] != kind:
        wrong, right = WRONG_KIND[kind]
        raise QkvError(folder, _(wrong), _(right))
    return metadata


def read_tokenizers(folder: Path) -> tuple[Tokenizer, Tokenizer]:
    if (folder / "tokenizer.json").exists():
        tokenizer = Tokenizer.load(folder / "tokenizer.json")
        return tokenizer, tokenizer
    return Tokenizer.load(folder / "source.json"), Tokenizer.load(folder / "target.json")


def read_names(folder: Path) -> tuple[list[str], list[str]]:
    """The source and target vocabulary in the order of the ids; equal for a generator."""
    for path in (folder / "shared_vocabulary.json", folder / "vocabulary.json"):
        if path.exists():
            return (names := read_exported(path)), names
    source, target = folder / "source_vocabulary.json", folder / "target_vocabulary.json"
    return read_exported(source), read_exported(target)


def read_exported(path: Path) -> Any:
    """The content of a JSON file that `qkv export` has written."""
    try:
        return read_json(path)
    except QkvError:
        raise damaged(path) from None


def damaged(path: Path) -> QkvError:
    return QkvError(path, _("missing or damaged"), _("export the model again"))


def compute_type(metadata: Metadata, device: str) -> str:
    """The compute type that is exact on every CPU: int8 for 7-bit weights.

    8-bit weights of older exports saturate on CPUs without VNNI and are computed in float32.
    """
    exact = metadata.get("weight_bits", 8) <= 7 or device == "cuda"
    return "float32" if metadata["dtype"] == "int8" and not exact else metadata["dtype"]


def open_core(kind: str, folder: Path, device: str, dtype: str) -> Any:
    """CTranslate2's Translator or Generator; int8 runs with one thread (faster for tiny models)."""
    refuse_not_installed("ctranslate2")
    import ctranslate2

    if device not in ("cpu", "cuda") or (
        device == "cuda" and not ctranslate2.get_cuda_device_count()
    ):
        raise QkvError("device", _("'{name}' is not available", name=device), _("use cpu"))
    threads = 1 if dtype == "int8" else int(os.environ.get("OMP_NUM_THREADS") or physical_cores())
    try:
        return getattr(ctranslate2, kind)(
            str(folder), device=device, compute_type=dtype, intra_threads=threads
        )
    except (RuntimeError, ValueError) as error:
        reason = str(error).split("\n")[0]
        wrong = _("CTranslate2 cannot read it ({reason})", reason=reason)
        raise QkvError(folder, wrong, _("export the model again")) from None


def physical_cores() -> int:
    """Physical cores this process may use; hyper-threads of one core count once."""
    cpus = (
        os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
    )
    files = [
        Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list") for cpu in cpus
    ]
    return len({file.read_text() if file.exists() else str(file) for file in files})
