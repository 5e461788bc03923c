"""A device that this machine does not have: tensors on it call themselves `meta`, but they hold real numbers.

Inside `Elsewhere()` the device exists. Mixing its tensors with those of the CPU is refused as a GPU would refuse it, and
numpy cannot look into them: code that forgets to move a tensor is found without a GPU.
"""

from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

NAME = "meta"
aten = torch.ops.aten
MOVES = {aten._to_copy.default, aten.copy_.default}
BY_PLACES = {
    aten.index.Tensor,
    aten.index_put.default,
    aten.index_put_.default,
    aten._index_put_impl_.default,
}


class Away(torch.Tensor):
    """A tensor on that device; `inner` has its numbers."""

    @staticmethod
    def __new__(cls, inner: torch.Tensor):
        return torch.Tensor._make_wrapper_subclass(
            cls,
            inner.shape,
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            device=NAME,
        )

    def __init__(self, inner: torch.Tensor):
        self.inner = inner

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, operation, types, args=(), kwargs=None):
        return performed(operation, args, kwargs or {})

    # What torch does below the dispatcher, where numbers that call themselves meta have none:
    @property
    def data(self):
        return Away(self.inner)

    @data.setter
    def data(self, other):
        self.inner = other.inner

    def tolist(self):
        return self.inner.tolist()

    def __getitem__(self, places):
        return super().__getitem__(as_tensors(places))

    def __setitem__(self, places, value):
        new = (
            value
            if isinstance(value, torch.Tensor)
            else torch.tensor(value, dtype=self.dtype).to(NAME)
        )
        super().__setitem__(as_tensors(places), new)


class Elsewhere(TorchDispatchMode):
    def __enter__(self):
        self.factories = Factories()
        self.factories.__enter__()
        return super().__enter__()

    def __exit__(self, *raised):
        super().__exit__(*raised)
        self.factories.__exit__(*raised)

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        return performed(operation, args, kwargs or {})


class Factories(TorchFunctionMode):
    """torch.tensor puts numbers in place below the dispatcher: they are made here and moved."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if function in (torch.tensor, torch.as_tensor) and is_away(kwargs.get("device")):
            return function(*args, **{**kwargs, "device": "cpu"}).to(NAME)
        if function is torch.Tensor.new_tensor and isinstance(args[0], Away):
            return torch.tensor(args[1], dtype=kwargs.get("dtype", args[0].dtype)).to(NAME)
        return function(*args, **kwargs)


def performed(operation: Any, args: tuple, kwargs: dict) -> Any:
    """The operation with the numbers inside, if all of them are on one device; its results are where they belong."""
    flat, tree = tree_flatten((args, kwargs))
    away = [one for one in flat if isinstance(one, Away)]
    here = [
        one
        for one in flat
        if isinstance(one, torch.Tensor) and not isinstance(one, Away) and one.dim() > 0
    ]
    if operation in BY_PLACES:  # places may be told by a tensor of the CPU
        here = [one for one in here if not any(one is places for places in args[1])]
    if away and here and operation not in MOVES:
        raise RuntimeError(
            f"{operation}: tensors on two devices, of the CPU {[tuple(one.shape) for one in here]}"
        )
    inside = [
        one.inner if isinstance(one, Away) else torch.device("cpu") if is_away(one) else one
        for one in flat
    ]
    inner_args, inner_kwargs = tree_unflatten(inside, tree)
    result = operation(*inner_args, **inner_kwargs)
    if "out" in kwargs:
        return kwargs["out"]
    if operation._schema.is_mutable:
        return (
            args[0] if isinstance(args[0], torch.Tensor) else None
        )  # lists of tensors are changed and nothing is given
    to = kwargs.get("device")
    stays = is_away(to) if to is not None else bool(away)
    return (
        tree_map(lambda one: Away(one) if isinstance(one, torch.Tensor) else one, result)
        if stays
        else result
    )


def is_away(device: Any) -> bool:
    return isinstance(device, (str, torch.device)) and str(device) == NAME


def as_tensors(places: Any) -> Any:
    """Lists of places as tensors."""
    if isinstance(places, tuple):
        return tuple(map(as_tensors, places))
    return torch.tensor(places) if isinstance(places, list) else places
