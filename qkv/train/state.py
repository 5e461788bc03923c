"""Checkpoints of a training run: tensors by group and metadata, in runs/x/checkpoints/step-000500/.

A resumed run continues bit by bit. See docs/guides/training.md.
"""

import json
import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from qkv.checkpoint.durable import packed, read_tensors, remove_folder, verify_folder, write_folder
from qkv.checkpoint.weights import current_name, refuse_not_finite
from qkv.errors import QkvError
from qkv.messages import _

Tensors = dict[str, torch.Tensor]
Metadata = dict[str, Any]  # can be written as JSON

STATE = "state.json"
WEIGHT_GROUPS = {"model", "ema"}  # the others are moments of the optimizers
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
    skipped_steps: int = 0  # the last steps in a row that were skipped as not finite
    metric: str | None = None  # the metric of `best`, None: minus the loss
    steps: int = 0  # the total fixed by a time limit; 0: none
    decay_changes: Sequence[Sequence[int]] = ()  # those of the recipe, set by the time limit
    run: Metadata | None = None  # recipe and data at the beginning; see changes.py

    @classmethod
    def from_saved(cls, saved: Metadata, metric: str | None) -> "Progress":
        """Saved progress with old names replaced; `metric` is that of the resumed run."""
        renamed = {OLD_PROGRESS.get(name, name): value for name, value in saved.items()}
        before = renamed.get("metric", metric)
        # 25 BLEU and a loss of 2 cannot be compared
        if OLD_METRICS.get(before or "", before) != metric:
            renamed |= {"best": None, "bad_validations": 0}
        return cls(**{**renamed, "metric": metric})

    def add_validation(self, score: float, counts: bool) -> bool:
        """Whether the score is the best so far; early stopping `counts` those that are not.

        A score of -inf, of a model whose loss is not finite, is never the best.
        """
        is_best = score > (-math.inf if self.best is None else self.best)
        if is_best:
            self.best, self.best_step, self.bad_validations = score, self.step, 0
        elif counts:
            self.bad_validations += 1
        return is_best


@dataclass(frozen=True)
class State:
    """A loaded checkpoint, and the errors of the damaged checkpoints that were skipped."""

    folder: Path
    step: int
    tensors: dict[str, Tensors]
    metadata: Metadata
    skipped: tuple[str, ...] = ()


def save_state(
    run_folder: Path,
    step: int,
    tensors: Mapping[str, Tensors],
    metadata: Metadata,
    keep: int = 3,
    also: Collection[int] = (),
) -> Path:
    """Write a checkpoint durably, then delete all but the last `keep` and those in `also`."""
    assert keep >= 1, keep
    folder = checkpoint_folder(run_folder, step)
    files = {f"{group}.safetensors": packed(named) for group, named in tensors.items()}
    state = json.dumps({**metadata, "step": step}, indent=2, sort_keys=True, ensure_ascii=False)
    write_folder(folder, {**files, STATE: f"{state}\n".encode()})
    # Later steps were skipped as damaged: they are not counted or deleted.
    past = [number for number in saved_steps(run_folder) if number <= step]
    for number in past[:-keep]:
        if number not in also:
            remove_folder(checkpoint_folder(run_folder, number))
    return folder


def newest_state(run_folder: Path, skip_damaged: bool = False) -> State | None:
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


def load_state(folder: Path, only: Collection[str] | None = None) -> State:
    """Load a checkpoint after verifying all of its files; `only` names the groups to load."""
    verified = verify_folder(folder)
    metadata = read_metadata(verified / STATE)
    right_name = checkpoint_folder(Path(), metadata["step"]).name
    if folder.name != right_name:
        raise QkvError(
            f"{folder.name}/{STATE}",
            _("belongs to step {step}", step=metadata["step"]),
            _("rename the folder to {right_name}", right_name=right_name),
        )
    tensors = {
        file.stem: {current_name(name): tensor for name, tensor in read_tensors(file).items()}
        for file in sorted(verified.glob("*.safetensors"))
        if only is None or file.stem in only
    }
    for group in WEIGHT_GROUPS & tensors.keys():
        refuse_not_finite(Path(folder.name, f"{group}.safetensors"), tensors[group])
    return State(folder, metadata["step"], tensors, metadata)


