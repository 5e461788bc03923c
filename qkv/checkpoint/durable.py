"""Saving that survives: a crash, a full disk or a power cut leaves the old version whole, or the new one.

In: bytes and tensors with file names. Out: files and folders that are there entirely or not at all.
Told in docs/training.md, "Nothing is lost".
"""

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from qkv.checkpoint import disk
from qkv.checkpoint.disk import Content, delete, plain_errors, scratch, scratch_name, try_to_delete
from qkv.errors import QkvError
from qkv.messages import _

MANIFEST = "manifest.json"


# ---- folders -------------------------------------------------------------------------------------------------------


def write_folder(path: str | Path, files: Mapping[str, Content]) -> None:
    """The folder `path` holds exactly `files` and their manifest: all of them, or what it held before."""
    path = followed(path)
    with scratch(path) as folder:
        settle(path)
        refuse_strangers(path, files)
        for name, content in files.items():
            disk.fill(folder / name, content)
        disk.fill(
            folder / MANIFEST, manifest_text({name: fingerprint(folder / name) for name in files})
        )
        for name in (*files, MANIFEST):
            disk.sync(folder / name)
        disk.sync(folder)
        put_in_place(folder, path)


def write_new_folder(path: Path, fill: Callable[[Path], None]) -> None:
    """The folder `path`, which is empty or not there, holds what `fill` writes into the folder it is given, or nothing."""
    with scratch(path) as folder:
        fill(folder)
        for child in (*sorted(folder.rglob("*")), folder):
            disk.sync(child)
        disk.put(folder, path)
        disk.sync(path.parent)


def put_in_place(folder: Path, path: Path) -> None:
    """`folder` becomes `path`; the version before steps aside under a name that `standing` knows."""
    if path.exists():
        disk.rename(path, aside(path))
    try:
        disk.rename(folder, path)
        disk.sync(path.parent)
    except OSError:
        if path.exists():
            disk.rename(path, folder)
        if aside(path).exists():
            disk.rename(aside(path), path)
        raise
    try_to_delete(aside(path))


def remove_folder(path: str | Path) -> None:
    """The folder goes as a whole: it leaves its name before its files, so nobody ever finds half of it."""
    path = Path(path)
    with plain_errors(path):
        settle(path)
        trash = scratch_name(path)
        disk.rename(path, trash)
        disk.sync(path.parent)
        delete(trash)  # if this is cut short, the next save sweeps the rest


def standing(path: str | Path) -> Path:
    """Where the whole version of `path` is: there, or aside if a crash came between the two renames of a save."""
    path = Path(path)
    return aside(path) if not path.exists() and aside(path).exists() else path


def aside(path: Path) -> Path:
    return path.with_name(f".{path.name}.old")


def settle(path: Path) -> None:
    """What an interrupted replacement left is brought to its end: back if `path` is missing, away if it is there."""
    if not aside(path).exists():
        return
    if path.exists():
        delete(aside(path))
    else:
        disk.rename(aside(path), path)


def refuse_strangers(path: Path, files: Mapping[str, Content]) -> None:
    """Replacing a folder deletes what it held, so it may hold only what we wrote."""
    if not path.exists():
        return
    if not path.is_dir():
        raise QkvError(
            path,
            _("a file stands where a folder is to be saved"),
            _("move it away or save elsewhere"),
        )
    ours = {MANIFEST, *files, *(read_manifest(path) or {})}
    strangers = sorted(child.name for child in path.iterdir() if child.name not in ours)
    if strangers:
        names = ", ".join(strangers)
        raise QkvError(
            path,
            _("holds what saving would delete ({names})", names=names),
            _("move it away or save elsewhere"),
        )


# ---- the manifest --------------------------------------------------------------------------------------------------


def verify_folder(path: str | Path) -> Path:
    """The folder to read, after every file in it was compared with the manifest."""
    path = Path(path)
    folder = standing(path)
    if not folder.is_dir():
        raise QkvError(path, _("no such folder"), _("check the path"))
    faults = list(find_faults(folder))
    if faults:
        (name, wrong), *others = faults
        wrong = ", ".join([wrong, *(f"{path.name}/{other} {what}" for other, what in others)])
        raise QkvError(f"{path.name}/{name}", wrong, _("put back a good copy"))
    return folder


