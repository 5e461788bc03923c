"""A diverged run: stop after several skipped steps in a row, and keep the last good checkpoint.

See docs/guides/training.md, "Stopping and resuming".
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from qkv.checkpoint.durable import remove_folder
from qkv.checkpoint.folder import MODEL
from qkv.checkpoint.weights import count_not_finite
from qkv.errors import QkvError
from qkv.messages import _
from qkv.train.state import Progress, checkpoint_folder, saved_steps

MAX_SKIPPED_STEPS = 5  # in a row


def skipped_text(step: int) -> str:
    """A line that reports a skipped step."""
    return _(
        "step {number}: loss or gradient is not finite (training diverged); the step is skipped",
        number=step,
    )


def score_of(metrics: Mapping[str, Any], metric: str | None, model: nn.Module) -> float:
    """The score of a validation, larger is better: the metric, or minus the loss.

    It is -inf if the loss or a weight is not finite: such a model is never published.
    """
    score = float(metrics.get(metric or "", -metrics["loss"]))
    is_finite = math.isfinite(score) and math.isfinite(metrics["loss"])
    return score if is_finite and not count_not_finite(model.state_dict()) else -math.inf


def stop_if_diverged(folder: Path, progress: Progress, first_step: int) -> None:
    """Raise an error after MAX_SKIPPED_STEPS skipped steps in a row.

    The last update before them gave the weights that diverged: checkpoints of these weights are
    deleted, except the one that the run was resumed from (`first_step`).
    """
    if progress.skipped_steps < MAX_SKIPPED_STEPS:
        return
    diverged = max(progress.step - progress.skipped_steps, first_step + 1)
    for step in saved_steps(folder):
        if diverged <= step <= progress.step:
            remove_folder(checkpoint_folder(folder, step))
    good = [step for step in saved_steps(folder) if step <= progress.step]
    wrong = _(
        "the loss or the gradient of {count} steps in a row is not finite (training diverged)",
        count=progress.skipped_steps,
    )
    right = _("there is no earlier checkpoint: start again with a lower lr")
    if good:
        right = _(
            "the last good checkpoint is {checkpoint}: continue with --resume --accept-changes "
            "--set lr=... (lower)",
            checkpoint=checkpoint_folder(folder, good[-1]),
        )
    raise QkvError(_("step {step}", step=progress.step), wrong, right)


def refuse_no_model(folder: Path) -> None:
    """Raise an error if no validation had a finite loss, so that no model was published."""
    if not (folder / MODEL).exists():
        wrong = _("no model: the loss of every validation is not finite (training diverged)")
        raise QkvError(folder, wrong, _("train with a lower lr, with another --out"))
