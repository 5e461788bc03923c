"""Save and load a model folder: model.json, model.safetensors and the tokenizers.

A save is atomic and keeps other files (metrics, checkpoints); a loaded model is bit-identical to
the saved one. See docs/reference/files.md, "Model folder".
"""

from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from qkv.checkpoint import disk
from qkv.checkpoint.durable import (
    MANIFEST,
    Manifest,
    fingerprint,
    packed,
    read_manifest,
    write_folder,
)
from qkv.checkpoint.loaded_model import LoadedModel, metadata_of, read_stored
from qkv.checkpoint.weights import PICKLE_SUFFIXES, read_model, refuse_not_finite, refuse_pickles
from qkv.errors import QkvError
from qkv.json_files import MAX_JSON_BYTES, read_regular
from qkv.messages import N_, _
from qkv.model.spec import Spec
from qkv.model.spec_io import from_json, to_json
from qkv.model.transformer import Transformer, structure_of
from qkv.text.tokenizer import Tokenizer

__all__ = ["load_model", "save_model"]

MODEL, WEIGHTS = "model.json", "model.safetensors"
TOKENIZERS = {"tokenizer": "tokenizer.json", "source": "source.json", "target": "target.json"}
# What to do if a required file is missing.
MISSING = {MODEL: N_("is this a model folder?"), WEIGHTS: N_("is the copy complete?")}

# A save first writes the complete new version to NEXT, with one rename at the end. From then on
# the new version is the current one: each of its files is read from NEXT or, once moved, from the
# folder. The manifest, with the SHA-256 of every file, is moved last. So a crash leaves the old or
# the new version, never a mixture.
NEXT = ".next"
MAX_ATTEMPTS = 5  # of loading: another process may save at the same time


@dataclass(frozen=True)
class Version:
    """The files of one version, their paths, and their manifest (None if there is none)."""

    files: dict[str, Path]
    manifest: Manifest | None


# ---- saving --------------------------------------------------------------------------------------


def save_model(
    folder: str | Path,
    model: nn.Module,
    tokenizers: Mapping[str, Tokenizer],
    extra_files: Mapping[str, bytes] | None = None,
) -> None:
    """Save a model to a folder, atomically.

    Args:
        folder: The model folder; other files in it are kept.
        model: A Transformer, or one wrapped by torch.compile.
        tokenizers: {"tokenizer": t} for one vocabulary, {"source": s, "target": t} for two.
        extra_files: Other files to save with the model, by name.
    """
    folder, plain = Path(folder), getattr(model, "_orig_mod", model)  # without torch.compile
    assert isinstance(plain, Transformer), plain
    refuse_changed_structure(folder, plain)
    files: disk.Files = {TOKENIZERS[name]: tokenizer.save for name, tokenizer in tokenizers.items()}
    files |= {MODEL: to_json(plain.spec).encode(), WEIGHTS: packed(plain.state_dict())}
    extra = dict(extra_files or {})
    assert not files.keys() & extra.keys(), extra
    move_into_place(folder)  # finish an interrupted save
    write_folder(folder / NEXT, files | extra)
    move_into_place(folder)


def refuse_changed_structure(folder: Path, model: Transformer) -> None:
    """Raise an error if a module or weight is not the one that the spec describes."""
    now = structure_of(model)
    for name in [*now, *model.built]:
        found, expected = (types.get(name, type(None)).__name__ for types in (now, model.built))
        if found != expected or now.get(name) is not model.built.get(name):
            wrong = _(
                "{name} is {found} and model.json describes {expected}; it would be lost",
                name=name or "model",
                found=found,
                expected=expected,
            )
            raise QkvError(
                folder, wrong, _("put it into the spec as Custom('package.module:Class')")
            )


def move_into_place(folder: Path) -> None:
    """Move the version in NEXT, if there is one, to the folder; an interrupted move is resumed."""
    pending = folder / NEXT
    files = read_manifest(pending)
    if files is None:
        return
    try:
        for name in files:
            if (pending / name).exists():
                disk.rename(pending / name, folder / name)
        for stale in set(TOKENIZERS.values()) & (read_manifest(folder) or {}).keys() - files.keys():
            if (folder / stale).exists():
                disk.delete_file(folder / stale)
        disk.sync(folder)
        disk.rename(pending / MANIFEST, folder / MANIFEST)
        disk.sync(folder)
        disk.delete_folder(pending)
    except OSError as error:
        wrong = N_("saved in {folder}, but not moved into place ({strerror})")
        wrong = _(wrong, folder=NEXT, strerror=error.strerror)
        right = _("the model loads from there, and the next save moves it")
        raise QkvError(folder, wrong, right) from error


# ---- loading -------------------------------------------------------------------------------------


