"""Read a folder that `qkv export --to ctranslate2` wrote: qkv.json, tokenizers, vocabularies, and CTranslate2's model itself.

It imports no torch. Explained in docs/ctranslate2.md.
"""

import json
import os
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from qkv.errors import QkvError
from qkv.messages import N_, _
from qkv.text.tokenizer import Tokenizer

NEEDED = {
    "translator": {"dtype", "max_len", "bos", "eos", "pad"},
    "generator": {"dtype", "max_len", "begin", "first", "ends"},
}  # of qkv.json, by its kind
WRONG_KIND = {
    "translator": (N_("not a translator"), N_("a translator has an encoder")),
    "generator": (N_("not a language model"), N_("one has a decoder alone")),
}


def read_facts(folder: Path, kind: str = "") -> dict[str, Any]:
    """qkv.json of a translator or a generator; of whichever it is if no kind is asked for."""
    if not folder.is_dir():
        raise QkvError(folder, _("no such folder"), _("check the path"))
    if not (folder / "qkv.json").is_file() or not (folder / "model.bin").is_file():
        raise QkvError(
            folder,
            _("no CTranslate2 model"),
            _("write one: qkv export FOLDER --to ctranslate2 --out NEW"),
        )
    facts = read_json(folder / "qkv.json")
    needed = NEEDED.get(str(facts.get("kind"))) if isinstance(facts, dict) else None
    if needed is None or not needed <= facts.keys():
        raise damaged(folder / "qkv.json")
    if kind and facts["kind"] != kind:
        wrong, right = WRONG_KIND[kind]
        raise QkvError(folder, _(wrong), _(right))
    return facts


def read_tokenizers(folder: Path) -> tuple[Tokenizer, Tokenizer]:
    if (folder / "tokenizer.json").exists():
        both = Tokenizer.load(folder / "tokenizer.json")
        return both, both
    return Tokenizer.load(folder / "source.json"), Tokenizer.load(folder / "target.json")


def read_names(folder: Path) -> tuple[list[str], list[str]]:
    """CTranslate2's names of the ids of each side; a generator has one side."""
    for path in (folder / "shared_vocabulary.json", folder / "vocabulary.json"):
        if path.exists():
            return (names := read_json(path)), names
    return read_json(folder / "source_vocabulary.json"), read_json(
        folder / "target_vocabulary.json"
    )


def read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raise damaged(path) from None


def damaged(path: Path) -> QkvError:
    return QkvError(path, _("missing or damaged"), _("export the model again"))


def compute_type(facts: dict[str, Any], device: str) -> str:
    """The arithmetic in which CTranslate2 is right on every CPU: int8 for weights of 7 bits.

    Weights of 8 bits, as exported before, saturate on CPUs without VNNI instructions: they are widened to float32.
    """
    exact = facts.get("weight_bits", 8) <= 7 or device == "cuda"
    return "float32" if facts["dtype"] == "int8" and not exact else facts["dtype"]


def open_core(kind: str, folder: Path, device: str, dtype: str) -> Any:
    """CTranslate2's Translator or Generator with the threads that suit the arithmetic: int8 kernels of tiny models are slower with two."""
    if find_spec("ctranslate2") is None:
        raise QkvError("ctranslate2", _("is not installed"), "pip install 'qkv[convert]'")
    import ctranslate2

    if device not in ("cpu", "cuda") or (
        device == "cuda" and not ctranslate2.get_cuda_device_count()
    ):
        raise QkvError("device", _("no '{device}' here", device=device), _("use cpu"))
    threads = 1 if dtype == "int8" else int(os.environ.get("OMP_NUM_THREADS") or physical_cores())
    try:
        return getattr(ctranslate2, kind)(
            str(folder), device=device, compute_type=dtype, intra_threads=threads
        )
    except (RuntimeError, ValueError) as error:
        reason = str(error).split("\n")[0]
        raise QkvError(
            folder,
            _("CTranslate2 cannot read it ({reason})", reason=reason),
            _("export the model again"),
        ) from None


def physical_cores() -> int:
    """Cores this process may use; two threads of one core share its arithmetic and count once."""
    mine = (
        os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
    )
    files = [
        Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list") for cpu in mine
    ]
    return len({file.read_text() if file.exists() else str(file) for file in files})
