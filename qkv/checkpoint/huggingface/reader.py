"""Load a Hugging Face folder: config.json, safetensors and tokenizer files.

The files are untrusted, and no code of the folder is run. See docs/guides/import-export.md.
"""

import math
import re
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from qkv.checkpoint.families import FAMILIES
from qkv.checkpoint.families.config import Config
from qkv.checkpoint.huggingface.marian_tokenizers import FILES as MARIAN_FILES
from qkv.checkpoint.huggingface.marian_tokenizers import read_marian_tokenizers
from qkv.checkpoint.huggingface.sentence_transformers_format import read_pooling
from qkv.checkpoint.loaded_model import LoadedModel, metadata_of
from qkv.checkpoint.names import Family, Weights, resolve_rows, to_foreign, to_native
from qkv.checkpoint.shards import Shards, inside, read_table
from qkv.checkpoint.weights import (
    DTYPES,
    assign_weights,
    check_load_memory,
    check_weights,
    current_name,
    meta_model,
)
from qkv.errors import QkvError, near_miss
from qkv.messages import N_, _
from qkv.model.check_spec import check_spec
from qkv.model.spec import Layer, MixtureOfExperts, Spec
from qkv.text.files import read_tokenizer
from qkv.text.special_tokens import SpecialTokenIds
from qkv.text.tokenizer import Tokenizer

TARGET = "target_tokenizer.json"  # of a qkv model with two vocabularies; others read only one
# The files of each tokenizer format; the first complete set is read.
TOKENIZER_FILES = (
    ("tokenizer.json",),
    ("tokenizer.model",),
    ("vocab.json", "merges.txt"),
    ("vocab.txt",),
)


def load_huggingface(
    folder: str | Path,
    device: str = "cpu",
    dtype: torch.dtype | None = torch.float32,
    only_finite: bool = True,
) -> LoadedModel:
    """Load a Hugging Face folder in `dtype` (None: as stored), with its tokenizers."""
    folder = Path(folder)
    shards, config, family, spec = read_family(folder)
    model = meta_model(spec)
    state_dict = model.state_dict()
    table = resolve_rows(family.rows(spec), state_dict)
    names = match_names(shards, family, spec, to_foreign(table, state_dict))
    n_values = sum(math.prod(shards.entries[name].shape) for name in names.values())
    check_load_memory(folder, n_values, dtype or torch.float16, device)  # None: 2 bytes or more
    weights = to_native(table, reader(shards, names, device, dtype, only_finite))
    assign_weights(model, weights, device)
    n_bytes = sum(path.stat().st_size for path in shards.files)
    metadata = metadata_of(model, n_bytes, family=config.fields["model_type"])
    return LoadedModel(
        model.eval(),
        read_tokenizers(folder, spec),
        metadata,
        read_special_ids(folder, config, spec.vocab_size),
        read_pooling(folder),
    )


def read_spec(folder: Path) -> Spec:
    """The spec described by config.json."""
    return read_family(folder)[3]


def read_family(folder: Path) -> tuple[Shards, Config, Family, Spec]:
    """Read config.json, its family and its spec; compare them with the headers of the weights."""
    shards = Shards(folder)
    path = folder / "config.json"
    config = Config(path, read_table(path), shards.entries)
    family = family_of(config)
    spec = family.read(config)
    check_spec(spec, str(config.where))
    check_weight_count(spec, shards, config)
    return shards, config, family, spec


def family_of(config: Config) -> Family:
    kind = config.fields.get("model_type")
    if not isinstance(kind, str) or kind not in FAMILIES:
        raise config.error("model_type", kind, near_miss(str(kind)[:80], FAMILIES))
    if config.has("quantization_config"):
        right = _("use the unquantized checkpoint (bf16, f16 or f32)")
        raise config.error("quantization_config", config.fields["quantization_config"], right)
    return FAMILIES[kind]


def check_weight_count(spec: Spec, shards: Shards, config: Config) -> None:
    """Raise an error if there are fewer weights than layers and experts: each has its own."""
    ffns = [layer.feed_forward for layer in layers_of(spec)]
    n_experts = sum(ffn.n_experts for ffn in ffns if isinstance(ffn, MixtureOfExperts))
    n_parts, n_weights = len(ffns) + n_experts, len(shards.entries)
    if n_parts > n_weights:
        wrong = _(
            "describes {n_parts:,} layers and experts, "
            "but the files contain only {n_weights:,} weights",
            n_parts=n_parts,
            n_weights=n_weights,
        )
        raise QkvError(config.where, wrong, _("is the download complete?"))


