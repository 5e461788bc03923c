"""Pipelines from text to text or vectors: Translator, Generator and Embedder.

Folders exported to CTranslate2 load without importing torch. See docs/translation.md,
docs/generation.md and docs/embedding.md.
"""

from pathlib import Path
from typing import Any

from qkv.pipeline.generator import Generator
from qkv.pipeline.translator import Translator

__all__ = ["Generator", "Translator", "load"]


def load(folder: str | Path, device: str = "cpu") -> Any:
    """Load the pipeline of a model folder.

    Args:
        folder: A folder written by qkv, Hugging Face or `qkv export --to ctranslate2`.
        device: A torch device, such as "cpu" or "cuda".

    Returns:
        A Translator for an encoder-decoder model, a Generator for a decoder-only model, an
        Embedder for an encoder-only model.
    """
    if (Path(folder) / "qkv.json").is_file():
        return _load_ctranslate2(Path(folder), device)
    from qkv.checkpoint.load import load_folder
    from qkv.pipeline.embedder import Embedder

    loaded = load_folder(folder, device)
    spec = loaded.model.spec
    if spec.decoder is None:
        return Embedder.of(loaded, folder)
    if spec.encoder is None:
        return Generator.of(loaded, folder)
    return Translator.of(loaded, folder)


def _load_ctranslate2(folder: Path, device: str) -> Translator | Generator:
    from qkv.checkpoint.ctranslate2.folder import read_metadata

    kind = Translator if read_metadata(folder)["kind"] == "translator" else Generator
    return kind.load_ctranslate2(folder, device)
