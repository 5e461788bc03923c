"""Load a Hugging Face folder: config.json, safetensors and tokenizer files.

The files are untrusted, and no code of the folder is run. See docs/convert.md.
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
from qkv.checkpoint.names import Family, resolve_rows, to_foreign, to_native
from qkv.checkpoint.shards import DTYPES, Shards, inside, read_table
from qkv.checkpoint.weights import refuse_mismatches, reset_aux_loss
from qkv.errors import QkvError, near_miss
from qkv.messages import _
from qkv.model.check_spec import check_spec
from qkv.model.spec import MixtureOfExperts, Spec
from qkv.model.transformer import Transformer
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


def is_huggingface(folder: str | Path) -> bool:
    """Whether this is a Hugging Face folder: it has config.json and no model.json."""
    return (Path(folder) / "config.json").exists() and not (Path(folder) / "model.json").exists()


def load_huggingface(
    folder: str | Path,
    device: str | torch.device = "cpu",
    dtype: torch.dtype | None = torch.float32,
    only_finite: bool = True,
) -> LoadedModel:
    """Load a Hugging Face folder in `dtype` (None: as stored), with its tokenizers."""
    folder = Path(folder)
    shards, config, family, spec = read_family(folder)
    with torch.device("meta"):  # no memory is allocated before the weights are read
        model = Transformer(spec)
    state_dict = model.state_dict()
    table, unmapped = resolve_rows(family.rows(spec), state_dict)
    assert not unmapped, unmapped
    expected = to_foreign(table, state_dict)
    names, copies = match_names(shards, family, family.ignored(spec), expected)
    refuse_different_copies(shards, copies)
    weights = to_native(table, reader(shards, names, device, dtype, only_finite))
    model.load_state_dict(weights, assign=True)
    reset_aux_loss(model, device)
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
    """The spec described by config.json."""
    return read_family(folder)[3]


def read_family(folder: Path) -> tuple[Shards, Config, Family, Spec]:
    """Read config.json, its family and its spec; compare them with the headers of the weights."""
    shards = Shards(folder)
    config = Config(folder / "config.json", read_config(folder), shards.entries)
    family = family_of(config)
    spec = family.read(config)
    check_spec(spec, str(config.where))
    check_weight_count(spec, shards, config)
    return shards, config, family, spec


def read_config(folder: Path) -> dict[str, Any]:
    """The fields of config.json, unchecked."""
    return read_table(folder, "config.json")


def family_of(config: Config) -> Family:
    kind = config.fields.get("model_type")
    if not isinstance(kind, str) or kind not in FAMILIES:
        raise config.error("model_type", kind, near_miss(str(kind)[:80], FAMILIES))
    if config.has("quantization_config"):
        raise config.error(
            "quantization_config",
            config.fields["quantization_config"],
            _("use the unquantized checkpoint (bf16, f16 or f32)"),
        )
    return FAMILIES[kind]


def check_weight_count(spec: Spec, shards: Shards, config: Config) -> None:
    """Raise an error if there are fewer weights than layers and experts: each has its own."""
    layers = [
        layer for stack in (spec.encoder, spec.decoder) if stack for layer in stack.each_layer()
    ]
    ffns = [layer.feed_forward for layer in layers]
    n_experts = sum(ffn.n_experts for ffn in ffns if isinstance(ffn, MixtureOfExperts))
    n_parts, n_weights = len(layers) + n_experts, len(shards.entries)
    if n_parts > n_weights:
        raise QkvError(
            config.where,
            _(
                "describes {n_parts:,} layers and experts, "
                "but the files contain only {n_weights:,} weights",
                n_parts=n_parts,
                n_weights=n_weights,
            ),
            _("is the download complete?"),
        )


# ── Weights ─────────────────────────────────────────────────────────────────────────────────────
def match_names(
    shards: Shards, family: Family, ignored: tuple[str, ...], expected: dict[str, Tensor]
) -> tuple[dict[str, str], dict[str, str]]:
    """The stored name of each expected weight, and the original of each copy of a tied weight."""
    names: dict[str, str] = {}
    copies: dict[str, str] = {}
    unknown: list[str] = []
    for stored in shards.entries:
        candidates = current_names(stored, family)
        full = next((name for name in candidates if name in expected and name not in names), None)
        originals = [
            original
            for name in candidates
            for original in family.tied.get(name, ())
            if original in expected
        ]
        if full is not None:
            names[full] = stored
        elif originals:
            copies[stored] = originals[0]
        elif not any(re.fullmatch(pattern, name) for pattern in ignored for name in candidates):
            unknown.append(stored)
    for copy, original in list(copies.items()):
        if original not in names:  # the file has only this copy of a tied weight
            names[original] = copy
            del copies[copy]
    check_stored_weights(shards, names, expected, unknown)
    return names, {copy: names[original] for copy, original in copies.items()}


def current_names(stored: str, family: Family) -> list[str]:
    """Possible names in the full model: old suffixes replaced, with the base model's prefix."""
    for old, new in family.aliases.items():
        if stored.endswith(old):
            stored = stored.removesuffix(old) + new
    return [stored, family.prefix + stored]


def check_stored_weights(
    shards: Shards, names: dict[str, str], expected: dict[str, Tensor], unknown: list[str]
) -> None:
    """Compare names, shapes and dtypes of the stored weights with the expected ones."""
    missing = [name for name in expected if name not in names]
    found = {name: shards.entries[stored] for name, stored in names.items()}
    shapes = [
        _(
            "{name}: {shape}, not {expected}",
            name=name,
            shape=entry.shape,
            expected=tuple(expected[name].shape),
        )
        for name, entry in found.items()
        if entry.shape != tuple(expected[name].shape)
    ]
    dtypes = [
        f"{name}: {entry.dtype}" for name, entry in found.items() if entry.dtype not in DTYPES
    ]
    refuse_mismatches(
        shards.folder,
        missing,
        unknown,
        shapes,
        dtypes,
        _("is the download complete, and does config.json belong to it?"),
    )


def reader(
    shards: Shards,
    names: dict[str, str],
    device: str | torch.device,
    dtype: torch.dtype | None,
    only_finite: bool,
) -> Callable[[str], Tensor]:
    """A function that reads a weight by its name, checks that it is finite, and converts it."""

    def read(name: str) -> Tensor:
        tensor = shards.read(names[name])
        # The extremes are NaN if any value is.
        if only_finite and not torch.stack(tensor.aminmax()).isfinite().all():
            count = int((~tensor.isfinite()).sum())
            raise QkvError(
                shards.folder,
                _("{name} contains {count} non-finite values", name=names[name], count=count),
                _("copy or download it again"),
            )
        return tensor.to(device, dtype or tensor.dtype)

    return read


def refuse_different_copies(shards: Shards, copies: dict[str, str]) -> None:
    """Raise an error if a stored copy of a tied weight differs from it."""
    for copy, original in copies.items():
        same = (
            shards.entries[copy].shape == shards.entries[original].shape
            and shards.entries[copy].dtype in DTYPES
        )
        if not same or not torch.equal(shards.read(copy), shards.read(original)):
            raise QkvError(
                shards.folder,
                _(
                    "{copy} and {original} differ, but config.json says they are tied",
                    copy=copy,
                    original=original,
                ),
                _('is "tie_word_embeddings" right?'),
            )


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
