"""Pipelines from text to text or vectors: Translator, Generator and Embedder.

Folders exported to CTranslate2 load without importing torch. See docs/translation.md,
docs/generation.md and docs/embedding.md.
"""

from qkv.pipeline.generator import Generator
from qkv.pipeline.translator import Translator

__all__ = ["Generator", "Translator"]
