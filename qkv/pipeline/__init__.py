"""Pipelines from text to text or vectors: Translator, Generator and Embedder.

Folders exported to CTranslate2 load without importing torch. See docs/guides/translation.md,
docs/guides/generation.md and docs/guides/embeddings.md.
"""

from qkv.pipeline.generator import Generator
from qkv.pipeline.translator import Translator

__all__ = ["Generator", "Translator"]
