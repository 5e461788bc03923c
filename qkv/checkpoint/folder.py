"""A model folder: model.json, model.safetensors and its tokenizer, saved whole and loaded only if whole.

In: a model and its tokenizers. Out: a folder, and from it the same model, bit by bit; what else lies in the folder
(metrics, checkpoints) stays. Told in docs/files.md, "A model folder".
"""

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from qkv.checkpoint import disk
from qkv.checkpoint.durable import MANIFEST, fingerprint, packed, read_manifest, write_folder
from qkv.checkpoint.loaded_model import (
    ALIGNMENT,
    GENERATION,
    POOLING,
    LoadedModel,
    metadata_of,
    read_alignment,
    read_generation,
    read_pooling,
)
from qkv.checkpoint.weights import (
    PICKLES,
    NoFirstWeights,
    fill,
    refuse_not_finite,
    refuse_pickles,
    reset_balance,
)
from qkv.errors import QkvError
from qkv.messages import _
from qkv.model.door import from_json, to_json
from qkv.model.spec import Spec
from qkv.model.transformer import Transformer
from qkv.text.tokenizer import Tokenizer

MODEL, WEIGHTS = "model.json", "model.safetensors"
TOKENIZERS = {"tokenizer": "tokenizer.json", "source": "source.json", "target": "target.json"}

# A save first puts the whole new version into NEXT; one rename makes it stand there, and from then on it is the version
# that counts: each file of it is read from NEXT or, once moved, from its place. The manifest, which holds the SHA-256
# of every file, moves last. So a crash leaves the old version or the new one, and a mixture is never taken for either.
NEXT = ".next"
TRIES = 5  # a save may come by while we read


@dataclass(frozen=True)
class Version:
    """Which files belong together, where each is, and what the manifest says of them (None: there is no manifest)."""

    files: dict[str, Path]
    manifest: dict[str, dict[str, object]] | None


# ---- saving --------------------------------------------------------------------------------------------------------


def save_model(
    folder: str | Path,
    model: nn.Module,
    tokenizers: Mapping[str, Tokenizer],
    extra_files: Mapping[str, bytes] | None = None,
) -> None:
    """The folder holds this model: {"tokenizer": t} for one vocabulary, {"source": s, "target": t} for two."""
    folder, plain = (
        Path(folder),
        getattr(model, "_orig_mod", model),
    )  # the model inside a torch.compile wrapper
    assert isinstance(plain, Transformer), plain
    files: dict[str, disk.Content] = {
        TOKENIZERS[name]: one.save for name, one in tokenizers.items()
    }
    files |= {MODEL: to_json(plain.spec).encode(), WEIGHTS: packed(plain.state_dict())}
    assert not files.keys() & (extra_files or {}).keys(), extra_files
    move_into_place(folder)  # what an earlier save left unfinished
    write_folder(folder / NEXT, {**files, **(extra_files or {})})
    move_into_place(folder)


def move_into_place(folder: Path) -> None:
    """The version in NEXT, if one stands there, moves up; cut short anywhere, it goes on at the next save."""
    following = folder / NEXT
    files = read_manifest(following)
    if files is None:
        return
    try:
        for name in files:
            if (following / name).exists():
                disk.rename(following / name, folder / name)
        for stale in set(TOKENIZERS.values()) & (read_manifest(folder) or {}).keys() - files.keys():
            if (folder / stale).exists():
                disk.delete_file(folder / stale)
        disk.sync(folder)
        disk.rename(following / MANIFEST, folder / MANIFEST)
        disk.sync(folder)
        disk.delete_folder(following)
    except OSError as error:
        wrong = _(
            "saved in {next}, but not moved up ({strerror})", next=NEXT, strerror=error.strerror
        )
        raise QkvError(folder, wrong, _("it loads from there; the next save moves it")) from error


# ---- loading -------------------------------------------------------------------------------------------------------


def load_model(
    folder: str | Path,
    device: str | torch.device = "cpu",
    dtype: torch.dtype | None = None,
    only_finite: bool = True,
) -> LoadedModel:
    """The model of a folder, in the type it was stored in or in `dtype`."""
    folder = Path(folder)
    refuse_no_folder(folder)
    for _attempt in range(TRIES):
        version = standing_version(folder)
        try:
            loaded = load_version(folder, version, device, dtype)
        except (QkvError, OSError) as error:
            if standing_version(folder) == version:
                raise unreadable(folder, error) from error
        else:
            if standing_version(folder) == version:
                if only_finite:
                    refuse_not_finite(folder / WEIGHTS, loaded.model)
                return loaded
    raise QkvError(folder, _("changes while it is read"), _("try again later"))


