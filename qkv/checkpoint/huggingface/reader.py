"""Other people's checkpoints: a Hugging Face folder becomes one of our models.

In: a folder with config.json, safetensors and tokenizer files, none of it trusted. Out: the model with its tokenizer,
or one line that names all that does not fit. No code of theirs is run. Told in docs/convert.md.
"""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from qkv.checkpoint.families import FAMILIES
from qkv.checkpoint.families.config import Config
from qkv.checkpoint.huggingface.marian_tokenizers import FILES as MARIAN_FILES
from qkv.checkpoint.huggingface.marian_tokenizers import read_marian_tokenizers
from qkv.checkpoint.huggingface.sentence_transformers_format import read_pooling
from qkv.checkpoint.loaded_model import LoadedModel, metadata_of
from qkv.checkpoint.names import Family, links, to_ours, to_theirs
from qkv.checkpoint.shards import TYPES, Shards, inside, read_table
from qkv.checkpoint.weights import refuse_mismatch, reset_balance
from qkv.errors import QkvError, near_miss
from qkv.messages import _
from qkv.model.door import check
from qkv.model.spec import Experts, Spec
from qkv.model.transformer import Transformer
from qkv.text.files import read_tokenizer
from qkv.text.special_tokens import SpecialTokenIds
from qkv.text.tokenizer import Tokenizer

TARGET = "target_tokenizer.json"  # of a model of ours with two vocabularies; other software knows only one
# Files that make up a tokenizer; the first whole set is read.
TOKENIZER_FILES = (
    ("tokenizer.json",),
    ("tokenizer.model",),
    ("vocab.json", "merges.txt"),
    ("vocab.txt",),
)


def is_huggingface(folder: str | Path) -> bool:
    """Whether this is their kind of folder: config.json, and not our model.json."""
    return (Path(folder) / "config.json").exists() and not (Path(folder) / "model.json").exists()


def load_huggingface(
    folder: str | Path,
    device: str | torch.device = "cpu",
    dtype: torch.dtype | None = torch.float32,
    only_finite: bool = True,
) -> LoadedModel:
    """The model of their folder, computing in `dtype` (None: each weight as it is stored), with its tokenizer."""
    folder = Path(folder)
    shards, config, family, spec = read_family(folder)
    with torch.device("meta"):  # only shapes: the memory comes with the weights
        model = Transformer(spec)
    slots = model.state_dict()
    table, nameless = links(family.rows(spec), slots)
    assert not nameless, nameless
    names, copies = match_names(shards, family, family.spare(spec), to_theirs(table, slots))
    refuse_different_copies(shards, copies)
    weights = to_ours(table, reader(shards, names, device, dtype, only_finite))
    model.load_state_dict(weights, assign=True)
    reset_balance(model, device)
    metadata = metadata_of(
        model, sum(path.stat().st_size for path in shards.files), family=family.model_type
    )
    return LoadedModel(
        model.eval(),
        read_tokenizers(folder, spec),
        metadata,
        read_special_ids(folder, config, spec.vocab_size),
        read_pooling(folder),
    )


def read_spec(folder: Path) -> Spec:
    """The spec that their config.json describes."""
    return read_family(folder)[3]


def read_family(folder: Path) -> tuple[Shards, Config, Family, Spec]:
    """Their config.json, checked against the headers of the weights, with its family and the spec it describes."""
    shards = Shards(folder)
    config = Config(folder / "config.json", read_config(folder), shards.entries)
    family = family_of(config)
    spec = family.read(config)
    check(spec, str(config.where))
    refuse_boasts(spec, shards, config)
    return shards, config, family, spec


def read_config(folder: Path) -> dict[str, Any]:
    """config.json as it stands there; what it says is checked field by field."""
    return read_table(folder, "config.json")


def family_of(config: Config) -> Family:
    kind = config.fields.get("model_type")
    if not isinstance(kind, str) or kind not in FAMILIES:
        raise config.wrong("model_type", kind, near_miss(str(kind)[:80], FAMILIES))
    if config.has("quantization_config"):
        raise config.wrong(
            "quantization_config",
            config.fields["quantization_config"],
            _("take the checkpoint with whole weights (bf16, f16, f32)"),
        )
    return FAMILIES[kind]


def refuse_boasts(spec: Spec, shards: Shards, config: Config) -> None:
    """Every layer and every expert has weights of its own, so there are at least as many weights as those."""
    layers = [
        layer for stack in (spec.encoder, spec.decoder) if stack for layer in stack.each_layer()
    ]
    parts = [layer.feed_forward for layer in layers]
    told = len(layers) + sum(part.n_experts for part in parts if isinstance(part, Experts))
    if told > len(shards.entries):
        held = len(shards.entries)
        raise QkvError(
            config.where,
            _(
                "tells of {told:,} layers and experts, and the files hold only {held:,} weights",
                told=told,
                held=held,
            ),
            _("is the download complete?"),
        )