def layers_of(spec: Spec) -> list[Layer]:
    stacks = filter(None, (spec.encoder, spec.decoder))
    return [layer for stack in stacks for layer in stack.each_layer()]


# ── Weights ─────────────────────────────────────────────────────────────────────────────────────
def match_names(shards: Shards, family: Family, spec: Spec, expected: Weights) -> dict[str, str]:
    """The stored name of each expected weight; stored copies of tied weights must be equal."""
    ignored = "|".join(family.ignored).format(n_layers=len(layers_of(spec)))
    names: dict[str, str] = {}
    copies: dict[str, str] = {}
    unknown: list[str] = []
    for stored in shards.entries:
        candidates = current_names(stored, family)
        full = [name for name in candidates if name in expected and name not in names]
        originals = [
            original
            for name in candidates
            for original in family.tied.get(name, ())
            if original in expected
        ]
        if full:
            names[full[0]] = stored
        elif originals:
            copies[stored] = originals[0]
        elif not any(re.fullmatch(ignored, name) for name in candidates):
            unknown.append(stored)
    for copy, original in copies.items():
        names.setdefault(original, copy)  # if the file has only this copy of a tied weight
    found = {name: shards.entries[stored] for name, stored in names.items()}
    right = N_("is the download complete, and does config.json belong to it?")
    check_weights(shards.folder, found, expected, unknown, right)
    for copy, original in copies.items():
        refuse_different_copy(shards, copy, names[original])
    return names


def current_names(stored: str, family: Family) -> list[str]:
    """Possible names in the full model: old suffixes replaced, with the base model's prefix."""
    name = current_name(stored, family.aliases)
    return [name, family.prefix + name]


def reader(
    shards: Shards, names: dict[str, str], device: str, dtype: torch.dtype | None, only_finite: bool
) -> Callable[[str], Tensor]:
    """A function that reads a weight by its name, checks that it is finite, and converts it."""

    def read(name: str) -> Tensor:
        tensor = shards.read(names[name])
        # The extremes are NaN if any value is.
        if only_finite and not torch.stack(tensor.aminmax()).isfinite().all():
            count = int((~tensor.isfinite()).sum())
            wrong = _("{name} contains {count} non-finite values", name=names[name], count=count)
            raise QkvError(shards.folder, wrong, _("copy or download it again"))
        return tensor.to(device, dtype or tensor.dtype)

    return read


def refuse_different_copy(shards: Shards, copy: str, original: str) -> None:
    """Raise an error if a stored copy of a tied weight differs from it."""
    entry = shards.entries[copy]
    if copy != original and (
        entry.shape != shards.entries[original].shape
        or entry.dtype not in DTYPES
        or not torch.equal(shards.read(copy), shards.read(original))
    ):
        wrong = _(
            "{copy} and {original} differ, but config.json says they are tied",
            copy=copy,
            original=original,
        )
        raise QkvError(shards.folder, wrong, _('is "tie_word_embeddings" right?'))


# ── Tokenizers and special tokens ───────────────────────────────────────────────────────────────
def read_tokenizers(folder: Path, spec: Spec) -> dict[str, Tokenizer]:
    """The tokenizers of the folder, in the first format found; {} if there are none."""
    files = {path.name for path in folder.iterdir()}
    for names in TOKENIZER_FILES:
        if files >= set(names):
            for name in names:
                inside(folder, name)  # refuses links out of the folder
            first = read_tokenizer(folder / names[0])
            if TARGET not in files:
                return {"tokenizer": first}
            return {"source": first, "target": read_tokenizer(inside(folder, TARGET))}
    return (
        read_marian_tokenizers(folder, spec.source_vocab_size is not None)
        if files >= set(MARIAN_FILES)
        else {}
    )


def read_special_ids(folder: Path, config: Config, size: int) -> SpecialTokenIds:
    """The special token ids of config.json and generation_config.json within the vocabulary."""
    stored = read_table(folder / "generation_config.json", {})
    fields = config.fields | {k: v for k, v in stored.items() if v is not None}
    ends, start = fields.get("eos_token_id"), fields.get("bos_token_id")
    if config.fields.get("is_encoder_decoder"):
        decoder_start = fields.get("decoder_start_token_id")
        start = start if decoder_start is None else decoder_start
    first, pad, *eos = (
        id if type(id) is int and 0 <= id < size else None
        for id in (start, fields.get("pad_token_id"), *(ends if isinstance(ends, list) else [ends]))
    )
    return SpecialTokenIds(first, pad, tuple(id for id in eos if id is not None))
