"""Checkpoints of a training run: tensors by group and metadata, in runs/x/checkpoints/step-000500/.

A resumed run continues bit by bit. See docs/training.md.
"""

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from qkv.checkpoint.durable import packed, read_tensors, remove_folder, verify_folder, write_folder
from qkv.checkpoint.weights import current_name
from qkv.errors import QkvError
from qkv.messages import _

Tensors = dict[str, torch.Tensor]

STATE = "state.json"
# The second form is left by a crash in the middle of a replacement.
STEP_FOLDER = re.compile(r"step-(\d{6,})|\.step-(\d{6,})\.old")


# Names of metrics in the state and in metrics.jsonl of earlier versions.
OLD_METRICS = {
    "rank1": "recall_at_1",
    "rank1_forth": "recall_at_1_forward",
    "rank1_back": "recall_at_1_backward",
    "masked_loss": "mlm_loss",
}
# Fields of `Progress` in states of earlier versions.
OLD_PROGRESS = {"goal": "metric", "stale": "bad_validations"}


@dataclass
class Progress:
    """The progress of a run; saved with every checkpoint."""

    step: int = 0
    best: float | None = None  # the best score, larger is better: the metric, or minus the loss
    best_step: int = 0
    bad_validations: int = 0  # validations without improvement, for early stopping
    metric: str | None = None  # the metric of `best`, None: minus the loss
    steps: int = 0  # the total fixed by a time limit; 0: none
    decay_changes: Sequence[Sequence[int]] = ()  # those of the recipe, set by the time limit

    @classmethod
    def from_saved(cls, saved: Mapping[str, Any], metric: str | None) -> "Progress":
        """Saved progress with old names replaced; `metric` is the default of states without one."""
        renamed = {OLD_PROGRESS.get(name, name): value for name, value in saved.items()}
        progress = cls(**{"metric": metric, **renamed})
        progress.metric = OLD_METRICS.get(progress.metric or "", progress.metric)
        return progress


@dataclass(frozen=True)
class State:
    """A loaded checkpoint, and the errors of the damaged checkpoints that were skipped."""

    folder: Path
    step: int
    tensors: dict[str, Tensors]
    metadata: dict[str, Any]
    skipped: tuple[str, ...] = ()


def save_state(
    run_folder: str | Path,
    step: int,
    tensors: Mapping[str, Mapping[str, torch.Tensor]],
    metadata: Mapping[str, Any],
    keep: int = 3,
    also: Collection[int] = (),
) -> Path:
    """Write a checkpoint durably, then delete all but the last `keep` and those in `also`."""
    assert keep >= 1, keep
    folder = checkpoint_folder(run_folder, step)
    files = {f"{group}.safetensors": packed(named) for group, named in tensors.items()}
    write_folder(folder, {**files, STATE: as_json({**metadata, "step": step})})
    # Later steps were skipped as damaged: they are not counted or deleted.
    past = [number for number in saved_steps(run_folder) if number <= step]
    for number in past[:-keep]:
        if number not in also:
            remove_folder(checkpoint_folder(run_folder, number))
    return folder


def newest_state(run_folder: str | Path, skip_damaged: bool = False) -> State | None:
    """The newest checkpoint, or None; a damaged one is an error unless it may be skipped."""
    skipped: list[str] = []
    for step in reversed(saved_steps(run_folder)):
        try:
            return replace(load_state(checkpoint_folder(run_folder, step)), skipped=tuple(skipped))
        except QkvError as error:
            if not skip_damaged:
                right = _(
                    "restore it from a backup, "
                    "or resume from the previous checkpoint with --skip-damaged"
                )
                raise QkvError(error.where, error.wrong, right) from error
            skipped.append(str(error))
    if skipped:
        wrong = _("all checkpoints are damaged ({errors})", errors="; ".join(skipped))
        raise QkvError(run_folder, wrong, _("start again in another folder"))
    return None


def load_state(folder: str | Path, only: Collection[str] | None = None) -> State:
    """Load a checkpoint after verifying all of its files; `only` names the groups to load."""
    folder = Path(folder)
    verified = verify_folder(folder)
    metadata = read_metadata(verified / STATE)
    right_name = checkpoint_folder("", metadata["step"]).name
    if folder.name != right_name:
        raise QkvError(
            f"{folder.name}/{STATE}",
            _("belongs to step {step}", step=metadata["step"]),
            _("rename the folder to {right_name}", right_name=right_name),
        )
    files = [
        file for file in sorted(verified.glob("*.safetensors")) if only is None or file.stem in only
    ]
    tensors = {
        file.stem: {current_name(name): tensor for name, tensor in read_tensors(file).items()}
        for file in files
    }
    return State(folder, metadata["step"], tensors, metadata)


