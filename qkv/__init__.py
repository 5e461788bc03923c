"""qkv: a Transformer library for translation, language models and sentence embeddings.

import qkv
translator = qkv.load("runs/zh-en")
translator(["机器学习很有趣"])  # ['machine learning is interesting']
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from qkv.pipeline import Generator, Translator, load
    from qkv.pipeline.embedder import Embedder

__all__ = ["Embedder", "Generator", "Translator", "__version__", "load"]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """Import classes that need torch on first use, so that `import qkv` is fast."""
    if name in __all__:
        module = "qkv.pipeline.embedder" if name == "Embedder" else "qkv.pipeline"
        return getattr(import_module(module), name)
    raise AttributeError(f"module 'qkv' has no attribute '{name}'")
