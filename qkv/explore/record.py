"""Recording: what any step of a pass gave, by its module path.

In: a model and patterns of module paths. Out: the outputs of those modules while the block lasts; the model knows
nothing of it and is given back as it was. Told in docs/explore.md, "Recording".
"""

import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from qkv.errors import QkvError, near_miss
from qkv.messages import _
from qkv.model.attention import ExplainedCore
from qkv.model.explained import explained, fused_cores

if TYPE_CHECKING:
    from qkv.explore.picture import Picture

INSIDE_A_CORE = tuple(
    name for name, _ in ExplainedCore().named_children()
)  # q, k, v, scores, masked, weights, mixed


class Steps(Mapping[str, Any]):
    """Module path -> what it gave in the latest pass; `all(path)` has every pass, a decoding step being one."""

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
        """What the module gave, pass after pass."""
        if path in self._passes:
            return self._passes[path]
        if path in self.paths:
            raise QkvError(
                path, _("was chosen, but no pass has come by"), _("run the model inside the block")
            )
        raise QkvError(path, _("was not recorded"), near_miss(path, self.paths))

    def show(
        self,
        rows: Sequence[str] | None = None,
        columns: Sequence[str] | None = None,
        path: str = "",
    ) -> "Picture":
        """A picture of attention weights, which a notebook draws: those at `path`, else the last that were recorded."""
        from qkv.explore.picture import picture_of  # matplotlib is slow to come

        shown = path or next(
            (one for one in reversed(self.paths) if one.endswith(".weights") and one in self), ""
        )
        if not shown:
            raise QkvError(
                "show",
                _("no attention weights were recorded"),
                _('record(model, "*.core.weights")'),
            )
        return picture_of(self[shown][0], rows, columns, shown)

    def listener(self, path: str) -> Callable[..., None]:
        """A forward hook that keeps what its module gives and changes nothing."""

        def keep(module: nn.Module, given: Any, output: Any) -> None:
            self._passes.setdefault(path, []).append(detached(output))

        return keep


@contextmanager
def record(model: nn.Module, *patterns: str) -> Iterator[Steps]:
    """Outputs of all modules whose path fits a pattern (`*` stands for any text), detached, while the block lasts.

    with record(model, "decoder.layers.*.attn.branch.core.weights") as steps:
        model.decode(ids)
    steps["decoder.layers.0.attn.branch.core.weights"]  # (batch, heads, query, key)
    """
    plain = getattr(model, "_orig_mod", model)  # the model inside a torch.compile wrapper
    paths = chosen_paths(plain, patterns)
    opened = {path.rpartition(".")[0] for path in paths} & fused_cores(plain).keys()
    steps = Steps(paths)
    with ExitStack() as put_back:
        put_back.enter_context(uncompiled())
        put_back.enter_context(explained(plain, opened))
        for path in paths:
            handle = plain.get_submodule(path).register_forward_hook(steps.listener(path))
            put_back.callback(handle.remove)
        yield steps


def chosen_paths(model: nn.Module, patterns: tuple[str, ...]) -> list[str]:
    """The module paths that fit a pattern, in the model's order; a pattern that fits none is a mistake."""
    known = known_paths(model)
    for pattern in patterns:
        if not any(fnmatchcase(path, pattern) for path in known):
            raise QkvError(
                pattern, _("no step of this model has such a name"), likely(pattern, known)
            )
    return [path for path in known if any(fnmatchcase(path, pattern) for pattern in patterns)]


def known_paths(model: nn.Module) -> list[str]:
    """Every step that can be recorded: all modules, and what a fused core would show if it were explained."""
    cores, known = fused_cores(model), []
    for path, _module in model.named_modules():
        inside = [f"{path}.{step}" for step in INSIDE_A_CORE] if path in cores else []
        known += [path, *inside]
    return [path for path in known if path]


def likely(pattern: str, known: list[str]) -> str:
    """The near miss among all paths, layer numbers written as `*`; if there is none, the first parts to choose from."""
    general = list(dict.fromkeys(re.sub(r"\b\d+\b", "*", path) for path in known))
    if get_close_matches(pattern, general, 1, 0.6):
        return near_miss(pattern, general)
    return near_miss(pattern, dict.fromkeys(path.split(".")[0] for path in known))


@contextmanager
def uncompiled() -> Iterator[None]:
    """Compiled parts run their plain code inside the block: a compiled one does not ask for new hooks."""
    if (
        "torch._dynamo" not in sys.modules
    ):  # nothing was ever compiled, and importing it takes seconds
        yield
        return
    with torch.compiler.set_stance("force_eager"):
        yield


def detached(output: Any) -> Any:
    """The output without its history; several tensors are a tuple."""
    if isinstance(output, Tensor):
        return output.detach()
    return tuple(detached(one) for one in output) if isinstance(output, tuple | list) else output
