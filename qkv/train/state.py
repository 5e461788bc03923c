"""The state of a run: what a resumed training needs to go on as if nothing had happened.

In: tensors by group ("model", "optimizer", ...) and a few facts. Out: runs/x/checkpoints/step-000500/, and back,
bit by bit; told in docs/training.md, "Nothing is lost".
"""

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from qkv.checkpoint.durable import packed, read_tensors, remove_folder, verify_folder, write_folder
from qkv.errors import QkvError
from qkv.messages import _

Tensors = dict[str, torch.Tensor]

STATE = "state.json"
STEP_FOLDER = re.compile(
    r"step-(\d{6,})|\.step-(\d{6,})\.old"
)  # the second form: a crash amid a replacement


@dataclass
class Progress:
    """How far a run has come; saved with every checkpoint."""

    step: int = 0
    best: float | None = None  # larger is better: BLEU or another goal, or minus the loss
    best_step: int = 0
    stale: int = 0  # validations since the best one
    goal: str | None = None  # what `best` is a figure of, None: minus the loss
    steps: int = 0  # the total that a time limit has fixed; 0: none
    decay_changes: Sequence[
        Sequence[int]
    ] = ()  # those of the recipe, as the time limit has made them


@dataclass(frozen=True)
class State:
    """One checkpoint as it was saved, and the lines about those that had to be passed over."""

    folder: Path
    step: int
    tensors: dict[str, Tensors]
    facts: dict[str, Any]
    passed_over: tuple[str, ...] = ()


def save_state(
    run_folder: str | Path,
    step: int,
    tensors: Mapping[str, Mapping[str, torch.Tensor]],
    facts: Mapping[str, Any],
    keep: int = 3,
    also: Collection[int] = (),
) -> Path:
    """The checkpoint of `step`, durable; then all but the last `keep` and the steps in `also` are deleted."""
    assert keep >= 1, keep
    folder = folder_of(run_folder, step)
    files = {f"{group}.safetensors": packed(named) for group, named in tensors.items()}
    write_folder(folder, {**files, STATE: as_json({**facts, "step": step})})
    # Steps after this one belong to a branch given up (passed over as damaged): they do not count and are not touched.
    past = [number for number in saved_steps(run_folder) if number <= step]
    for number in past[:-keep]:
        if number not in also:
            remove_folder(folder_of(run_folder, number))
    return folder


def newest_state(run_folder: str | Path, skip_damaged: bool = False) -> State | None:
    """The newest checkpoint, or None if there is none; a damaged one stops the search unless it may be skipped."""
    passed_over: list[str] = []
    for step in reversed(saved_steps(run_folder)):
        try:
            return replace(load_state(folder_of(run_folder, step)), passed_over=tuple(passed_over))
        except QkvError as error:
            if not skip_damaged:
                advice = _("put back a good copy, or go on from the one before with --skip-damaged")
                raise QkvError(error.where, error.wrong, advice) from error
            passed_over.append(str(error))
    if passed_over:
        raise QkvError(
            run_folder,
            _("all checkpoints are damaged ({passed_over})", passed_over="; ".join(passed_over)),
            _("start again in another folder"),
        )
    return None


def load_state(folder: str | Path, only: Collection[str] | None = None) -> State:
    """A checkpoint, every file of it verified before the first is read; `only` names the groups that are wanted."""
    folder = Path(folder)
    whole = verify_folder(folder)
    facts = read_facts(whole / STATE)
    right_name = folder_of("", facts["step"]).name
    if folder.name != right_name:
        raise QkvError(
            f"{folder.name}/{STATE}",
            _("is of step {step}", step=facts["step"]),
            _("call the folder {right_name}", right_name=right_name),
        )
    files = [
        file for file in sorted(whole.glob("*.safetensors")) if only is None or file.stem in only
    ]
    return State(folder, facts["step"], {file.stem: read_tensors(file) for file in files}, facts)


