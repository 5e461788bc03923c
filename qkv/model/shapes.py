"""Shapes of weights and activations, layer by layer, without memory for either.

In: a spec, a batch size and a length. Out: for each module of one pass its output and its weights. The model is built and
run on the meta device, with attention step by step, so these are the shapes of the modules themselves.
Told in docs/model.md, "Shapes".
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from qkv.model.experts import ExpertFeedForward
from qkv.model.explained import explained
from qkv.model.spec import Spec, Stack
from qkv.model.transformer import Transformer

Shape = tuple[int, ...]


@dataclass(frozen=True)
class ModuleShapes:
    """One module: its path in the model, how many layers have it alike, its output and its weights."""

    name: str
    kind: str
    repeat: int
    activation: Shape | None  # None: not a single tensor, or decided by the routing of experts
    weights: dict[str, Shape]


def shapes_of(spec: Spec, batch: int, length: int) -> list[ModuleShapes]:
    """Every module that computes or holds weights, in the order of the model; of layers alike, the first one."""
    single = replace(spec, encoder=_single(spec.encoder), decoder=_single(spec.decoder))
    found: dict[str, Shape] = {}
    with torch.device("meta"), torch.no_grad():
        model = Transformer(single).eval()
        with explained(model):
            for name, module in model.named_modules():
                module.register_forward_hook(partial(_note, found, name))
                if isinstance(module, ExpertFeedForward):
                    module.forward = partial(_routed, module)  # type: ignore[method-assign]
            _pass(model, torch.zeros(batch, length, dtype=torch.long))
            return list(_rows(model, spec, found))


def _single(stack: Stack | None) -> Stack | None:
    """The stack without repeated layers."""
    return stack and replace(stack, layers=tuple(replace(layer, repeat=1) for layer in stack.layers))


def _note(found: dict[str, Shape], name: str, module: nn.Module, inputs: Any, output: Any) -> None:
    if isinstance(output, Tensor):
        found[name] = tuple(output.shape)


def _routed(module: ExpertFeedForward, x: Tensor) -> Tensor:
    """A pass without the routed experts: how many tokens each of them gets is known only with real numbers."""
    module.router(x.flatten(0, 1))
    return x if module.shared is None else x + module.shared(x)


def _pass(model: Transformer, ids: Tensor) -> None:
    memory = model.encode(ids) if model.encoder is not None else None
    if model.decoder is not None:
        stream = model.decode(ids, memory)
    else:
        assert memory is not None
        stream = memory.states
    if model.lm_head is not None:
        model.logits(stream)


def _rows(model: Transformer, spec: Spec, found: dict[str, Shape]) -> Iterator[ModuleShapes]:
    for name, module in model.named_modules():
        weights = {key: tuple(weight.shape) for key, weight in module.named_parameters(recurse=False)}
        if name in found or weights:
            path, repeat = _place(name, spec)
            yield ModuleShapes(path, type(module).__name__, repeat, found.get(name), weights)


def _place(name: str, spec: Spec) -> tuple[str, int]:
    """The path in the whole model of a module of the model without repeats, and how often it is there."""
    side, _, rest = name.partition(".layers.")
    if not rest:
        return name, 1
    number, dot, inside = rest.partition(".")
    layers = getattr(spec, side).layers
    index = sum(layer.repeat for layer in layers[: int(number)])
    return f"{side}.layers.{index}{dot}{inside}", layers[int(number)].repeat