def find_faults(folder: Path) -> Iterator[tuple[str, str]]:
    """Each file that is not as the manifest says, with what is wrong."""
    expected = read_manifest(folder)
    if expected is None:
        yield MANIFEST, _("missing or damaged")
        return
    for name in sorted({*expected, *(child.name for child in folder.iterdir())} - {MANIFEST}):
        try:
            found = fingerprint(folder / name)
        except OSError as error:
            missing = isinstance(error, FileNotFoundError)
            yield (
                name,
                _("missing")
                if missing
                else _("cannot be read ({strerror})", strerror=error.strerror),
            )
            continue
        if name not in expected:
            yield name, _("not in the manifest")
        elif found["bytes"] != expected[name].get("bytes"):
            size, wanted = found["bytes"], expected[name].get("bytes")
            yield name, _("{size} bytes instead of {wanted}", size=size, wanted=wanted)
        elif found != expected[name]:
            yield name, _("its content changed (SHA-256 differs)")


def fingerprint(path: Path) -> dict[str, object]:
    with path.open("rb") as file:
        return {
            "bytes": os.fstat(file.fileno()).st_size,
            "sha256": hashlib.file_digest(file, "sha256").hexdigest(),
        }


def manifest_text(files: Mapping[str, object]) -> bytes:
    return (
        json.dumps({"format": "qkv-manifest-1", "files": files}, indent=2, sort_keys=True) + "\n"
    ).encode()


def read_manifest(folder: Path) -> dict[str, dict[str, object]] | None:
    """Names with sizes and SHA-256; None unless every byte is as we would write it."""
    try:
        written = (folder / MANIFEST).read_bytes()
        files = json.loads(written)["files"]
        entries_are_tables = all(isinstance(entry, dict) for entry in files.values())
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return None
    return files if entries_are_tables and manifest_text(files) == written else None


# ---- single files --------------------------------------------------------------------------------------------------


def write_file(path: str | Path, content: Content) -> None:
    """The file `path` holds `content`, or what it held before."""
    path = followed(path)
    with scratch(path) as folder:
        part = folder / path.name
        disk.fill(part, content)
        disk.sync(part)
        disk.rename(part, path)
        disk.sync(path.parent)


def write_tensors(path: str | Path, tensors: Mapping[str, torch.Tensor]) -> None:
    """One safetensors file, whole or not at all."""
    write_file(path, packed(tensors))


def packed(
    tensors: Mapping[str, torch.Tensor], metadata: dict[str, str] | None = None
) -> Callable[[Path], None]:
    """The tensors as the content of a file: write_folder(path, {"model.safetensors": packed(weights)})."""

    def fill(path: Path) -> None:
        try:
            save_file(separate(tensors), path, metadata)
        except SafetensorError as error:
            code = re.search(r"os error (\d+)", str(error))
            if code is None:
                raise
            raise OSError(int(code[1]), os.strerror(int(code[1]))) from error
        path.chmod(
            path.parent.stat().st_mode & 0o666
        )  # the library writes 0600: a server may be another user

    return fill


def separate(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The tensors, each dense in memory of its own: the format knows neither views nor sharing."""
    owned, seen = {}, set()
    for name, tensor in tensors.items():
        dense = tensor.detach().contiguous()
        memory = dense.untyped_storage()
        alone = memory.nbytes() == dense.nbytes and memory.data_ptr() not in seen
        owned[name] = dense if alone else dense.clone()
        seen.add(memory.data_ptr())
    return owned


def read_tensors(path: str | Path) -> dict[str, torch.Tensor]:
    """All tensors of a safetensors file, once its header has proved true to its length."""
    if not Path(path).is_file():
        raise QkvError(path, _("no such file"), _("check the path"))
    try:
        return load_file(path)
    except OSError as error:
        reason = error.strerror or str(error)
        raise QkvError(
            path, _("cannot be read ({reason})", reason=reason), _("check its permissions")
        ) from error
    except (
        Exception
    ) as error:  # the library raises ValueError, KeyError and its own kind, by the sort of damage
        reason = " ".join(str(error).removeprefix("Error while deserializing header: ").split())
        wrong = _("not a whole safetensors file ({reason})", reason=reason)
        raise QkvError(path, wrong, _("copy or download it again")) from error


def followed(path: str | Path) -> Path:
    """The path itself, or what it points to: saving through a link leaves the link."""
    return Path(path).resolve() if Path(path).is_symlink() else Path(path)
