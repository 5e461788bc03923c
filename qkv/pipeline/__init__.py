"""Model folder -> Translator (encoder and decoder), Generator (decoder) or Embedder (encoder).

Torch is imported when a folder needs it; folders exported to CTranslate2 do not. Explained in
docs/translation.md, docs/generation.md and docs/embedding.md.
"""

from pathlib import Path
from typing import Any

from qkv.pipeline.generator import Generator
from qkv.pipeline.translator import Translator

__all__ = ["Generator", "Translator", "load"]


def load(folder: str | Path, device: str = "cpu") -> Any:
    """What a model folder holds: the stacks of its model decide the class."""
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
    from qkv.checkpoint.ctranslate2.folder import read_facts

    kind = Translator if read_facts(folder)["kind"] == "translator" else Generator
    return kind.load_ctranslate2(folder, device)
