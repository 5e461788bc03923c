"""Load the weights of a safetensors file into a model on the meta device, without extra memory.

One error names every weight that is missing, unknown, of another shape or not finite.
See docs/reference/files.md, "Weights".
"""

import json
from collections.abc import Callable, Iterator, Mapping
from functools import reduce
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from qkv.checkpoint.durable import read_tensors
from qkv.checkpoint.names import Names, Weights
from qkv.errors import QkvError
from qkv.memory import check_memory
from qkv.messages import N_, _, listed
from qkv.model.experts import ExpertFeedForward
from qkv.model.spec import Spec
from qkv.model.transformer import Transformer

DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
OLD_NAMES = {"router.balance_bias": "router.score_correction_bias"}  # suffixes of weight names
PICKLE_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")


class SkipInit(TorchFunctionMode):
    """Skip weight initialization: the weights come from a file.

    On the meta device torch would import its compiler (2 s) to compute random numbers.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if getattr(func, "__module__", "") == "torch.nn.init" or func in (
            Tensor.uniform_,
            Tensor.normal_,
        ):
            return kwargs["tensor"] if "tensor" in kwargs else args[0]
        return func(*args, **kwargs)


def meta_model(spec: Spec) -> Transformer:
    """The model on the meta device: no memory is allocated before the weights are read."""
    with torch.device("meta"), SkipInit():
        return Transformer(spec)


def read_model(spec: Spec, path: Path, device: str, dtype: torch.dtype | None) -> Transformer:
    """The model with the weights of the file, in the stored type or in `dtype`."""
    stored = read_tensors(path)  # memory-mapped: data is read from the disk on access
    refuse_missing_layers(path, spec, len(stored))
    model = meta_model(spec)
    fill(model, path, stored, device, dtype)
    return model


def refuse_missing_layers(path: Path, spec: Spec, n_weights: int) -> None:
    """Raise an error if there are fewer weights than layers, before the layers are built."""
    stacks = filter(None, (spec.encoder, spec.decoder))
    n_layers = sum(layer.repeat for stack in stacks for layer in stack.layers)
    if n_layers > n_weights:
        wrong = _(
            "has {n_weights:,} weights, and model.json describes {n_layers:,} layers",
            n_weights=n_weights,
            n_layers=n_layers,
        )
        raise QkvError(path, wrong, _("does it belong to this model.json?"))


def fill(
    model: nn.Module, path: Path, stored: Weights, device: str, dtype: torch.dtype | None
) -> None:
    """Load the stored weights of the file into the model."""
    named = {current_name(name): tensor for name, tensor in stored.items()}
    expected = model.state_dict()
    found = {name: named[name] for name in expected if name in named}
    unknown = [name for name in named if name not in expected]
    check_weights(path, found, expected, unknown, N_("does it belong to this model.json?"))
    dtype = dtype or reduce(torch.promote_types, (tensor.dtype for tensor in stored.values()))
    check_load_memory(path, sum(tensor.numel() for tensor in stored.values()), dtype, device)
    weights = {name: weight.to(device, dtype) for name, weight in read_each(path, stored)}
    assign_weights(model, weights, device)


def check_load_memory(path: Path, n_values: int, dtype: torch.dtype, device: str) -> None:
    """Raise an error if weights for the CPU do not fit in memory."""
    if device == "cpu":
        right = _("use a machine with more memory, or a smaller model")
        check_memory(path, n_values * dtype.itemsize, right)


def assign_weights(model: nn.Module, weights: Weights, device: str) -> None:
    """Move a model from the meta device: no file contains the load-balancing loss of experts."""
    model.load_state_dict(weights, assign=True)
    for module in model.modules():
        if isinstance(module, ExpertFeedForward):
            module.router_aux_loss = torch.zeros((), device=device)
    for name, buffer in model.named_buffers():
        if buffer.is_meta:  # only a custom part can have such a buffer
            wrong = _("is not saved with the weights, so it is unknown after loading")
            raise QkvError(name, wrong, _("register the buffer with persistent=True"))


def current_name(name: str, aliases: Names = OLD_NAMES) -> str:
    """The current name of a weight; old files may have another suffix."""
    for old, new in aliases.items():
        if name.endswith(old):
            return name.removesuffix(old) + new
    return name


def read_each(path: Path, stored: Weights) -> Iterator[tuple[str, Tensor]]:
    """Copy each tensor into memory: a memory-mapped file that changes would change the model."""
    with path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(size))  # checked by read_tensors
        for name, like in stored.items():
            weight = torch.empty(like.shape, dtype=like.dtype)
            file.seek(8 + size + header[name]["data_offsets"][0])
            memory = weight.flatten().view(torch.uint8).numpy()
            if file.readinto(memory) != weight.nbytes:  # type: ignore[arg-type]
                raise QkvError(path, _("changed while it was read"), _("try again"))
            yield current_name(name), weight


def check_weights(
    where: Path, found: Mapping[str, Any], expected: Weights, unknown: list[str], right: str
) -> None:
    """Raise one error for all weights that are missing, unknown, of another shape or not floats.

    `found` are the expected weights of a file: tensors, or the entries of its header. `right` is
    the message of what would be right, not yet translated.
    """
    missing = [name for name in expected if name not in found]
    one_missing = N_("{count} weight missing ({names})")
    mismatches = {
        one_missing if len(missing) == 1 else N_("{count} weights missing ({names})"): missing,
        N_("{count} unknown ({names})"): unknown,
        N_("{count} of another shape ({names})"): wrong_shapes(found, expected),
        N_("{count} not of a float type ({names})"): [
            f"{name}: {str(stored.dtype).removeprefix('torch.')}"
            for name, stored in found.items()
            if stored.dtype not in (*DTYPES, *DTYPES.values())
        ],
    }
    messages = [
        _(message, count=len(names), names=listed(names))
        for message, names in mismatches.items()
        if names
    ]
    if messages:
        raise QkvError(where, _(", ").join(messages), _(right))


def wrong_shapes(found: Mapping[str, Any], expected: Weights) -> list[str]:
    message = N_("{name}: {shape}, not {expected}")
    shapes = {name: (tuple(w.shape), tuple(expected[name].shape)) for name, w in found.items()}
    return [
        _(message, name=name, shape=shape, expected=right)
        for name, (shape, right) in shapes.items()
        if shape != right
    ]


def count_not_finite(weights: Weights) -> dict[str, int]:
    """The weights with NaN or infinity, and how many of each."""
    # A NaN or infinity makes the sum non-finite, so only such weights are counted one by one.
    counts = {
        name: int((~weight.isfinite()).sum())
        for name, weight in weights.items()
        if not weight.sum().isfinite()
    }
    return {name: count for name, count in counts.items() if count}


def refuse_not_finite(path: Path, weights: Weights) -> None:
    """Raise an error that names the weights with NaN or infinity, and how many of each."""
    names = listed(f"{name}: {count}" for name, count in count_not_finite(weights).items())
    if names:
        wrong = _("non-finite weights ({names})", names=names)
        raise QkvError(path, wrong, _("training diverged: use an earlier checkpoint"))


def refuse_pickles(folder: Path, remedy: Callable[[list[str]], str] | None = None) -> None:
    """Raise an error if the folder has pickle files: loading one can run arbitrary code.

    `remedy` makes the advice from their names.
    """
    found = sorted(child.name for child in folder.iterdir() if child.suffix in PICKLE_SUFFIXES)
    if found:
        right = remedy(found) if remedy else _("use the safetensors file of this model")
        wrong = _("a pickle file, which can run arbitrary code when loaded")
        raise QkvError(folder / found[0], wrong, right)