# ── Weights ──────────────────────────────────────────────────────────────────────────────────────────────────────
def match_names(
    shards: Shards, family: Family, spare: tuple[str, ...], wanted: dict[str, Tensor]
) -> tuple[dict[str, str], dict[str, str]]:
    """For each name we want the name in the files, and for each copy its original; all misfits in one message."""
    names: dict[str, str] = {}
    copies: dict[str, str] = {}
    unknown: list[str] = []
    for stored in shards.entries:
        written = todays_names(stored, family)
        full = next((name for name in written if name in wanted and name not in names), None)
        originals = [
            one for name in written for one in family.copies.get(name, ()) if one in wanted
        ]
        if full is not None:
            names[full] = stored
        elif originals:
            copies[stored] = originals[0]
        elif not any(re.fullmatch(pattern, name) for pattern in spare for name in written):
            unknown.append(stored)
    for copy, original in list(copies.items()):
        if original not in names:  # the file keeps only this copy of a shared weight
            names[original] = copy
            del copies[copy]
    refuse_misfits(shards, names, wanted, unknown)
    return names, {copy: names[original] for copy, original in copies.items()}


def todays_names(stored: str, family: Family) -> list[str]:
    """What today's whole model may call this weight: old endings replaced, the bare model's prefix put back."""
    for old, new in family.aliases.items():
        if stored.endswith(old):
            stored = stored.removesuffix(old) + new
    return [stored, family.prefix + stored]


def refuse_misfits(
    shards: Shards, names: dict[str, str], wanted: dict[str, Tensor], unknown: list[str]
) -> None:
    """One message with all weights that are missing, unknown, of another shape or no numbers."""
    missing = [name for name in wanted if name not in names]
    found = {name: shards.entries[stored] for name, stored in names.items()}
    shapes = [
        _(
            "{name}: {shape}, not {wanted}",
            name=name,
            shape=one.shape,
            wanted=tuple(wanted[name].shape),
        )
        for name, one in found.items()
        if one.shape != tuple(wanted[name].shape)
    ]
    kinds = [f"{name}: {one.kind}" for name, one in found.items() if one.kind not in TYPES]
    refuse_mismatch(
        shards.folder,
        missing,
        unknown,
        shapes,
        kinds,
        _("is the download complete, and the model what config.json says?"),
    )


def reader(
    shards: Shards,
    names: dict[str, str],
    device: str | torch.device,
    dtype: torch.dtype | None,
    only_finite: bool,
) -> Callable[[str], Tensor]:
    """Reads one weight by its name, refuses it if it is not finite, and puts it where and how it is wanted."""

    def read(name: str) -> Tensor:
        tensor = shards.read(names[name])
        if (
            only_finite and not torch.stack(tensor.aminmax()).isfinite().all()
        ):  # the extremes are NaN if any number is
            count = int((~tensor.isfinite()).sum())
            raise QkvError(
                shards.folder,
                _(
                    "{names} holds {count} numbers that are not finite",
                    names=names[name],
                    count=count,
                ),
                _("copy or download it again"),
            )
        return tensor.to(device, dtype or tensor.dtype)

    return read


def refuse_different_copies(shards: Shards, copies: dict[str, str]) -> None:
    """What a shared weight's copies say must be what it says itself."""
    for copy, original in copies.items():
        same = (
            shards.entries[copy].shape == shards.entries[original].shape
            and shards.entries[copy].kind in TYPES
        )
        if not same or not torch.equal(shards.read(copy), shards.read(original)):
            raise QkvError(
                shards.folder,
                _(
                    "{copy} and {original} differ, and config.json says they are one",
                    copy=copy,
                    original=original,
                ),
                _('is "tie_word_embeddings" right?'),
            )


# ── What stands beside the weights ───────────────────────────────────────────────────────────────────────────────
def read_tokenizers(folder: Path, spec: Spec) -> dict[str, Tokenizer]:
    """The tokenizer of the folder, in whichever of the usual formats it is; none is no error."""
    there = {path.name for path in folder.iterdir()}
    for names in TOKENIZER_FILES:
        if there >= set(names):
            for name in names:
                inside(folder, name)  # no link leads out
            first = read_tokenizer(folder / names[0])
            if TARGET not in there:
                return {"tokenizer": first}
            return {"source": first, "target": read_tokenizer(inside(folder, TARGET))}
    return (
        read_marian_tokenizers(folder, spec.source_vocab_size is not None)
        if there >= set(MARIAN_FILES)
        else {}
    )


def read_special_ids(folder: Path, config: Config, size: int) -> SpecialTokenIds:
    """The special token ids of their config.json and generation_config.json, as far as they are below the vocabulary size."""
    fields = config.fields | {
        k: v for k, v in read_table(folder, "generation_config.json", {}).items() if v is not None
    }
    ends = fields.get("eos_token_id")
    start = (
        fields.get("decoder_start_token_id") if config.fields.get("is_encoder_decoder") else None
    )
    start = fields.get("bos_token_id") if start is None else start
    ids = [
        id if type(id) is int and 0 <= id < size else None
        for id in (start, fields.get("pad_token_id"), *(ends if isinstance(ends, list) else [ends]))
    ]
    return SpecialTokenIds(ids[0], ids[1], tuple(id for id in ids[2:] if id is not None))
