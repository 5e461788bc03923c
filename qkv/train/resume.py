"""Resume a training run: choose the checkpoint, and check that it fits the recipe.

See docs/guides/training.md, "Stopping and resuming".
"""

from collections.abc import Collection
from pathlib import Path

from torch import nn

from qkv.errors import QkvError
from qkv.messages import _
from qkv.train.state import State, newest_state, saved_steps


def state_to_resume(folder: Path, resume: bool, skip_damaged: bool = False) -> State | None:
    """The newest checkpoint; without `resume`, a folder that contains a run is an error."""
    if resume:
        state = newest_state(folder, skip_damaged)
        if state is None:
            raise QkvError(folder, _("nothing to resume"), _("leave out --resume to start a run"))
        return state
    if saved_steps(folder) or (folder / "model.json").exists():
        wrong = _("already contains a run")
        raise QkvError(folder, wrong, _("continue it with --resume, or choose another --out"))
    return None


def check_same_run(state: State, model: nn.Module, groups: Collection[str]) -> None:
    """The checkpoint must have these groups of tensors, and the shapes of this model."""
    shapes = {name: tensor.shape for name, tensor in model.state_dict().items()}
    saved = {name: tensor.shape for name, tensor in state.tensors["model"].items()}
    if saved != shapes or not set(groups) <= state.tensors.keys():
        wrong = _("saved by a run with another model, optimizer or ema_decay")
        right = _("resume with the recipe of the run, or choose another --out")
        raise QkvError(state.folder, wrong, right)
