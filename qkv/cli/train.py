"""`qkv train`: from files, flags or a recipe to a model."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from qkv.errors import QkvError
from qkv.language import say

if TYPE_CHECKING:
    from qkv.train.translation import Translation

app = typer.Typer(no_args_is_help=True, help=say("Train a model on your own text.", "用自己的文本训练模型。"))


@app.command(help=say("Learn to translate from pairs of sentences.", "从句对学习翻译。"))
def translate(
    out: Annotated[Path | None, typer.Option(help=say("folder of the run", "训练文件夹"))] = None,
    source: Annotated[str | None, typer.Option(help=say("sentences, one a line; or a TSV or JSONL of pairs", "源句文件；或 TSV / JSONL"))] = None,
    target: Annotated[str | None, typer.Option(help=say("their translations", "译文文件"))] = None,
    valid_source: Annotated[str | None, typer.Option(help=say("held-out sentences", "验证源句"))] = None,
    valid_target: Annotated[str | None, typer.Option(help=say("their translations", "验证译文"))] = None,
    recipe: Annotated[Path | None, typer.Option(help=say("a train.yaml", "配方文件"))] = None,
    set_: Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help=say("one option of the recipe", "配方中的一项"))] = None,
    resume: Annotated[bool, typer.Option(help=say("go on where the run stopped", "从停下处继续"))] = False,
    skip_damaged: Annotated[bool, typer.Option(help=say("pass over damaged checkpoints", "跳过损坏的检查点"))] = False,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, mps")] = None,
    dtype: Annotated[str | None, typer.Option(help="float32, bf16")] = None,
    compile_: Annotated[bool | None, typer.Option("--compile/--no-compile", help="torch.compile")] = None,
    explain: Annotated[bool, typer.Option(help=say("list every option with its reason, and leave", "列出所有选项及理由"))] = False,
) -> int:
    if explain:
        return _explain()
    if out is None:
        raise QkvError("qkv train translate", say("no --out", "没有 --out"), say("name a folder for the run", "请指定训练文件夹"))
    flags = {"source": source, "target": target, "valid_source": valid_source, "valid_target": valid_target, "device": device,
             "dtype": dtype, "compile": compile_}
    return run_translation(out, recipe, set_ or [], flags, resume, skip_damaged)


def run_translation(
    out: Path, recipe_file: Path | None, settings: list[str], flags: Mapping[str, object], resume: bool, skip_damaged: bool = False
) -> int:
    """Read the recipe, prepare the data, train; the resolved recipe stands in the folder, for --resume to read."""
    from qkv.allocator import keep_pages

    keep_pages()  # before torch is imported
    from qkv.pipeline import check_device
    from qkv.text.lines import write_text
    from qkv.train.lock import locked
    from qkv.train.loop import Trainer, state_to_resume
    from qkv.train.precision import check_bf16
    from qkv.train.prepare import prepare_translation
    from qkv.train.recipe import read_recipe

    kept = out / "train.yaml"
    recipe = read_recipe(kept if resume and recipe_file is None and kept.is_file() else recipe_file, settings, flags)
    check_device(recipe.device)
    if recipe.dtype == "bf16":
        check_bf16(recipe.device)
    if resume and not out.is_dir():
        state_to_resume(out, resume)  # refuses, and leaves no empty folder behind
    with locked(out):
        state = state_to_resume(out, resume, skip_damaged)
        task = prepare_translation(recipe, out / "data", resume)
        trainer = Trainer(task, recipe, out, state)
        del state  # or every weight would stay in memory twice
        write_text(kept, recipe.to_yaml())  # only now is it sure that this recipe fits the run
        return trainer.run() or _tell(out, task)


def _tell(out: Path, task: "Translation") -> int:
    """The final score on the held-out sentences, by the model that was published, and its card."""
    import qkv
    from qkv.train.card import write_card

    print(write_card(out, task, qkv.load(out)))
    print(say(f"{out} holds the model: qkv translate {out} TEXT", f"模型在 {out}：qkv translate {out} 文本"))
    return 0


def _explain() -> int:
    from rich.console import Console
    from rich.table import Table

    from qkv.train.recipe import explain

    table = Table(say("option", "选项"), say("default", "默认值"), say("why", "理由"))
    for row in explain():
        table.add_row(*row)
    Console().print(table)
    return 0
