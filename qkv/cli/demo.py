"""`qkv demo`: train a small model on the built-in corpus within a time limit, evaluate and use it.

Each demo has its module: demo_translate, demo_generate, demo_embed.
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

RECIPE_FILE = "recipe.json"  # JSON is YAML too


@dataclass(frozen=True)
class Demo:
    """A demo; its module has RECIPE, FILES, write_files(out) and show(out)."""

    task: str
    out: Path
    module: ModuleType

    @property
    def files(self) -> tuple[str, ...]:
        return (*self.module.FILES, RECIPE_FILE)


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
            help=_(
                "Chinese-English translation, a Chinese language model, or Chinese-English "
                "sentence embeddings"
            ),
        ),
    ] = "translate",
    out: Annotated[
        Path | None,
        typer.Option(
            help=_("output folder; default runs/demo, runs/demo-generate or runs/demo-embed")
        ),
    ] = None,
    minutes: Annotated[
        float,
        typer.Option(help=_("time limit of the training; fewer steps on a slow or busy machine")),
    ] = 3.0,
    retrain: Annotated[
        bool, typer.Option(help=_("train again even if the folder has a model"))
    ] = False,
) -> int:
    if task not in DEMOS:
        raise QkvError("qkv demo", _("no demo '{task}'", task=task), near_miss(task, list(DEMOS)))
    chosen = DEMOS[task]
    out = out or chosen.out
    _check_same_demo(out, chosen)
    trained = (out / "model.json").is_file()
    if trained and not retrain and sys.stdin.isatty():
        retrain = not typer.confirm(_("{out} has a trained model. Use it?", out=out), default=True)
    if retrain or not trained:
        code = _train(out, chosen, minutes, retrain)
        if code:
            return code
    else:
        print(_("Using the model in {out}; --retrain trains it again.", out=out), file=sys.stderr)
    chosen.module.show(out)
    return 0


def _train(out: Path, chosen: Demo, minutes: float, retrain: bool) -> int:
    """Write the built-in corpus as files and train on them; an interrupted demo is resumed."""
    from qkv.cli.train import run_training
    from qkv.text.lines import write_text
    from qkv.train.state import saved_steps

    if retrain:
        _remove(out, chosen)
    flags: dict[str, Any] = chosen.module.write_files(out)
    recipe: Path | None = out / RECIPE_FILE
    resume = bool(saved_steps(out))
    if resume and (out / "train.yaml").is_file():
        recipe = None
    else:
        write_text(
            out / RECIPE_FILE,
            json.dumps(
                {"task": chosen.task, **chosen.module.RECIPE, "max_minutes": minutes}, indent=2
            )
            + "\n",
        )
    return run_training(chosen.task, out, recipe, [], flags, resume)


def _check_same_demo(out: Path, chosen: Demo) -> None:
    """Raise if the folder is of another demo; old recipes have no task, which means translate."""
    try:
        task = json.loads((out / RECIPE_FILE).read_text(encoding="utf-8")).get("task", "translate")
    except (OSError, ValueError, AttributeError):
        return
    if task != chosen.task:
        raise QkvError(
            out,
            _("contains the demo '{found}', not '{task}'", found=task, task=chosen.task),
            _("choose another --out"),
        )


def _remove(out: Path, chosen: Demo) -> None:
    """Delete the folder of a demo, unless it has other files or is being trained."""
    import shutil

    from qkv.train.lock import locked

    if not out.is_dir() or not any(out.iterdir()):
        return
    if not all((out / name).is_file() for name in chosen.files):
        raise QkvError(
            out, _("not a folder of this demo; it is not deleted"), _("choose another --out")
        )
    with locked(out):
        shutil.rmtree(out)
