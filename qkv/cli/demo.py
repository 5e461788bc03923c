"""`qkv demo`: train a small model on the built-in corpus within a time limit, evaluate and use it.

Each demo has its module: demo_translate, demo_generate, demo_embed.
"""

import json
import shutil
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

import typer

from qkv.cli.interrupted import print_interrupted, reporting_ctrl_c
from qkv.cli.parameters import argument, option
from qkv.cli.train import run_training
from qkv.errors import QkvError, near_miss
from qkv.files import check_output_folder, write_errors
from qkv.json_files import read_json
from qkv.messages import _
from qkv.text.lines import write_text

RECIPE_FILE = "recipe.json"  # JSON is YAML too
DEMOS = ("translate", "generate", "embed")


def demo(
    task: str = argument(
        "translate",
        "Chinese-English translation, a Chinese language model, or Chinese-English "
        "sentence embeddings",
        metavar="[translate|generate|embed]",
    ),
    out: Path | None = option(
        None, "output folder; default runs/demo, runs/demo-generate or runs/demo-embed"
    ),
    minutes: float = option(
        3.0, "time limit of the training; fewer steps on a slow or busy machine"
    ),
    retrain: bool = option(False, "train again even if the folder has a model", "--retrain"),
) -> int:
    from qkv.train.recipe_reader import LIMITS

    LIMITS["max_minutes"].check("--minutes", minutes)
    if task not in DEMOS:
        raise QkvError("qkv demo", _("no demo '{task}'", task=task), near_miss(task, DEMOS))
    # OUT (the default folder), RECIPE, FILES, FIGURES, TRAIN_YOUR_OWN, write_files(out), show(out)
    chosen = import_module(f"qkv.cli.demo_{task}")
    out = out or chosen.OUT
    _check_same_demo(out, task)
    trained = (out / "model.json").is_file()
    if trained and not retrain and sys.stdin.isatty():
        retrain = not typer.confirm(_("{out} has a trained model. Use it?", out=out), default=True)
    if retrain or not trained:
        if code := _train(chosen, out, task, minutes, retrain):
            return code
    else:
        print(_("Using the model in {out}; --retrain trains it again.", out=out), file=sys.stderr)
    figure, use = chosen.show(out)
    print(_(chosen.FIGURES, figure=figure, curves=out / "curves.png"))
    print(_("Next: {use}   |   {train}", use=use, train=chosen.TRAIN_YOUR_OWN))
    return 0


def _train(chosen: ModuleType, out: Path, task: str, minutes: float, retrain: bool) -> int:
    """Write the built-in corpus as files and train on them; an interrupted demo is resumed."""
    from qkv.train.state import saved_steps

    if retrain:
        _remove(out, (*chosen.FILES, RECIPE_FILE))
    flags = chosen.write_files(out)
    resume, recipe_file = bool(saved_steps(out)), None
    if not (resume and (out / "train.yaml").is_file()):
        recipe_file = out / RECIPE_FILE
        recipe = {"task": task, **chosen.RECIPE, "max_minutes": minutes}
        write_text(recipe_file, json.dumps(recipe, indent=2) + "\n")
    command = ["qkv", "demo", task, "--out", str(out)]
    with reporting_ctrl_c(out, command):
        code = run_training(task, out, recipe_file, [], flags, resume=resume)
    if code:
        print_interrupted(out, command)
    return code


def _check_same_demo(out: Path, task: str) -> None:
    """Raise if the folder is of something else; old recipes have no task: that is translate."""
    with write_errors(out):
        is_own = any((out / name).is_file() for name in (RECIPE_FILE, "model.json"))
    check_output_folder(out, is_own)
    try:
        found = read_json(out / RECIPE_FILE).get("task", "translate")
    except (QkvError, AttributeError):
        return
    if found != task:
        raise QkvError(
            out,
            _("contains the demo '{found}', not '{task}'", found=found, task=task),
            _("choose another --out"),
        )


def _remove(out: Path, files: tuple[str, ...]) -> None:
    """Delete the folder of a demo, unless it has other files or is being trained."""
    from qkv.train.lock import locked

    if not out.is_dir() or not any(out.iterdir()):
        return
    if not all((out / name).is_file() for name in files):
        raise QkvError(
            out, _("not a folder of this demo; it is not deleted"), _("choose another --out")
        )
    with locked(out):
        shutil.rmtree(out)
