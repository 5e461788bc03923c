"""Shapes of weights and activations, module by module, computed on the meta device.

The model runs with EagerCore, so attention scores and weights are listed too.
See docs/explanation/model.md, "Shapes".
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from qkv.model.eager_core import eager_attention
from qkv.model.experts import ExpertFeedForward
from qkv.model.spec import Spec, Stack
from qkv.model.transformer import Transformer

__all__ = ["shapes_of"]

Shape = tuple[int, ...]


@dataclass(frozen=True)
class ModuleShapes:
    """One module: its path, the number of identical layers that have it, output and weights."""

    name: str
    kind: str
    repeat: int
    activation: Shape | None  # None: not a single tensor, or dependent on the routing of experts
    weights: dict[str, Shape]


def shapes_of(spec: Spec, batch: int, length: int) -> list[ModuleShapes]:
    """Every module with an output or weights, in model order; of identical layers, the first."""
    single = replace(spec, encoder=_single(spec.encoder), decoder=_single(spec.decoder))
    activations: dict[nn.Module, Shape] = {}
    with torch.device("meta"), torch.no_grad():
        model = Transformer(single).eval()
        with eager_attention(model):
            for module in model.modules():
                module.register_forward_hook(partial(_record_shape, activations))
                if isinstance(module, ExpertFeedForward):
                    run = partial(_without_routing, module)
                    module.forward = run  # type: ignore[method-assign]
            _run(model, torch.zeros(batch, length, dtype=torch.long))
            return list(_rows(model, spec, activations))


def _single(stack: Stack | None) -> Stack | None:
    """The stack without repeated layers."""
    if stack is None:
        return None
    return replace(stack, layers=tuple(replace(layer, repeat=1) for layer in stack.layers))


def _record_shape(
    activations: dict[nn.Module, Shape], module: nn.Module, inputs: Any, output: Any
) -> None:
    if isinstance(output, Tensor):
        activations[module] = tuple(output.shape)


def _without_routing(module: ExpertFeedForward, x: Tensor) -> Tensor:
    """A pass without the routed experts: their token counts depend on the values of x."""
    module.router(x.flatten(0, 1))
    return x if module.shared is None else x + module.shared(x)


def _run(model: Transformer, ids: Tensor) -> None:
    memory = model.encode(ids) if model.encoder is not None else None
    if model.decoder is not None:
        hidden = model.decode(ids, memory)
    else:
        assert memory is not None
        hidden = memory.states
    if model.lm_head is not None:
        model.logits(hidden)


def _rows(
    model: Transformer, spec: Spec, activations: dict[nn.Module, Shape]
) -> Iterator[ModuleShapes]:
    for name, module in model.named_modules():
        parameters = module.named_parameters(recurse=False)
        weights = {key: tuple(weight.shape) for key, weight in parameters}
        if module in activations or weights:
            path, repeat = _full_path(name, spec)
            kind = type(module).__name__
            yield ModuleShapes(path, kind, repeat, activations.get(module), weights)


def _full_path(name: str, spec: Spec) -> tuple[str, int]:
    """The path in the full model of a module of the model without repeats, and its repeat."""
    side, _, rest = name.partition(".layers.")
    if not rest:
        return name, 1
    number, dot, inside = rest.partition(".")
    layers = getattr(spec, side).layers
    index = sum(layer.repeat for layer in layers[: int(number)])
    return f"{side}.layers.{index}{dot}{inside}", layers[int(number)].repeat
