"""Read an untrusted checkpoint: one safetensors file or several with an index, a tensor at a time.

No file outside the folder is opened, and no pickle. See docs/guides/import-export.md, "Untrusted
checkpoints".
"""

import json
import math
import mmap
from collections.abc import Iterable
from dataclasses import dataclass
from os.path import lexists
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from qkv.checkpoint.disk import refuse_missing_folder
from qkv.checkpoint.durable import invalid_safetensors
from qkv.checkpoint.names import Fields
from qkv.checkpoint.weights import DTYPES, refuse_pickles
from qkv.errors import QkvError
from qkv.messages import _, listed

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
MMAP_BYTES = 1 << 20  # larger tensors are read into memory pages of their own
MAX_JSON_BYTES = 64 << 20  # the index of the largest published model has 10 MB


@dataclass(frozen=True)
class Entry:
    """A tensor in a file: path, offset of its first byte, shape, dtype as in the header."""

    path: Path
    start: int
    shape: tuple[int, ...]
    dtype: str


class Shards:
    """All weights of a folder by name; `read(name)` reads one."""

    def __init__(self, folder: Path):
        self.folder, self.files = folder, _weight_files(folder)
        self.entries: dict[str, Entry] = {}
        for path in self.files:
            found = _read_header(path)
            repeated = sorted(found.keys() & self.entries.keys())
            if repeated:
                wrong = _("repeats weights of another file ({names})", names=listed(repeated))
                raise QkvError(path, wrong, _("copy or download it again"))
            self.entries |= found

    def read(self, name: str) -> Tensor:
        """The tensor, copied into memory: the file may change or be deleted."""
        entry = self.entries[name]
        size = math.prod(entry.shape) * DTYPES[entry.dtype].itemsize
        # Not on the heap: tensors that are then transposed or stacked are freed at once.
        memory = mmap.mmap(-1, size) if size >= MMAP_BYTES else bytearray(size)
        with entry.path.open("rb") as file:
            file.seek(entry.start)
            if file.readinto(memory) != size:
                raise QkvError(
                    entry.path, _("changed while it was read"), _("copy or download it again")
                )
        return torch.frombuffer(memory, dtype=DTYPES[entry.dtype]).view(entry.shape)


def read_json(path: Path, default: Fields | None = None) -> Any:
    """The content of a JSON file inside its folder; `default` if there is no such file."""
    if default is not None and not lexists(path):
        return default
    file = inside(path.parent, path.name)
    try:
        if file.stat().st_size > MAX_JSON_BYTES:
            raise ValueError(_("too large"))
        return json.loads(file.read_bytes())
    except (ValueError, RecursionError) as error:
        raise QkvError(path, _("is not JSON"), str(error)) from None
    except OSError as error:
        wrong = _("cannot be read ({strerror})", strerror=error.strerror)
        raise QkvError(path, wrong, _("check its permissions")) from None


def read_table(path: Path, default: Fields | None = None) -> Fields:
    """The same; the file must contain a JSON object."""
    content = read_json(path, default)
    if not isinstance(content, dict):
        raise QkvError(path, _("is not a JSON object"), _("is the download complete?"))
    return content


def inside(folder: Path, *parts: str) -> Path:
    """The path of a file in the folder; refuses parent folders, links out of it and devices."""
    name = "/".join(parts)
    are_names = all(part not in ("", ".", "..") and not set(part) & set("/\\\0") for part in parts)
    if not are_names:
        wrong = _("refers to a file outside the folder ({name!r})", name=name)
        raise QkvError(folder, wrong, _("only file names inside the folder are read"))
    path = folder.joinpath(*parts)
    try:
        resolved = path.resolve(strict=True)
    except (OSError, RuntimeError, ValueError):  # a name that is too long, or not UTF-8
        raise QkvError(path, _("no such file"), _("is the download complete?")) from None
    if not any(resolved.is_relative_to(root) for root in _roots(folder)):
        wrong = _("is a link to a file outside the folder")
        raise QkvError(path, wrong, _("replace it with the file itself"))
    if not resolved.is_file():
        raise QkvError(path, _("is not a regular file"), _("replace it with the file itself"))
    return resolved


def _roots(folder: Path) -> list[Path]:
    """The folder; in huggingface_hub's cache (snapshots/REVISION) also the blobs it links to."""
    root = folder.resolve()
    return [root, root.parents[1] / "blobs"] if root.parent.name == "snapshots" else [root]


def _weight_files(folder: Path) -> list[Path]:
    refuse_missing_folder(folder)
    if lexists(folder / WEIGHTS):
        return [inside(folder, WEIGHTS)]
    if lexists(folder / INDEX):
        return [inside(folder, name) for name in _shard_names(folder)]
    refuse_pickles(folder, _conversion_command)
    raise QkvError(folder, _("no {weights}", weights=WEIGHTS), _("is the download complete?"))


def _shard_names(folder: Path) -> list[str]:
    names = read_table(folder / INDEX).get("weight_map")
    if (
        not isinstance(names, dict)
        or not names
        or not all(isinstance(name, str) for name in names.values())
    ):
        wrong = _("has no object 'weight_map' from weight names to files")
        raise QkvError(folder / INDEX, wrong, _("copy or download it again"))
    return sorted(set(names.values()))


def _read_header(path: Path) -> dict[str, Entry]:
    """The tensors of a file, after safetensors has checked its header."""
    try:
        with safe_open(path, framework="pt"):
            pass
        with path.open("rb") as file:
            size = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(size))
    except Exception as error:  # safetensors raises several types
        raise invalid_safetensors(path, error) from None
    header.pop("__metadata__", None)
    return {
        name: Entry(path, 8 + size + info["data_offsets"][0], tuple(info["shape"]), info["dtype"])
        for name, info in header.items()
    }


def _conversion_command(pickles: Iterable[str]) -> str:
    parts = ", ".join(
        repr(name)
        for name in pickles
        if not name.startswith(("training_args", "optimizer", "scheduler"))
    )
    command = (
        'python -c "import torch; from safetensors.torch import save_file; '
        f"save_file({{n: t.contiguous().clone() for f in [{parts}] "
        f"for n, t in torch.load(f, weights_only=True).items()}}, '{WEIGHTS}')\""
    )
    return _("in a sandbox, run in that folder: {command}", command=command)
