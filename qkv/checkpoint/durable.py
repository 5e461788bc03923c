"""Durable saves: after a crash or on a full disk, the old or the new version is complete.

See docs/explanation/training.md, "Checkpoints".
"""

import hashlib
import json
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from qkv.checkpoint import disk
from qkv.checkpoint.disk import Content, delete, disk_errors, scratch, scratch_path, try_to_delete
from qkv.errors import QkvError
from qkv.files import atomic_path, is_stream
from qkv.json_files import MAX_JSON_BYTES, check_regular, parse_json, read_regular
from qkv.messages import _, cut, listed

MANIFEST = "manifest.json"
Fingerprint = dict[str, Any]  # bytes, sha256
Manifest = dict[str, Fingerprint]  # by file name


# ---- folders -------------------------------------------------------------------------------------


def write_folder(path: str | Path, files: Mapping[str, Content]) -> None:
    """Replace the folder `path` by `files` and their manifest, atomically."""
    path = resolve_link(path)
    with scratch(path) as folder:
        finish_replacement(path)
        refuse_unknown_files(path, files)
        disk.fill_folder(folder, files)
        fingerprints = {name: fingerprint(folder / name) for name in files}
        disk.fill(folder / MANIFEST, manifest_text(fingerprints))
        for name in (*files, MANIFEST):
            disk.sync(folder / name)
        disk.sync(folder)
        replace_folder(folder, path)


def write_new_folder(path: Path, fill: Callable[[Path], None]) -> None:
    """Create the folder `path` (empty or missing) with what `fill` writes, atomically."""
    with scratch(path) as folder:
        fill(folder)
        for child in (*sorted(folder.rglob("*")), folder):
            disk.sync(child)
        disk.move_folder(folder, path)
        disk.sync(path.parent)


def replace_folder(folder: Path, path: Path) -> None:
    """Rename `folder` to `path`; the previous version is at `old_path(path)` in between."""
    old = old_path(path)
    if path.exists():
        disk.rename(path, old)
    try:
        disk.rename(folder, path)
        disk.sync(path.parent)
    except OSError:
        if path.exists():
            disk.rename(path, folder)
        if old.exists():
            disk.rename(old, path)
        raise
    try_to_delete(old)


def remove_folder(path: Path) -> None:
    """Delete a folder atomically: it is renamed before its files are deleted."""
    with disk_errors(path):
        finish_replacement(path)
        trash = scratch_path(path)
        disk.rename(path, trash)
        disk.sync(path.parent)
        delete(trash)  # after an interruption, the next save deletes the rest


def current_folder(path: Path) -> Path:
    """Where the complete version of `path` is: `old_path` after a crash between the two renames."""
    old = old_path(path)
    return old if old.exists() and not path.exists() else path


def old_path(path: Path) -> Path:
    return path.with_name(f".{path.name}.old")


def finish_replacement(path: Path) -> None:
    """After an interruption: restore the old version if `path` is missing, else delete it."""
    old = old_path(path)
    if old.exists() and path.exists():
        delete(old)
    elif old.exists():
        disk.rename(old, path)


def refuse_unknown_files(path: Path, files: Mapping[str, Content]) -> None:
    """Raise an error if replacing the folder would delete files that this library did not write."""
    if not path.exists():
        return
    right = _("move it or save to another folder")
    if not path.is_dir():
        raise QkvError(path, _("a file with this name exists"), right)
    known = {MANIFEST, *files, *(read_manifest(path) or {})}
    names = listed(sorted({child.name for child in path.iterdir()} - known))
    if names:
        wrong = _("contains files that saving would delete ({names})", names=names)
        raise QkvError(path, wrong, right)


# ---- the manifest --------------------------------------------------------------------------------


def verify_folder(path: Path) -> Path:
    """Compare every file with the manifest; return the folder to read."""
    folder = current_folder(path)
    disk.refuse_missing_folder(folder)
    faults = find_faults(folder)
    if faults:
        (name, wrong), *others = faults.items()
        more = [f"{path.name}/{other} {fault}" for other, fault in others]
        wrong = ", ".join(cut([wrong, *more]))
        raise QkvError(f"{path.name}/{name}", wrong, _("restore it from a backup"))
    return folder


def find_faults(folder: Path) -> dict[str, str]:
    """Each file that differs from the manifest, with what is wrong."""
    expected = read_manifest(folder)
    if expected is None:
        return {MANIFEST: _("missing or damaged")}
    names = sorted({*expected, *(child.name for child in folder.iterdir())} - {MANIFEST})
    faults = {name: find_fault(folder / name, expected.get(name)) for name in names}
    return {name: fault for name, fault in faults.items() if fault}


