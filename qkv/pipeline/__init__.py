"""Pipelines from text to text or vectors: Translator, Generator and Embedder.

Names are imported on first use: folders exported to CTranslate2 load without importing torch. See
docs/guides/translation.md, docs/guides/generation.md and docs/guides/embeddings.md.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from qkv.generate.alignment import Link
    from qkv.generate.config import GenerationConfig, TranslationConfig
    from qkv.pipeline.embed_options import EmbedOptions
    from qkv.pipeline.embedder import Embedder
    from qkv.pipeline.generated_sequence import GeneratedSequence
    from qkv.pipeline.generator import Generator
    from qkv.pipeline.index import Hit, Index
    from qkv.pipeline.segments import Translation
    from qkv.pipeline.translator import Translator
    from qkv.pipeline.vectors import VectorWriter

__all__ = [
    "EmbedOptions",
    "Embedder",
    "GeneratedSequence",
    "GenerationConfig",
    "Generator",
    "Hit",
    "Index",
    "Link",
    "Translation",
    "TranslationConfig",
    "Translator",
    "VectorWriter",
]
MODULES = {
    "EmbedOptions": "qkv.pipeline.embed_options",
    "Embedder": "qkv.pipeline.embedder",
    "GeneratedSequence": "qkv.pipeline.generated_sequence",
    "GenerationConfig": "qkv.generate.config",
    "Generator": "qkv.pipeline.generator",
    "Hit": "qkv.pipeline.index",
    "Index": "qkv.pipeline.index",
    "Link": "qkv.generate.alignment",
    "Translation": "qkv.pipeline.segments",
    "TranslationConfig": "qkv.generate.config",
    "Translator": "qkv.pipeline.translator",
    "VectorWriter": "qkv.pipeline.vectors",
}


def __getattr__(name: str) -> Any:
    if name in MODULES:
        return getattr(import_module(MODULES[name]), name)
    raise AttributeError(f"module 'qkv.pipeline' has no attribute '{name}'")


def __dir__() -> list[str]:
    return __all__