def saved_steps(run_folder: Path) -> list[int]:
    """The steps that have a checkpoint, in order."""
    folder = run_folder / "checkpoints"
    children = folder.iterdir() if folder.is_dir() else ()
    names = (STEP_FOLDER.fullmatch(child.name) for child in children)
    return sorted({int(name[1] or name[2]) for name in names if name})


def checkpoint_folder(run_folder: Path, step: int) -> Path:
    """checkpoint_folder(Path("runs/x"), 500) is runs/x/checkpoints/step-000500."""
    return run_folder / "checkpoints" / f"step-{step:06d}"


def read_metadata(path: Path) -> Metadata:
    try:
        return dict(json.loads(path.read_bytes()))
    except (OSError, ValueError, TypeError) as error:
        wrong = _("not the state of a training run")
        raise QkvError(path, wrong, _("choose a folder under checkpoints/")) from error


# ── optimizers ───────────────────────────────────────────────────────────────────────────────────


def flatten_optimizer(optimizer: torch.optim.Optimizer) -> tuple[Tensors, Metadata]:
    """The optimizer's state: tensors such as "3.exp_avg" (of parameter 3), and metadata.

    The metadata can be written as JSON. The tensors are not copies: save them before the next step.
    """
    saved = optimizer.state_dict()
    groups = {f"group.{number}": group for number, group in enumerate(saved["param_groups"])}
    values = {
        f"{prefix}.{name}": value
        for prefix, table in {**saved["state"], **groups}.items()
        for name, value in table.items()
    }
    tensors = {key: value for key, value in values.items() if isinstance(value, torch.Tensor)}
    others = {key: value for key, value in values.items() if key not in tensors}
    return tensors, {
        "kind": type(optimizer).__name__,
        "shapes": parameter_shapes(optimizer),
        "values": others,
    }


def flatten_optimizers(
    optimizers: Sequence[torch.optim.Optimizer],
) -> tuple[dict[str, Tensors], list[Metadata]]:
    """The tensors of each optimizer by the name of its file, and the metadata of each."""
    flat = [flatten_optimizer(optimizer) for optimizer in optimizers]
    tensors = {f"optimizer-{index}": moments for index, (moments, _options) in enumerate(flat)}
    return tensors, [options for _moments, options in flat]


def restore_optimizer(
    optimizer: torch.optim.Optimizer, tensors: Tensors, metadata: Metadata
) -> None:
    """Restore moments; the parameters must have the same shapes in the same order.

    Options such as the learning rate and decay are those of the recipe, so that --set works.
    """
    check_same_optimizer(optimizer, metadata)
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    # torch keeps the step of unfused optimizers on the CPU.
    step_on_device = optimizer.defaults.get("fused") or optimizer.defaults.get("capturable")
    optimizer.state.clear()
    # load_state_dict would cast moments to the dtype of their parameter and change their bits.
    for key, value in {**metadata["values"], **tensors}.items():
        index, name = key.split(".", maxsplit=1)
        if index != "group":
            parameter = parameters[int(index)]
            if isinstance(value, torch.Tensor):
                on_device = name != "step" or step_on_device
                value = value.clone().to(parameter.device if on_device else "cpu")
            optimizer.state[parameter][name] = value


def parameter_shapes(optimizer: torch.optim.Optimizer) -> list[list[list[int]]]:
    return [
        [list(parameter.shape) for parameter in group["params"]] for group in optimizer.param_groups
    ]


def check_same_optimizer(optimizer: torch.optim.Optimizer, metadata: Metadata) -> None:
    kind = type(optimizer).__name__
    if metadata["kind"] != kind:
        wrong = _("saved by {saved}, not {present}", saved=metadata["kind"], present=kind)
        raise QkvError("optimizer", wrong, _("resume with the recipe of the run"))
    if metadata["shapes"] != parameter_shapes(optimizer):
        wrong = _("saved for a model with other parameter shapes")
        raise QkvError("optimizer", wrong, _("resume with the model of the run"))