def load_model(
    folder: str | Path,
    device: str = "cpu",
    dtype: torch.dtype | None = None,
    only_finite: bool = True,
) -> LoadedModel:
    """Load the model of a folder, in the stored data type or in `dtype`."""
    folder = Path(folder)
    refuse_no_folder(folder)
    for _attempt in range(MAX_ATTEMPTS):
        version = current_version(folder)
        try:
            loaded = load_version(folder, version, device, dtype)
        except (QkvError, OSError) as error:
            if current_version(folder) == version:
                raise unreadable(folder, error) from error
        else:
            if current_version(folder) == version:
                if only_finite:
                    refuse_not_finite(folder / WEIGHTS, loaded.model.state_dict())
                return loaded
    raise QkvError(folder, _("keeps changing while it is read"), _("try again later"))


def current_version(folder: Path) -> Version:
    """The version in NEXT, else that of the manifest, else the files by their names."""
    for place in (folder / NEXT, folder):
        manifest = read_manifest(place)
        if manifest is not None:
            paths = {name: place / name for name in manifest}
            return Version(
                {name: new if new.exists() else folder / name for name, new in paths.items()},
                manifest,
            )
    if (folder / MANIFEST).exists():
        raise QkvError(folder / MANIFEST, _("damaged"), _("restore it from a backup"))
    names = (MODEL, WEIGHTS, *TOKENIZERS.values())
    return Version({name: folder / name for name in names if (folder / name).exists()}, None)


def load_version(
    folder: Path, version: Version, device: str, dtype: torch.dtype | None
) -> LoadedModel:
    """Read the files while another thread compares them with the manifest.

    A changed file is reported before any other error.
    """
    refuse_incomplete(folder, version, MISSING)
    with ThreadPoolExecutor(1) as executor:
        verification = executor.submit(refuse_changed, folder, version)
        try:
            return read_version(folder, version, device, dtype)
        finally:
            verification.result()


def read_version(
    folder: Path, version: Version, device: str, dtype: torch.dtype | None
) -> LoadedModel:
    spec = read_model_json(folder, version)
    model = read_model(spec, version.files[WEIGHTS], device, dtype)
    tokenizers = {
        name: Tokenizer.load(version.files[file])
        for name, file in TOKENIZERS.items()
        if file in version.files
    }
    sha256 = str(version.manifest[WEIGHTS]["sha256"]) if version.manifest else None
    return LoadedModel(
        model.eval(),
        tokenizers,
        metadata_of(model, version.files[WEIGHTS].stat().st_size, sha256),
        *read_stored(lambda name: version.files.get(name, folder / name), spec),
    )


def read_model_json(folder: Path, version: Version) -> Spec:
    raw = read_regular(version.files[MODEL], MAX_JSON_BYTES)
    return from_json(raw.decode("utf-8", "replace"), str(folder / MODEL))


def read_folder_spec(folder: Path) -> Spec:
    """The spec of a qkv model folder; its weights may be missing."""
    refuse_no_folder(folder)
    version = current_version(folder)
    refuse_incomplete(folder, version, {MODEL})
    return read_model_json(folder, version)


def refuse_no_folder(folder: Path) -> None:
    if folder.is_file():
        if folder.suffix in PICKLE_SUFFIXES:
            refuse_pickles(folder.parent)
        raise QkvError(folder, _("is a file"), _("give the folder that contains it"))
    if not folder.is_dir():
        raise QkvError(folder, _("no such folder"), _("check the path"))


def refuse_incomplete(folder: Path, version: Version, required: Iterable[str]) -> None:
    for name in required:
        if name not in version.files:
            refuse_pickles(folder)
            raise QkvError(folder, _("no {name}", name=name), _(MISSING[name]))


def refuse_changed(folder: Path, version: Version) -> None:
    """Raise an error if a model file differs from the manifest; other files may be edited."""
    if version.manifest is None:
        return
    faults = []
    for name in {MODEL, WEIGHTS, *TOKENIZERS.values()} & version.manifest.keys():
        if not version.files[name].exists():
            faults.append(_("{name} is missing", name=name))
        elif fingerprint(version.files[name]) != version.manifest[name]:
            faults.append(_("{name} changed since it was saved", name=name))
    if faults:
        right = N_("restore it from a backup, or delete {manifest} if the change was intended")
        raise QkvError(folder, _(", ").join(sorted(faults)), _(right, manifest=MANIFEST))


def unreadable(folder: Path, error: QkvError | OSError) -> QkvError:
    if isinstance(error, QkvError):
        return error
    return QkvError(
        error.filename or folder,
        _("cannot be read ({strerror})", strerror=error.strerror),
        _("check the disk and the permissions"),
    )