def find_fault(path: Path, expected: Fingerprint | None) -> str:
    """How a file differs from its entry in the manifest; "" if it is the same."""
    try:
        found = fingerprint(path)
    except FileNotFoundError:
        return _("missing")
    except QkvError as error:  # a FIFO or a device
        return error.wrong
    except OSError as error:
        return _("cannot be read ({strerror})", strerror=error.strerror)
    if expected is None:
        return _("not in the manifest")
    size, saved = found["bytes"], expected.get("bytes")
    if size != saved:
        return _("{size} bytes instead of {expected}", size=size, expected=saved)
    return "" if found == expected else _("its content changed (SHA-256 differs)")


def fingerprint(path: Path) -> Fingerprint:
    """Size and SHA-256; an error for what is not a regular file."""
    if path.exists():
        check_regular(path)
    with path.open("rb") as file:
        return {
            "bytes": os.fstat(file.fileno()).st_size,
            "sha256": hashlib.file_digest(file, "sha256").hexdigest(),
        }


def manifest_text(files: Mapping[str, object]) -> bytes:
    return json_bytes({"format": "qkv-manifest-1", "files": files}, sort_keys=True)


def read_manifest(folder: Path) -> Manifest | None:
    """File names with sizes and SHA-256; None if a byte of the manifest was changed."""
    try:
        written = read_regular(folder / MANIFEST, MAX_JSON_BYTES)
        files = parse_json(written.decode(), folder / MANIFEST)["files"]
        are_objects = all(isinstance(entry, dict) for entry in files.values())
    except (QkvError, ValueError, LookupError, TypeError, AttributeError):
        return None
    return files if are_objects and manifest_text(files) == written else None


# ---- single files --------------------------------------------------------------------------------


def write_file(path: str | Path, content: Content) -> None:
    """Replace the file `path` by `content`, atomically; a device or FIFO is written to."""
    path = resolve_link(path)
    if is_stream(path):
        with atomic_path(path) as part:
            disk.fill(part, content)
        return
    with scratch(path) as folder:
        part = folder / path.name
        disk.fill(part, content)
        disk.sync(part)
        disk.rename(part, path)
        disk.sync(path.parent)


def json_bytes(content: object, sort_keys: bool = False) -> bytes:
    """The content of a JSON file."""
    return (json.dumps(content, indent=2, sort_keys=sort_keys) + "\n").encode()


def packed(
    tensors: Mapping[str, Tensor], metadata: dict[str, str] | None = None
) -> Callable[[Path], None]:
    """Tensors as file content: write_folder(path, {"model.safetensors": packed(weights)})."""

    def fill(path: Path) -> None:
        try:
            save_file(contiguous_tensors(tensors), path, metadata)
        except SafetensorError as error:
            code = re.search(r"os error (\d+)", str(error))
            if code is None:
                raise
            raise OSError(int(code[1]), os.strerror(int(code[1]))) from error
        # safetensors writes with mode 0600, but a server may run as another user.
        path.chmod(path.parent.stat().st_mode & 0o666)

    return fill


def contiguous_tensors(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors made contiguous, without shared storage: the format has no views."""
    owned, seen = {}, set()
    for name, tensor in tensors.items():
        dense = tensor.detach().contiguous()
        storage = dense.untyped_storage()
        is_owned = storage.nbytes() == dense.nbytes and storage.data_ptr() not in seen
        owned[name] = dense if is_owned else dense.clone()
        seen.add(storage.data_ptr())
    return owned


def read_tensors(path: Path) -> dict[str, Tensor]:
    """All tensors of a safetensors file, after its header was checked."""
    check_regular(path)
    try:
        return load_file(path)
    except OSError as error:
        wrong = _("cannot be read ({reason})", reason=error.strerror or str(error))
        raise QkvError(path, wrong, _("check its permissions")) from error
    except Exception as error:  # safetensors raises ValueError, KeyError and its own type
        raise invalid_safetensors(path, error) from error


def invalid_safetensors(path: Path, error: Exception) -> QkvError:
    reason = " ".join(str(error).removeprefix("Error while deserializing header: ").split())
    wrong = _("not a valid safetensors file ({reason})", reason=reason)
    return QkvError(path, wrong, _("copy or download it again"))


def resolve_link(path: str | Path) -> Path:
    """The path itself, or the target of a symbolic link: saving keeps the link."""
    return Path(path).resolve() if Path(path).is_symlink() else Path(path)
