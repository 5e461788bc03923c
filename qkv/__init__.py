"""qkv: a Transformer library for translation, language models and sentence embeddings.

import qkv
translator = qkv.load("runs/zh-en")
translator(["机器学习很有趣"])  # ['machine learning is interesting']
"""

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from qkv.pipeline.embedder import Embedder
    from qkv.pipeline.generator import Generator
    from qkv.pipeline.translator import Translator

__all__ = ["Embedder", "Generator", "Translator", "__version__", "load"]
__version__ = "0.1.0"


def load(folder: str | Path, device: str = "cpu") -> Any:
    """Load the pipeline of a model folder.

    Args:
        folder: A folder written by qkv, Hugging Face or `qkv export --to ctranslate2`; the latter
            is loaded without importing torch.
        device: A torch device, such as "cpu" or "cuda".

    Returns:
        A Translator for an encoder-decoder model, a Generator for a decoder-only model, an
        Embedder for an encoder-only model.
    """
    if (Path(folder) / "qkv.json").is_file():
        from qkv.checkpoint.ctranslate2.folder import read_metadata

        is_translator = read_metadata(Path(folder))["kind"] == "translator"
        kind = __getattr__("Translator" if is_translator else "Generator")
        return kind.load_ctranslate2(folder, device)
    from qkv.checkpoint.load import load_folder

    loaded = load_folder(folder, device)
    spec = loaded.model.spec
    name = "Embedder" if spec.decoder is None else "Translator" if spec.encoder else "Generator"
    return __getattr__(name).of(loaded, folder)


def __getattr__(name: str) -> Any:
    """Import classes that need torch on first use, so that `import qkv` is fast."""
    if name in ("Embedder", "Generator", "Translator"):
        return getattr(import_module(f"qkv.pipeline.{name.lower()}"), name)
    raise AttributeError(f"module 'qkv' has no attribute '{name}'")
