"""Recording: outputs of modules by module path during a forward pass.

Hooks and attention cores are restored afterwards. See docs/guides/inspect.md.
"""

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from difflib import get_close_matches
from fnmatch import fnmatchcase
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from qkv.errors import QkvError, near_miss
from qkv.messages import _
from qkv.model.attention import EagerCore
from qkv.model.eager_core import eager_attention, sdpa_cores

if TYPE_CHECKING:
    from qkv.explore.figures import Picture

__all__ = ["record"]

CORE_STEPS = tuple(
    name for name, _ in EagerCore().named_children()
)  # q, k, v, scores, masked, weights, mixed
INPUT = ".input"  # after a module path: the input of the module instead of its output


class Steps(Mapping[str, Any]):
    """Module path -> output of the latest forward pass; `all(path)`: outputs of every pass."""

    def __init__(self, paths: list[str]):
        self.paths = paths
        self._passes: dict[str, list[Any]] = {}

    def __getitem__(self, path: str) -> Any:
        return self.all(path)[-1]

    def __iter__(self) -> Iterator[str]:
        return iter(path for path in self.paths if path in self._passes)

    def __len__(self) -> int:
        return len(self._passes)

    def __contains__(self, path: object) -> bool:
        return path in self._passes

    def all(self, path: str) -> list[Any]:
        """The outputs of a module, one per forward pass (a decoding step is one pass)."""
        if path in self._passes:
            return self._passes[path]
        if path in self.paths:
            raise QkvError(
                path,
                _("was selected, but no forward pass has run"),
                _("run the model inside the block"),
            )
        raise QkvError(path, _("was not recorded"), near_miss(path, self.paths))

    def show(
        self,
        rows: Sequence[str] | None = None,
        columns: Sequence[str] | None = None,
        path: str = "",
    ) -> "Picture":
        """A picture of attention weights for a notebook: those at `path`, or the last recorded."""
        from qkv.explore.figures import picture_of  # importing matplotlib is slow

        recorded = [known for known in self if known.endswith(".weights")]
        path = path or next(reversed(recorded), "")
        if not path:
            raise QkvError(
                "show",
                _("no attention weights were recorded"),
                _('record(model, "*.core.weights")'),
            )
        return picture_of(self[path][0], rows, columns, path)

    def keep(self, path: str, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        """Forward hook, once the path is given: keep the module's output or its first input."""
        kept = next(iter((*args, *kwargs.values())), None) if path.endswith(INPUT) else output
        self._passes.setdefault(path, []).append(detached(kept))


@contextmanager
def record(model: nn.Module, *patterns: str) -> Iterator[Steps]:
    """Record the detached outputs of all modules whose path matches a pattern (`*`: any text).

    A pattern that ends with ".input" records the first input of the matching modules.

    with record(model, "decoder.layers.*.attn.branch.core.weights") as steps:
        model.decode(ids)
    steps["decoder.layers.0.attn.branch.core.weights"]  # (batch, heads, query, key)
    """
    plain = getattr(model, "_orig_mod", model)  # the model inside a torch.compile wrapper
    paths = matching_paths(plain, patterns)
    modules = {path: path.removesuffix(INPUT) for path in paths}
    cores = {path.rpartition(".")[0] for path in modules.values()} & sdpa_cores(plain).keys()
    steps = Steps(paths)
    with ExitStack() as restore:
        restore.enter_context(uncompiled())
        restore.enter_context(eager_attention(plain, cores))
        for path, module in modules.items():
            hook, target = partial(steps.keep, path), plain.get_submodule(module)
            restore.callback(target.register_forward_hook(hook, with_kwargs=True).remove)
        yield steps


def matching_paths(model: nn.Module, patterns: tuple[str, ...]) -> list[str]:
    """The module paths that match a pattern, in the model's order; no match is an error."""
    known = known_paths(model)
    if any(pattern.endswith(INPUT) for pattern in patterns):
        known = [name for path in known for name in (path, path + INPUT)]
    for pattern in patterns:
        if not any(matches(path, pattern) for path in known):
            raise QkvError(
                pattern, _("no module of this model matches"), suggestion(pattern, known)
            )
    return [path for path in known if any(matches(path, pattern) for pattern in patterns)]


def matches(path: str, pattern: str) -> bool:
    """Whether a pattern selects a path; it selects inputs only if it ends with ".input"."""
    return path.endswith(INPUT) == pattern.endswith(INPUT) and fnmatchcase(path, pattern)


def known_paths(model: nn.Module) -> list[str]:
    """All paths that can be recorded: modules, and the steps of EagerCore inside each SdpaCore."""
    cores, known = sdpa_cores(model), []
    for path, _module in model.named_modules():
        inside = [f"{path}.{step}" for step in CORE_STEPS] if path in cores else []
        known += [path, *inside]
    return [path for path in known if path]


def suggestion(pattern: str, known: list[str]) -> str:
    """The nearest path with layer numbers as `*`, or else the top-level modules."""
    general = list(dict.fromkeys(re.sub(r"\b\d+\b", "*", path) for path in known))
    close = get_close_matches(pattern, general, 1, 0.6)
    return near_miss(pattern, close or dict.fromkeys(path.split(".")[0] for path in known))


def uncompiled() -> AbstractContextManager[Any]:
    """Run compiled modules eagerly inside the block, because compiled code ignores new hooks."""
    if "torch._dynamo" not in sys.modules:  # nothing is compiled, and the import takes seconds
        return nullcontext()
    return torch.compiler.set_stance("force_eager")


def detached(output: Any) -> Any:
    """The output without its autograd graph; several tensors are a tuple."""
    if isinstance(output, Tensor):
        return output.detach()
    return tuple(detached(item) for item in output) if isinstance(output, tuple | list) else output
