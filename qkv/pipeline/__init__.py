"""Model folder -> Translator (encoder and decoder), Generator (decoder) or Embedder (encoder).

Torch is imported when a folder needs it; folders exported to CTranslate2 do not. Explained in
docs/translation.md, docs/generation.md and docs/embedding.md.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from qkv.pipeline.generator import Generator
from qkv.pipeline.translator import Translator

if TYPE_CHECKING:
    from qkv.pipeline.embedder import Embedder

__all__ = ["Embedder", "Generator", "Translator", "load"]


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
    from qkv.checkpoint.ctranslate2.folder import read_json

    facts = read_json(folder / "qkv.json")
    kind = Generator if isinstance(facts, dict) and facts.get("kind") == "generator" else Translator
    return kind.load_ctranslate2(folder, device)


def __getattr__(name: str) -> Any:
    """The embedder needs torch: it is imported when it is first asked for."""
    if name == "Embedder":
        from qkv.pipeline.embedder import Embedder

        return Embedder
    raise AttributeError(f"module 'qkv.pipeline' has no attribute '{name}'")
