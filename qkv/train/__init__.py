"""Training: recipes and `run`, imported on first use.

Example:
    from qkv.train import TranslateRecipe, run

    translator = run(TranslateRecipe(steps=500), [("你好", "hello"), ...], out="runs/mine")
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from qkv.train.recipe import EmbedRecipe, GenerateRecipe, TranslateRecipe
    from qkv.train.report import TrainingStep
    from qkv.train.run_recipe import run

__all__ = ["EmbedRecipe", "GenerateRecipe", "TrainingStep", "TranslateRecipe", "run"]
MODULES = {"run": "qkv.train.run_recipe", "TrainingStep": "qkv.train.report"}


def __getattr__(name: str) -> Any:
    if name in __all__:
        return getattr(import_module(MODULES.get(name, "qkv.train.recipe")), name)
    raise AttributeError(f"module 'qkv.train' has no attribute '{name}'")


def __dir__() -> list[str]:
    return __all__
