"""What a model folder holds beside the weights, typed: special token ids, pooling, alignment head, weights metadata.

In: generation.json, pooling.json and alignment.json of one of our folders. Out: the fields of a LoadedModel, and the
same files written. Explained in docs/files.md, "A model folder".
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

Mode = Literal["cls", "mean", "max"]  # of pooling
GENERATION, POOLING = "generation.json", "pooling.json"
ALIGNMENT = "alignment.json"  # the cross-attention head trained by guided alignment


@dataclass(frozen=True)
class WeightsMetadata:
    """The weights of a folder: number of parameters, data type, bytes on disk, SHA-256 (None without a manifest)."""

    parameters: int
    dtype: str
    bytes: int
    sha256: str | None = None
    family: str | None = None  # of a Hugging Face folder or an export: llama, gguf qwen2, ...


@dataclass(frozen=True)
class PoolingConfig:
    """How token vectors become a sentence vector, as in sentence-transformers' modules.json."""

    pooling: Mode = "mean"
    normalize: bool = False
    max_len: int | None = (
        None  # tokens of a sentence, special tokens included; None: as many as the model reads
    )


@dataclass(frozen=True)
class LoadedModel:
    """A model in eval mode, its tokenizers by name, and what its folder says about them."""

    model: Transformer
    tokenizers: dict[str, Tokenizer]
    metadata: WeightsMetadata
    generation: SpecialTokenIds = NOT_STORED
    pooling: PoolingConfig | None = None
    alignment: AlignmentHead | None = None

    def tokenizer(self, side: str) -> Tokenizer | None:
        """The tokenizer of the source or target side; one tokenizer may serve both."""
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
    """The JSON files of what is stored beside a model; what is not stored has none."""
    ids = {"start_id": generation.start_id, "pad_id": generation.pad_id}
    files: dict[str, Any] = {}
    if generation != NOT_STORED:
        files[GENERATION] = {name: id for name, id in ids.items() if id is not None} | {
            "eos_ids": generation.eos_ids
        }
    if pooling is not None:
        files[POOLING] = {
            "pooling": pooling.pooling,
            "normalised": pooling.normalize,
            "max_len": pooling.max_len,
        }
    if alignment is not None:
        files[ALIGNMENT] = alignment._asdict()
    return {
        name: (json.dumps(content, indent=2) + "\n").encode() for name, content in files.items()
    }


def read_generation(path: Path) -> SpecialTokenIds:
    """generation.json, if it is there."""
    return read_as(SpecialTokenIds, read_table(path.parent, path.name, {}), path)


def read_pooling(path: Path) -> PoolingConfig | None:
    """pooling.json, if it is there."""
    stored = read_table(path.parent, path.name, {})
    stored |= {"normalize": stored.pop("normalised")} if "normalised" in stored else {}
    return read_as(PoolingConfig, stored, path) if stored else None


def read_alignment(path: Path, spec: Spec) -> AlignmentHead | None:
    """alignment.json, if it is there: a cross-attention head that the model has."""
    return alignment_head(read_json(path.parent, path.name, {}) or None, spec, path)
