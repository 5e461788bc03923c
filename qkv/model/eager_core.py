"""Swap SdpaCore for EagerCore in a context manager, so that attention weights can be recorded.

See docs/explanation/model.md, "Grouped-query attention (GQA)".
"""

from collections.abc import Collection, Iterator
from contextlib import contextmanager

from torch import nn

from qkv.model.attention import EagerCore, SdpaCore


def sdpa_cores(model: nn.Module) -> dict[str, SdpaCore]:
    """Every SdpaCore by its module path."""
    return {path: module for path, module in model.named_modules() if isinstance(module, SdpaCore)}


@contextmanager
def eager_attention(model: nn.Module, paths: Collection[str] | None = None) -> Iterator[None]:
    """Inside, the SdpaCores at `paths` (None: all) are EagerCores; afterwards they are restored."""
    every = sdpa_cores(model).items()
    cores = {path: core for path, core in every if paths is None or path in paths}
    try:
        for path, core in cores.items():
            set_submodule(model, path, EagerCore(core.dropout).train(core.training))
        yield
    finally:
        for path, core in cores.items():
            set_submodule(model, path, core)


def set_submodule(model: nn.Module, path: str, module: nn.Module) -> None:
    """Replace the submodule at this path."""
    parent, _, name = path.rpartition(".")
    setattr(model.get_submodule(parent), name, module)
