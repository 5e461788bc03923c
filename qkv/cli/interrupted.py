"""What an interrupted training command prints: what is saved, and the command that continues.

See docs/guides/training.md, "Stopping and resuming".
"""

import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from qkv.messages import _


def resume_command(task: str, out: Path) -> list[str]:
    """The command that continues a run; train.yaml of the run has all other options."""
    from qkv.model.custom import allowed_paths

    custom = [word for path in sorted(allowed_paths()) for word in ("--custom", path)]
    return ["qkv", "train", task, "--out", str(out), "--resume", *custom]


def print_interrupted(out: Path, command: list[str]) -> None:
    """Print on stderr what the run folder has, and the command that continues the run."""
    from qkv.checkpoint.folder import MODEL
    from qkv.train.state import checkpoint_folder, saved_steps

    steps = saved_steps(out)
    text = _("stopped: {out} has no checkpoint and no model; run the same command again", out=out)
    if steps:
        text = _("stopped; saved in {checkpoint}", checkpoint=checkpoint_folder(out, steps[-1]))
        has_model = (out / MODEL).is_file()
        text += "\n" + (
            _("the best model so far is in {out}", out=out)
            if has_model
            else _("there is no model in {out} yet: it is saved by the first validation", out=out)
        )
        text += "\n" + _("continue with: {command}", command=shlex.join(command))
    print(text, file=sys.stderr)


@contextmanager
def reporting_ctrl_c(out: Path, command: list[str]) -> Iterator[None]:
    """Print the same for Ctrl-C before the first step and in the final evaluation."""
    try:
        yield
    except KeyboardInterrupt:
        print_interrupted(out, command)
        raise
