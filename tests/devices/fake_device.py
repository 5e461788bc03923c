"""A fake device: its tensors have the device type `meta`, but hold values on the CPU.

Inside `FakeDevice()` the device exists. Mixing its tensors with CPU tensors raises an error as on a
GPU, and numpy cannot read them: code that does not move a tensor is found without a GPU.
"""

from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

NAME = "meta"
aten = torch.ops.aten
COPY_OPERATIONS = {aten._to_copy.default, aten.copy_.default}
INDEXING_OPERATIONS = {
    aten.index.Tensor,
    aten.index_put.default,
    aten.index_put_.default,
    aten._index_put_impl_.default,
}


class FakeTensor(torch.Tensor):
    """A tensor on the fake device; `inner` has its values."""

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
        return run_operation(operation, args, kwargs or {})

    # Operations below the dispatcher, where a meta tensor has no values:
    @property
    def data(self):
        return FakeTensor(self.inner)

    @data.setter
    def data(self, other):
        self.inner = other.inner

    def tolist(self):
        return self.inner.tolist()

    def __getitem__(self, index):
        return super().__getitem__(as_tensors(index))

    def __setitem__(self, index, value):
        new = (
            value
            if isinstance(value, torch.Tensor)
            else torch.tensor(value, dtype=self.dtype).to(NAME)
        )
        super().__setitem__(as_tensors(index), new)


class FakeDevice(TorchDispatchMode):
    def __enter__(self):
        self.factories = Factories()
        self.factories.__enter__()
        return super().__enter__()

    def __exit__(self, *exception):
        super().__exit__(*exception)
        self.factories.__exit__(*exception)

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        return run_operation(operation, args, kwargs or {})


class Factories(TorchFunctionMode):
    """torch.tensor writes values below the dispatcher: create on the CPU, then move."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if function in (torch.tensor, torch.as_tensor) and is_fake_device(kwargs.get("device")):
            return function(*args, **{**kwargs, "device": "cpu"}).to(NAME)
        if function is torch.Tensor.new_tensor and isinstance(args[0], FakeTensor):
            return torch.tensor(args[1], dtype=kwargs.get("dtype", args[0].dtype)).to(NAME)
        return function(*args, **kwargs)


def run_operation(operation: Any, args: tuple, kwargs: dict) -> Any:
    """Run an operation on the inner tensors; raise if its tensors are on two devices."""
    flat, tree = tree_flatten((args, kwargs))
    fake = [value for value in flat if isinstance(value, FakeTensor)]
    on_cpu = [
        value
        for value in flat
        if isinstance(value, torch.Tensor) and not isinstance(value, FakeTensor) and value.dim() > 0
    ]
    if operation in INDEXING_OPERATIONS:  # a CPU tensor may be an index
        on_cpu = [value for value in on_cpu if not any(value is index for index in args[1])]
    if fake and on_cpu and operation not in COPY_OPERATIONS:
        raise RuntimeError(
            f"{operation}: tensors on two devices, on the CPU: "
            f"{[tuple(value.shape) for value in on_cpu]}"
        )
    inner_args, inner_kwargs = tree_unflatten(list(map(inner_value, flat)), tree)
    result = operation(*inner_args, **inner_kwargs)
    if "out" in kwargs:
        return kwargs["out"]
    if operation._schema.is_mutable:
        return args[0] if isinstance(args[0], torch.Tensor) else None  # None: a list of tensors
    device = kwargs.get("device")
    if is_fake_device(device) if device is not None else fake:
        return tree_map(lambda x: FakeTensor(x) if isinstance(x, torch.Tensor) else x, result)
    return result


def inner_value(value: Any) -> Any:
    """The argument of an operation on the CPU."""
    if isinstance(value, FakeTensor):
        return value.inner
    return torch.device("cpu") if is_fake_device(value) else value


def is_fake_device(device: Any) -> bool:
    return isinstance(device, (str, torch.device)) and str(device) == NAME


def as_tensors(index: Any) -> Any:
    """Lists of indices as tensors."""
    if isinstance(index, tuple):
        return tuple(map(as_tensors, index))
    return torch.tensor(index) if isinstance(index, list) else index
