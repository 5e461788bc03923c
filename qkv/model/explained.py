"""Attention step by step for a moment: the fused cores step aside, and come back as they were.

In: a model. Out: the same model, whose chosen cores show scores, weights and mixtures while the block lasts.
Told in docs/model.md, "Attention".
"""

from collections.abc import Collection, Iterator
from contextlib import contextmanager

from torch import nn

from qkv.model.attention import ExplainedCore, FusedCore


def fused_cores(model: nn.Module) -> dict[str, nn.Module]:
    """Every fused core by its module path."""
    return {path: module for path, module in model.named_modules() if isinstance(module, FusedCore)}


@contextmanager
def explained(model: nn.Module, paths: Collection[str] | None = None) -> Iterator[None]:
    """The fused cores at `paths` (None: all) are explained ones inside the block; the very same ones are put back."""
    cores = {path: core for path, core in fused_cores(model).items() if paths is None or path in paths}
    try:
        for path, core in cores.items():
            put(model, path, ExplainedCore().train(core.training))
        yield
    finally:
        for path, core in cores.items():
            put(model, path, core)


def put(model: nn.Module, path: str, module: nn.Module) -> None:
    """This module stands at this path."""
    parent, _, name = path.rpartition(".")
    setattr(model.get_submodule(parent), name, module)
