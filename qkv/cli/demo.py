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
from qkv.language import say

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
    task: Annotated[str, typer.Argument(metavar="[translate|generate|embed]", help=say(
        "a zh-en translator, a Chinese language model or zh-en sentence embeddings", "中译英模型、中文语言模型或中英句向量"))] = "translate",
    out: Annotated[Path | None, typer.Option(help=say(
        "folder of the run; default runs/demo, runs/demo-generate or runs/demo-embed",
        "训练文件夹；默认 runs/demo、runs/demo-generate 或 runs/demo-embed"))] = None,
    minutes: Annotated[float, typer.Option(help=say(
        "time limit of the training; a slow or busy machine trains fewer steps", "训练时限（分钟）；机器慢或忙时减少步数"))] = 3.0,
    again: Annotated[bool, typer.Option(help=say("train anew even if there is a model", "即使已有模型也重新训练"))] = False,
) -> int:
    if task not in DEMOS:
        raise QkvError("qkv demo", say(f"no demo '{task}'", f"没有演示 '{task}'"), near_miss(task, list(DEMOS)))
    chosen = DEMOS[task]
    out = out or chosen.out
    _refuse_other_demo(out, chosen)
    trained = (out / "model.json").is_file()
    if trained and not again and sys.stdin.isatty():
        again = not typer.confirm(say(f"{out} holds a trained model. Use it?", f"{out} 已有训练好的模型。直接使用？"), default=True)
    if again or not trained:
        code = _train(out, chosen, minutes, again)
        if code:
            return code
    else:
        print(say(f"Using the model in {out}; --again trains anew.", f"使用 {out} 中的模型；--again 重新训练。"), file=sys.stderr)
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
        write_text(out / SETTINGS, json.dumps({"task": chosen.task, **chosen.module.RECIPE, "max_minutes": minutes}, indent=2) + "\n")
    return run_training(chosen.task, out, recipe, [], flags, resume)


def _refuse_other_demo(out: Path, chosen: Demo) -> None:
    """A folder of another demo is neither used nor emptied; recipes written before there were several name no task."""
    try:
        task = json.loads((out / SETTINGS).read_text(encoding="utf-8")).get("task", "translate")
    except (OSError, ValueError, AttributeError):
        return
    if task != chosen.task:
        raise QkvError(out, say(f"holds the demo '{task}', not '{chosen.task}'", f"里面是演示 '{task}'，不是 '{chosen.task}'"),
                       say("choose another --out", "请另选 --out"))


def _remove(out: Path, chosen: Demo) -> None:
    """Delete a demo that is to be trained anew; nothing else is deleted, and nothing that is still being trained."""
    import shutil

    from qkv.train.lock import locked

    if not out.is_dir() or not any(out.iterdir()):
        return
    if not all((out / name).is_file() for name in chosen.files):
        raise QkvError(out, say("not a folder of this demo, so it is not emptied", "不是本演示的文件夹，不会清空"),
                       say("choose another --out", "请另选 --out"))
    with locked(out):
        shutil.rmtree(out)
