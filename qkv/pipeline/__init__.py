"""Text in, text or vectors out: what a model folder is for decides which of the three it gives.

In: a folder. Out: a Translator (encoder and decoder), a Generator (decoder alone) or an Embedder (encoder alone).
Told in docs/translation.md, docs/generation.md and docs/embedding.md.
"""

from pathlib import Path
from typing import Any

from qkv.checkpoint.load import check_device, load_folder
from qkv.pipeline.embedder import Embedder
from qkv.pipeline.generator import Generator
from qkv.pipeline.translator import Translator

__all__ = ["Embedder", "Generator", "Translator", "check_device", "load"]


def load(folder: str | Path, device: str = "cpu") -> Any:
    """Which stacks are present is what the model is for."""
    loaded = load_folder(folder, device)
    spec = loaded.model.spec
    if spec.decoder is None:
        return Embedder.of(loaded, folder)
    if spec.encoder is None:
        return Generator.of(loaded, folder)
    return Translator.of(loaded, folder)
