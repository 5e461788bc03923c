"""`qkv demo`: train a small model on the built-in corpus within a time limit, evaluate it, use it, draw a figure.

One file beside this one for each demo: demo_translate, demo_generate, demo_embed.
"""

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any

import typer

from qkv.cli import demo_embed, demo_generate, demo_translate
from qkv.errors import QkvError, near_miss
from qkv.messages import _

SETTINGS = "recipe.json"  # JSON is YAML too


@dataclass(frozen=True)
class Demo:
    """A demo: its task, its folder, and the module with its RECIPE, FILES, write_files(out) and show(out)."""

    task: str
    out: Path
    module: ModuleType

    @property
    def files(self) -> tuple[str, ...]:
        return (*self.module.FILES, SETTINGS)


DEMOS = {
    "translate": Demo("translate", Path("runs/demo"), demo_translate),
    "generate": Demo("generate", Path("runs/demo-generate"), demo_generate),
    "embed": Demo("embed", Path("runs/demo-embed"), demo_embed),
}


def demo(
    task: Annotated[
        str,
        typer.Argument(
            metavar="[translate|generate|embed]",
            help=_("a zh-en translator, a Chinese language model or zh-en sentence embeddings"),
        ),
    ] = "translate",
    out: Annotated[
        Path | None,
        typer.Option(
            help=_("folder of the run; default runs/demo, runs/demo-generate or runs/demo-embed")
        ),
    ] = None,
    minutes: Annotated[
        float,
        typer.Option(
            help=_("time limit of the training; a slow or busy machine trains fewer steps")
        ),
    ] = 3.0,
    again: Annotated[bool, typer.Option(help=_("train anew even if there is a model"))] = False,
) -> int:
    if task not in DEMOS:
        raise QkvError("qkv demo", _("no demo '{task}'", task=task), near_miss(task, list(DEMOS)))
    chosen = DEMOS[task]
    out = out or chosen.out
    _refuse_other_demo(out, chosen)
    trained = (out / "model.json").is_file()
    if trained and not again and sys.stdin.isatty():
        again = not typer.confirm(_("{out} holds a trained model. Use it?", out=out), default=True)
    if again or not trained:
        code = _train(out, chosen, minutes, again)
        if code:
            return code
    else:
        print(_("Using the model in {out}; --again trains anew.", out=out), file=sys.stderr)
    chosen.module.show(out)
    return 0


def _train(out: Path, chosen: Demo, minutes: float, again: bool) -> int:
    """Write the built-in sentences as files and train on them as on anybody's files; a stopped demo goes on with its own recipe."""
    from qkv.cli.train import run_training
    from qkv.text.lines import write_text
    from qkv.train.state import saved_steps

    if again:
        _remove(out, chosen)
    flags: dict[str, Any] = chosen.module.write_files(out)
    recipe: Path | None = out / SETTINGS
    resume = bool(saved_steps(out))
    if resume and (out / "train.yaml").is_file():
        recipe = None
    else:
        write_text(
            out / SETTINGS,
            json.dumps(
                {"task": chosen.task, **chosen.module.RECIPE, "max_minutes": minutes}, indent=2
            )
            + "\n",
        )
    return run_training(chosen.task, out, recipe, [], flags, resume)


def _refuse_other_demo(out: Path, chosen: Demo) -> None:
    """A folder of another demo is neither used nor emptied; recipes written before there were several name no task."""
    try:
        task = json.loads((out / SETTINGS).read_text(encoding="utf-8")).get("task", "translate")
    except (OSError, ValueError, AttributeError):
        return
    if task != chosen.task:
        raise QkvError(
            out,
            _("holds the demo '{task}', not '{task2}'", task=task, task2=chosen.task),
            _("choose another --out"),
        )


def _remove(out: Path, chosen: Demo) -> None:
    """Delete a demo that is to be trained anew; nothing else is deleted, and nothing that is still being trained."""
    import shutil

    from qkv.train.lock import locked

    if not out.is_dir() or not any(out.iterdir()):
        return
    if not all((out / name).is_file() for name in chosen.files):
        raise QkvError(
            out, _("not a folder of this demo, so it is not emptied"), _("choose another --out")
        )
    with locked(out):
        shutil.rmtree(out)