def saved_steps(run_folder: str | Path) -> list[int]:
    """The steps that have a checkpoint, in order."""
    folder = Path(run_folder) / "checkpoints"
    names = (
        [STEP_FOLDER.fullmatch(child.name) for child in folder.iterdir()] if folder.is_dir() else []
    )
    return sorted({int(name[1] or name[2]) for name in names if name})


def checkpoint_folder(run_folder: str | Path, step: int) -> Path:
    """checkpoint_folder("runs/x", 500) is runs/x/checkpoints/step-000500."""
    return Path(run_folder) / "checkpoints" / f"step-{step:06d}"


def read_metadata(path: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(path.read_bytes()))
    except (OSError, ValueError, TypeError) as error:
        wrong = _("not the state of a training run")
        raise QkvError(path, wrong, _("choose a folder under checkpoints/")) from error


def as_json(metadata: Mapping[str, Any]) -> bytes:
    return (json.dumps(metadata, indent=2, sort_keys=True, ensure_ascii=False) + "\n").encode()


# ── optimizers ───────────────────────────────────────────────────────────────────────────────────


def flatten_optimizer(optimizer: torch.optim.Optimizer) -> tuple[Tensors, dict[str, Any]]:
    """The optimizer's state: tensors such as "3.exp_avg" (of parameter 3), and metadata.

    The metadata can be written as JSON. The tensors are not copies: save them before the next step.
    """
    saved = optimizer.state_dict()
    tables = {str(index): values for index, values in saved["state"].items()}
    tables.update({f"group.{number}": group for number, group in enumerate(saved["param_groups"])})
    values = {
        f"{prefix}.{name}": value
        for prefix, table in tables.items()
        for name, value in table.items()
    }
    tensors = {key: value for key, value in values.items() if isinstance(value, torch.Tensor)}
    others = {key: value for key, value in values.items() if key not in tensors}
    return tensors, {
        "kind": type(optimizer).__name__,
        "shapes": parameter_shapes(optimizer),
        "values": others,
    }


def restore_optimizer(
    optimizer: torch.optim.Optimizer,
    tensors: Mapping[str, torch.Tensor],
    metadata: Mapping[str, Any],
) -> None:
    """Restore a flattened state; the parameters must have the same shapes in the same order."""
    check_same_optimizer(optimizer, metadata)
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    optimizer.state.clear()
    # load_state_dict would cast moments to the dtype of their parameter and change their bits.
    for key, value in {**metadata["values"], **tensors}.items():
        *prefix, name = key.split(".")
        if prefix[0] != "group":
            parameter = parameters[int(prefix[0])]
            optimizer.state[parameter][name] = to_parameter_device(
                value, parameter, name, optimizer
            )
        elif name != "params":
            group = optimizer.param_groups[int(prefix[1])]
            group[name] = with_type_of(group.get(name), value)


def to_parameter_device(
    value: Any, parameter: torch.Tensor, name: str, optimizer: torch.optim.Optimizer
) -> Any:
    """A copy on the parameter's device; torch keeps the step of unfused optimizers on the CPU."""
    if not isinstance(value, torch.Tensor):
        return value
    on_device = (
        optimizer.defaults.get("fused") or optimizer.defaults.get("capturable") or name != "step"
    )
    return value.clone().to(parameter.device if on_device else "cpu")


def with_type_of(present: Any, value: Any) -> Any:
    """The saved option in the type it had before JSON: betas are a tuple."""
    if isinstance(value, torch.Tensor):
        return value.clone()
    return tuple(value) if isinstance(present, tuple) else value


def parameter_shapes(optimizer: torch.optim.Optimizer) -> list[list[list[int]]]:
    return [
        [list(parameter.shape) for parameter in group["params"]] for group in optimizer.param_groups
    ]


def check_same_optimizer(optimizer: torch.optim.Optimizer, metadata: Mapping[str, Any]) -> None:
    kind = type(optimizer).__name__
    if metadata["kind"] != kind:
        wrong = _("saved by {saved}, not {present}", saved=metadata["kind"], present=kind)
        raise QkvError("optimizer", wrong, _("resume with the recipe of the run"))
    if metadata["shapes"] != parameter_shapes(optimizer):
        wrong = _("saved for a model with other parameter shapes")
        raise QkvError("optimizer", wrong, _("resume with the model of the run"))