def saved_steps(run_folder: str | Path) -> list[int]:
    """The steps that have a checkpoint, in order."""
    folder = Path(run_folder) / "checkpoints"
    names = (
        [STEP_FOLDER.fullmatch(child.name) for child in folder.iterdir()] if folder.is_dir() else []
    )
    return sorted({int(name[1] or name[2]) for name in names if name})


def folder_of(run_folder: str | Path, step: int) -> Path:
    """folder_of("runs/x", 500) is runs/x/checkpoints/step-000500."""
    return Path(run_folder) / "checkpoints" / f"step-{step:06d}"


def read_facts(path: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(path.read_bytes()))
    except (OSError, ValueError, TypeError) as error:
        raise QkvError(
            path, _("not the state of a training run"), _("choose a folder under checkpoints/")
        ) from error


def as_json(facts: Mapping[str, Any]) -> bytes:
    return (json.dumps(facts, indent=2, sort_keys=True, ensure_ascii=False) + "\n").encode()


# ---- optimisers ----------------------------------------------------------------------------------------------------


def flatten_optimizer(optimizer: torch.optim.Optimizer) -> tuple[Tensors, dict[str, Any]]:
    """All an optimiser remembers: tensors named "3.exp_avg" (of parameter 3) or "group.0.lr", and facts fit for JSON.

    The tensors are the optimiser's own, not copies: save them before the next step.
    """
    saved = optimizer.state_dict()
    tables = {str(index): memory for index, memory in saved["state"].items()}
    tables.update({f"group.{number}": group for number, group in enumerate(saved["param_groups"])})
    values = {
        f"{place}.{name}": value for place, table in tables.items() for name, value in table.items()
    }
    tensors = {key: value for key, value in values.items() if isinstance(value, torch.Tensor)}
    others = {key: value for key, value in values.items() if key not in tensors}
    return tensors, {
        "kind": type(optimizer).__name__,
        "shapes": shapes_of(optimizer),
        "values": others,
    }


def restore_optimizer(
    optimizer: torch.optim.Optimizer, tensors: Mapping[str, torch.Tensor], facts: Mapping[str, Any]
) -> None:
    """The optimiser remembers exactly what was flattened; its parameters have the same shapes in the same order."""
    refuse_other_optimizer(optimizer, facts)
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    optimizer.state.clear()
    # Not by load_state_dict, which casts moments to the dtype of their parameter: the bits would change.
    for key, value in {**facts["values"], **tensors}.items():
        *place, name = key.split(".")
        if place[0] != "group":
            parameter = parameters[int(place[0])]
            optimizer.state[parameter][name] = brought_home(value, parameter, name, optimizer)
        elif name != "params":
            group = optimizer.param_groups[int(place[1])]
            group[name] = like(group.get(name), value)


def brought_home(
    value: Any, parameter: torch.Tensor, name: str, optimizer: torch.optim.Optimizer
) -> Any:
    """A copy beside its parameter; the step counter of an unfused optimiser stays on the CPU, as torch wants it."""
    if not isinstance(value, torch.Tensor):
        return value
    on_device = (
        optimizer.defaults.get("fused") or optimizer.defaults.get("capturable") or name != "step"
    )
    return value.clone().to(parameter.device if on_device else "cpu")


def like(present: Any, value: Any) -> Any:
    """The saved option in the type it had before JSON: betas are a tuple."""
    if isinstance(value, torch.Tensor):
        return value.clone()
    return tuple(value) if isinstance(present, tuple) else value


def shapes_of(optimizer: torch.optim.Optimizer) -> list[list[list[int]]]:
    return [
        [list(parameter.shape) for parameter in group["params"]] for group in optimizer.param_groups
    ]


def refuse_other_optimizer(optimizer: torch.optim.Optimizer, facts: Mapping[str, Any]) -> None:
    kind = type(optimizer).__name__
    if facts["kind"] != kind:
        wrong = _("saved by {kind}, not {kind2}", kind=facts["kind"], kind2=kind)
        raise QkvError("optimizer", wrong, _("resume with the recipe of the run"))
    if facts["shapes"] != shapes_of(optimizer):
        raise QkvError(
            "optimizer",
            _("saved for a model of other shapes"),
            _("resume with the model of the run"),
        )