def standing_version(folder: Path) -> Version:
    """The version that counts: the one in NEXT, the one of the manifest, or, without either, the files by their names."""
    coming, present = read_manifest(folder / NEXT), read_manifest(folder)
    if coming is not None:
        places = {name: folder / NEXT / name for name in coming}
        return Version(
            {name: new if new.exists() else folder / name for name, new in places.items()}, coming
        )
    if present is not None:
        return Version({name: folder / name for name in present}, present)
    if (folder / MANIFEST).exists():
        raise QkvError(folder / MANIFEST, _("damaged"), _("put back a good copy"))
    names = (MODEL, WEIGHTS, *TOKENIZERS.values())
    return Version({name: folder / name for name in names if (folder / name).exists()}, None)


def load_version(
    folder: Path, version: Version, device: str | torch.device, dtype: torch.dtype | None
) -> LoadedModel:
    """The files are proved true while they are read, on another core; a file that changed is what the person hears of."""
    refuse_incomplete(folder, version)
    with ThreadPoolExecutor(1) as beside:
        proof = beside.submit(refuse_changed, folder, version)
        try:
            return read_version(folder, version, device, dtype)
        finally:
            proof.result()


def read_version(
    folder: Path, version: Version, device: str | torch.device, dtype: torch.dtype | None
) -> LoadedModel:
    spec = read_model_json(folder, version)
    with torch.device("meta"), NoFirstWeights():  # only shapes: the memory comes with the weights
        model = Transformer(spec)
    fill(model, version.files[WEIGHTS], device, dtype)
    reset_balance(model, device)
    named = {
        name: version.files[file] for name, file in TOKENIZERS.items() if file in version.files
    }
    sha256 = str(version.manifest[WEIGHTS]["sha256"]) if version.manifest else None
    generation, pooling, alignment = (
        version.files.get(name, folder / name) for name in (GENERATION, POOLING, ALIGNMENT)
    )
    return LoadedModel(
        model.eval(),
        {name: Tokenizer.load(path) for name, path in named.items()},
        metadata_of(model, version.files[WEIGHTS].stat().st_size, sha256),
        read_generation(generation),
        read_pooling(pooling),
        read_alignment(alignment, spec),
    )


def read_model_json(folder: Path, version: Version) -> Spec:
    return from_json(version.files[MODEL].read_text("utf-8", "replace"), str(folder / MODEL))


def read_folder_spec(folder: Path) -> Spec:
    """The spec of a folder of ours; its weights need not be there."""
    refuse_no_folder(folder)
    version = standing_version(folder)
    refuse_without(folder, version, MODEL, _("is this a model folder?"))
    return read_model_json(folder, version)


def refuse_no_folder(folder: Path) -> None:
    if folder.is_file() and folder.suffix in PICKLES:
        refuse_pickles(folder.parent)
    if folder.is_file():
        raise QkvError(folder, _("is a file"), _("name the folder that holds it"))
    if not folder.is_dir():
        raise QkvError(folder, _("no such folder"), _("check the path"))


def refuse_incomplete(folder: Path, version: Version) -> None:
    refuse_without(folder, version, MODEL, _("is this a model folder?"))
    refuse_without(folder, version, WEIGHTS, _("is the copy complete?"))


def refuse_without(folder: Path, version: Version, name: str, right: str) -> None:
    if name not in version.files:
        refuse_pickles(folder)
        raise QkvError(folder, _("no {name}", name=name), right)


def refuse_changed(folder: Path, version: Version) -> None:
    """Every file of the model is the one its manifest tells; other files (a model card) may be edited at will."""
    if version.manifest is None:
        return
    faults = []
    for name in {MODEL, WEIGHTS, *TOKENIZERS.values()} & version.manifest.keys():
        if not version.files[name].exists():
            faults.append(_("{name} is missing", name=name))
        elif fingerprint(version.files[name]) != version.manifest[name]:
            faults.append(_("{name} changed since it was saved", name=name))
    if faults:
        raise QkvError(
            folder,
            _(", ").join(sorted(faults)),
            _(
                "put back a good copy, or delete {manifest} if the change was meant",
                manifest=MANIFEST,
            ),
        )


def unreadable(folder: Path, error: QkvError | OSError) -> QkvError:
    if isinstance(error, QkvError):
        return error
    return QkvError(
        error.filename or folder,
        _("cannot be read ({strerror})", strerror=error.strerror),
        _("check the disk and the permissions"),
    )
