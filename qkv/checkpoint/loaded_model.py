"""A loaded model with its tokenizers, special token ids, pooling, alignment head and metadata.

Reads and writes generation.json, pooling.json and alignment.json.
See docs/reference/files.md, "Model folder".
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from qkv.checkpoint.durable import json_bytes
from qkv.checkpoint.names import Fields
from qkv.checkpoint.shards import read_json, read_table
from qkv.errors import QkvError
from qkv.messages import _
from qkv.model.guided import AlignmentHead
from qkv.model.spec import Spec
from qkv.model.transformer import Transformer
from qkv.pydantic_errors import read_as
from qkv.text.special_tokens import NOT_STORED, SpecialTokenIds
from qkv.text.tokenizer import Tokenizer

__all__ = ["LoadedModel", "metadata_of"]

PoolingMode = Literal["cls", "mean", "max"]
GENERATION, POOLING = "generation.json", "pooling.json"
ALIGNMENT = "alignment.json"  # the cross-attention head trained by guided alignment


@dataclass(frozen=True)
class WeightsMetadata:
    """The weights of a folder: number of parameters, data type, bytes on disk, SHA-256."""

    parameters: int
    dtype: str
    bytes: int
    sha256: str | None = None  # None without a manifest
    family: str | None = None  # of a Hugging Face folder or an export: llama, gguf qwen2, ...


@dataclass(frozen=True)
class PoolingConfig:
    """Pooling of token vectors to a sentence vector, as in sentence-transformers' modules.json."""

    pooling: PoolingMode = "mean"
    normalize: bool = False
    max_len: int | None = None  # tokens with special tokens; None: the model's max_len


@dataclass(frozen=True)
class LoadedModel:
    """A model in eval mode with its tokenizers by name and the configuration of its folder."""

    model: Transformer
    tokenizers: dict[str, Tokenizer]
    metadata: WeightsMetadata
    generation: SpecialTokenIds = NOT_STORED
    pooling: PoolingConfig | None = None
    alignment: AlignmentHead | None = None

    def tokenizer(self, side: str) -> Tokenizer | None:
        """The tokenizer of the source or target side; both sides may share one."""
        return self.tokenizers.get("tokenizer") or self.tokenizers.get(side)


def metadata_of(
    model: Transformer, n_bytes: int = 0, sha256: str | None = None, family: str | None = None
) -> WeightsMetadata:
    """The metadata of a model whose weights take `n_bytes` on disk."""
    dtype = str(model.embed.weight.dtype).removeprefix("torch.")
    return WeightsMetadata(
        sum(weight.numel() for weight in model.parameters()), dtype, n_bytes, sha256, family
    )


def stored_files(
    generation: SpecialTokenIds = NOT_STORED,
    pooling: PoolingConfig | None = None,
    alignment: AlignmentHead | None = None,
) -> dict[str, bytes]:
    """The JSON files stored with a model; a default value needs no file."""
    files: Fields = {}
    if generation != NOT_STORED:
        ids = asdict(generation)
        files[GENERATION] = {name: id for name, id in ids.items() if id is not None}
    if pooling is not None:
        files[POOLING] = {
            "pooling": pooling.pooling,
            "normalised": pooling.normalize,  # the field name in files
            "max_len": pooling.max_len,
        }
    if alignment is not None:
        files[ALIGNMENT] = alignment._asdict()
    return {name: json_bytes(content) for name, content in files.items()}


def read_generation(path: Path) -> SpecialTokenIds:
    """Read generation.json, if it exists."""
    stored = read_table(path, {})
    return read_as(SpecialTokenIds, stored, path) if stored else NOT_STORED


def read_pooling(path: Path) -> PoolingConfig | None:
    """Read pooling.json, if it exists."""
    stored = read_table(path, {})
    stored |= {"normalize": stored.pop("normalised")} if "normalised" in stored else {}
    return read_as(PoolingConfig, stored, path) if stored else None


def read_stored(
    path_of: Callable[[str], Path], spec: Spec
) -> tuple[SpecialTokenIds, PoolingConfig | None, AlignmentHead | None]:
    """Read the JSON files stored with a model, where they exist."""
    alignment = path_of(ALIGNMENT)
    return (
        read_generation(path_of(GENERATION)),
        read_pooling(path_of(POOLING)),
        alignment_head(read_json(alignment, {}) or None, spec, alignment),
    )


def alignment_head(stored: Any, spec: Spec, where: object) -> AlignmentHead | None:
    """The head that alignment.json names; an error if the model has no such head."""
    if stored is None:
        return None
    layers = spec.decoder.each_layer() if spec.decoder is not None else []
    n_heads = [layer.cross.n_heads for layer in layers if layer.cross is not None]  # all or none
    match stored:
        case {"layer": int(layer), "head": int(head)}:
            if 0 <= layer < len(n_heads) and 0 <= head < n_heads[layer]:
                return AlignmentHead(layer, head)
    wrong = _("names no cross-attention head of this model: {stored}", stored=str(stored)[:80])
    raise QkvError(where, wrong, _("write a layer and a head, both from 0"))
