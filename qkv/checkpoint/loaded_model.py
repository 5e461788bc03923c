"""A loaded model with its tokenizers, special token ids, pooling, alignment head and metadata.

Reads and writes generation.json, pooling.json and alignment.json.
See docs/files.md, "Model folder".
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from qkv.checkpoint.shards import read_json, read_table
from qkv.model.guided import AlignmentHead, alignment_head
from qkv.model.spec import Spec
from qkv.model.transformer import Transformer
from qkv.pydantic_errors import read_as
from qkv.text.special_tokens import NOT_STORED, SpecialTokenIds
from qkv.text.tokenizer import Tokenizer

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
    ids = {"start_id": generation.start_id, "pad_id": generation.pad_id}
    files: dict[str, Any] = {}
    if generation != NOT_STORED:
        files[GENERATION] = {name: id for name, id in ids.items() if id is not None} | {
            "eos_ids": generation.eos_ids
        }
    if pooling is not None:
        files[POOLING] = {
            "pooling": pooling.pooling,
            "normalised": pooling.normalize,  # the field name in files
            "max_len": pooling.max_len,
        }
    if alignment is not None:
        files[ALIGNMENT] = alignment._asdict()
    return {
        name: (json.dumps(content, indent=2) + "\n").encode() for name, content in files.items()
    }


def read_generation(path: Path) -> SpecialTokenIds:
    """Read generation.json, if it exists."""
    return read_as(SpecialTokenIds, read_table(path.parent, path.name, {}), path)


def read_pooling(path: Path) -> PoolingConfig | None:
    """Read pooling.json, if it exists."""
    stored = read_table(path.parent, path.name, {})
    stored |= {"normalize": stored.pop("normalised")} if "normalised" in stored else {}
    return read_as(PoolingConfig, stored, path) if stored else None


def read_alignment(path: Path, spec: Spec) -> AlignmentHead | None:
    """Read alignment.json, if it exists: a cross-attention head of this model."""
    return alignment_head(read_json(path.parent, path.name, {}) or None, spec, path)
