"""Other people's weights: one safetensors file or many with an index, read one tensor at a time.

In: a folder we do not trust. Out: the names, shapes and types of its weights, and each weight when asked for; nothing
outside the folder is opened, and no pickle ever. Told in docs/convert.md, "What is never run".
"""

import json
import math
import mmap
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from qkv.checkpoint.weights import refuse_pickles
from qkv.errors import QkvError
from qkv.messages import _, listed

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
LARGE = 1 << 20  # bytes
MOST_JSON = 64 << 20  # bytes: the index of the largest published model has 10 MB
TYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


@dataclass(frozen=True)
class Entry:
    """Where a tensor lies: file, first byte, shape, type as the header writes it."""

    path: Path
    start: int
    shape: tuple[int, ...]
    kind: str


class Shards:
    """All weights of a folder by name; `read(name)` fetches one."""

    def __init__(self, folder: Path):
        self.folder, self.files = folder, _weight_files(folder)
        self.entries: dict[str, Entry] = {}
        for path in self.files:
            found = _read_header(path)
            twice = sorted(found.keys() & self.entries.keys())
            if twice:
                raise QkvError(
                    path,
                    _("holds again what another file holds ({twice})", twice=listed(twice)),
                    _again(),
                )
            self.entries |= found

    def read(self, name: str) -> Tensor:
        """The tensor in memory of its own: the file may change or go."""
        entry = self.entries[name]
        size = math.prod(entry.shape) * TYPES[entry.kind].itemsize
        # Pages of its own, not the heap: what is read only to be turned or stacked goes back to the system at once.
        memory = mmap.mmap(-1, size) if size >= LARGE else bytearray(size)
        with entry.path.open("rb") as file:
            file.seek(entry.start)
            if file.readinto(memory) != size:
                raise QkvError(entry.path, _("changed while it was read"), _again())
        return torch.frombuffer(memory, dtype=TYPES[entry.kind]).view(entry.shape)


def read_json(folder: Path, name: str, default: dict[str, Any] | None = None) -> Any:
    """A JSON file of the folder, taken as data; `default` where there is none."""
    if default is not None and not (folder / name).is_symlink() and not (folder / name).exists():
        return default
    path = inside(folder, name)
    try:
        if path.stat().st_size > MOST_JSON:
            raise ValueError(_("too large"))
        return json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise QkvError(folder / name, _("is not JSON"), str(error)) from None
    except OSError as error:
        raise QkvError(
            folder / name,
            _("cannot be read ({strerror})", strerror=error.strerror),
            _("check its permissions"),
        ) from None


def read_table(folder: Path, name: str, default: dict[str, Any] | None = None) -> dict[str, Any]:
    """The same, and it must be a table."""
    content = read_json(folder, name, default)
    if not isinstance(content, dict):
        raise QkvError(folder / name, _("is not a table"), _("is the download complete?"))
    return content


def inside(folder: Path, *parts: str) -> Path:
    """The file of this name in the folder, and nothing else: no way up, no link out, no device."""
    name = "/".join(parts)
    plain = parts and all(
        part not in ("", ".", "..") and not set(part) & set("/\\\0") for part in parts
    )
    if not plain:
        raise QkvError(
            folder,
            _("names a file outside ({name!r})", name=name),
            _("only plain names of files in the folder are read"),
        )
    path = folder.joinpath(*parts)
    try:
        real, mode = path.resolve(strict=True), path.stat().st_mode
    except (OSError, RuntimeError):
        raise QkvError(path, _("no such file"), _("is the download complete?")) from None
    if not any(real.is_relative_to(root) for root in _roots(folder)):
        raise QkvError(path, _("a link out of the folder"), _("put the file itself there"))
    if not stat.S_ISREG(mode):
        raise QkvError(path, _("is not a plain file"), _("put the file itself there"))
    return real


def _roots(folder: Path) -> list[Path]:
    """The folder; and in the download cache of huggingface_hub (snapshots/REVISION) the blobs that all links lead to."""
    real = folder.resolve()
    return [real, real.parents[1] / "blobs"] if real.parent.name == "snapshots" else [real]


def _weight_files(folder: Path) -> list[Path]:
    if not folder.is_dir():
        raise QkvError(folder, _("no such folder"), _("check the path"))
    if (folder / WEIGHTS).is_symlink() or (folder / WEIGHTS).exists():
        return [inside(folder, WEIGHTS)]
    if (folder / INDEX).is_symlink() or (folder / INDEX).exists():
        return [inside(folder, name) for name in _shard_names(folder)]
    refuse_pickles(folder, _turn_into_safetensors)
    raise QkvError(folder, _("no {weights}", weights=WEIGHTS), _("is the download complete?"))


def _shard_names(folder: Path) -> list[str]:
    names = read_table(folder, INDEX).get("weight_map")
    if (
        not isinstance(names, dict)
        or not names
        or not all(isinstance(name, str) for name in names.values())
    ):
        raise QkvError(folder / INDEX, _("has no table 'weight_map' of names to files"), _again())
    return sorted(set(names.values()))


def _read_header(path: Path) -> dict[str, Entry]:
    """Names and places of the tensors, once the library has proved the header true to the file."""
    try:
        with safe_open(path, framework="pt"):
            pass
        with path.open("rb") as file:
            size = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(size))
    except Exception as error:  # the library raises several kinds, by the sort of damage
        reason = " ".join(str(error).removeprefix("Error while deserializing header: ").split())
        raise QkvError(
            path, _("not a whole safetensors file ({reason})", reason=reason), _again()
        ) from None
    header.pop("__metadata__", None)
    return {
        name: Entry(path, 8 + size + one["data_offsets"][0], tuple(one["shape"]), one["dtype"])
        for name, one in header.items()
    }


def _turn_into_safetensors(pickles: Iterable[str]) -> str:
    parts = ", ".join(
        repr(name)
        for name in pickles
        if not name.startswith(("training_args", "optimizer", "scheduler"))
    )
    command = (
        'python -c "import torch; from safetensors.torch import save_file; save_file({n: t.contiguous().clone() '
        f"for f in [{parts}] for n, t in torch.load(f, weights_only=True).items()}}, '{WEIGHTS}')\""
    )
    return _("on a machine you can spare, run in that folder: {command}", command=command)


def _again() -> str:
    return _("copy or download it again")
