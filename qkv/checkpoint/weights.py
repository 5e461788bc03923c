"""Weights from a safetensors file into a model, using no more memory than the model itself.

In: a file and a model without memory (on the meta device). Out: the model, filled; or one line that names every weight
that is missing, unknown, of another shape or not finite. Told in docs/files.md, "Weights".
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
from qkv.errors import QkvError
from qkv.messages import _
from qkv.model.experts import ExpertFeedForward

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")


class NoFirstWeights(TorchFunctionMode):
    """Modules built inside stay unfilled: their numbers come from a file, and on the meta device torch would load its
    compiler (2 s) to make random ones that nobody reads."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if getattr(func, "__module__", "") == "torch.nn.init" or func in (
            Tensor.uniform_,
            Tensor.normal_,
        ):
            return kwargs["tensor"] if "tensor" in kwargs else args[0]
        return func(*args, **kwargs)


def fill(
    model: nn.Module, path: Path, device: str | torch.device, dtype: torch.dtype | None
) -> None:
    """The model's weights are those of the file, as they are stored or in `dtype`."""
    stored = read_tensors(
        path
    )  # still on the disk: a tensor's numbers are fetched only when they are asked for
    refuse_others(path, stored, model.state_dict())
    dtype = dtype or reduce(torch.promote_types, (one.dtype for one in stored.values()))
    weights = {name: weight.to(device, dtype) for name, weight in fetched(path, stored)}
    model.load_state_dict(weights, assign=True)


def fetched(path: Path, stored: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """Each tensor in memory of its own, one after the other: a mapped file that changes later would change the model."""
    with path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(size))  # read_tensors has proved it
        for name, like in stored.items():
            weight = torch.empty(like.shape, dtype=like.dtype)
            file.seek(8 + size + header[name]["data_offsets"][0])
            memory = memoryview(weight.flatten().view(torch.uint8).numpy())  # type: ignore[arg-type]
            if file.readinto(memory) != weight.nbytes:
                raise QkvError(path, _("changed while it was read"), _("try again"))
            yield name, weight


def refuse_others(path: Path, stored: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> None:
    """One message with all that the file lacks, has too many, or has in another form."""
    missing = [name for name in wanted if name not in stored]
    unknown = [name for name in stored if name not in wanted]
    shapes = [
        _(
            "{name}: {shape}, not {wanted}",
            name=name,
            shape=tuple(stored[name].shape),
            wanted=tuple(wanted[name].shape),
        )
        for name in wanted
        if name in stored and stored[name].shape != wanted[name].shape
    ]
    kinds = [
        f"{name}: {str(stored[name].dtype).removeprefix('torch.')}"
        for name in wanted
        if name in stored and stored[name].dtype not in FLOATS
    ]
    refuse_mismatch(
        path, missing, unknown, shapes, kinds, _("is it the model that model.json describes?")
    )


def refuse_mismatch(
    where: Path,
    missing: list[str],
    unknown: list[str],
    shapes: list[str],
    kinds: list[str],
    right: str,
) -> None:
    """One message with all weights that are missing, unknown, of another shape or not numbers."""
    found = [
        (missing, _("weight missing") if len(missing) == 1 else _("weights missing")),
        (unknown, _("unknown")),
        (shapes, _("of another shape")),
        (kinds, _("not of a float type")),
    ]
    told = [f"{len(names)} {what} ({', '.join(names)})" for names, what in found if names]
    if told:
        raise QkvError(where, _(", ").join(told), right)


def reset_balance(model: nn.Module, device: str | torch.device) -> None:
    """Experts' load-balancing loss is no weight: no file brings it off the meta device."""
    for module in model.modules():
        if isinstance(module, ExpertFeedForward):
            module.balance = torch.zeros((), device=device)


def not_finite(model: nn.Module) -> dict[str, int]:
    """Weights that hold NaN or infinity, with how many."""
    # One NaN or infinity spoils the sum, so only a spoilt sum needs a look at each number.
    suspects = {
        name: weight for name, weight in model.state_dict().items() if not weight.sum().isfinite()
    }
    counts = {name: int((~weight.isfinite()).sum()) for name, weight in suspects.items()}
    return {name: count for name, count in counts.items() if count}


def refuse_not_finite(path: Path, model: nn.Module) -> None:
    broken = not_finite(model)
    if broken:
        names = ", ".join(f"{name}: {count}" for name, count in broken.items())
        raise QkvError(
            path,
            _("weights that are not finite ({names})", names=names),
            _("the training went astray: take an earlier checkpoint"),
        )


def refuse_pickles(folder: Path, remedy: Callable[[list[str]], str] | None = None) -> None:
    """Weights in a pickle are not opened: reading a pickle can run any program. `remedy` says what to do with these files."""
    found = sorted(child.name for child in folder.iterdir() if child.suffix in PICKLES)
    if found:
        right = remedy(found) if remedy else _("take the safetensors file of this model")
        raise QkvError(
            folder / found[0], _("a pickle, which can run any program when it is opened"), right
        )
