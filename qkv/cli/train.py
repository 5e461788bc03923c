"""`qkv train`: from files, flags or a recipe to a model."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qkv.errors import QkvError
from qkv.messages import _

if TYPE_CHECKING:
    from qkv.train.recipe import Recipe
    from qkv.train.task import Task

app = typer.Typer(no_args_is_help=True, help=_("Train a model on your own text."))

Out = Annotated[Path | None, typer.Option(help=_("folder of the run"))]
RecipeFile = Annotated[Path | None, typer.Option("--recipe", help=_("a train.yaml"))]
Settings = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help=_("one option of the recipe"))
]
Resume = Annotated[bool, typer.Option(help=_("go on where the run stopped"))]
SkipDamaged = Annotated[bool, typer.Option(help=_("pass over damaged checkpoints"))]
Device = Annotated[str | None, typer.Option(help="cpu, cuda, mps")]
Dtype = Annotated[str | None, typer.Option(help="float32, bf16")]
Compile = Annotated[bool | None, typer.Option("--compile/--no-compile", help="torch.compile")]
Explain = Annotated[bool, typer.Option(help=_("list every option with its reason, and leave"))]
Source = Annotated[
    str | None, typer.Option(help=_("sentences, one a line; or a TSV or JSONL of pairs"))
]
Target = Annotated[str | None, typer.Option(help=_("their translations"))]
Alike = Annotated[
    str | None, typer.Option(help=_("what means the same, line by line, such as translations"))
]
Pairs = Annotated[
    str | None, typer.Option(help=_("sentences of one meaning on each line: TSV or JSONL"))
]
Text = Annotated[
    list[str] | None,
    typer.Option(help=_("a text file, a folder of them, or JSONL; may be repeated")),
]
More = Annotated[
    list[str] | None, typer.Argument(metavar="[FILE]...", help=_("more files for --text"))
]
Valid = Annotated[str | None, typer.Option(help=_("held-out sentences"))]
ValidText = Annotated[list[str] | None, typer.Option(help=_("held-out text"))]


@app.command(help=_("Learn to translate from pairs of sentences."))
def translate(
    out: Out = None,
    source: Source = None,
    target: Target = None,
    valid_source: Valid = None,
    valid_target: Valid = None,
    recipe: RecipeFile = None,
    set_: Settings = None,
    resume: Resume = False,
    skip_damaged: SkipDamaged = False,
    device: Device = None,
    dtype: Dtype = None,
    compile_: Compile = None,
    explain: Explain = False,
) -> int:
    flags = {
        "source": source,
        "target": target,
        "valid_source": valid_source,
        "valid_target": valid_target,
        "device": device,
        "dtype": dtype,
        "compile": compile_,
    }
    return _run("translate", out, recipe, set_, flags, resume, skip_damaged, explain)


@app.command(help=_("Learn to write on from plain text."))
def generate(
    more: More = None,
    out: Out = None,
    text: Text = None,
    valid_text: ValidText = None,
    recipe: RecipeFile = None,
    set_: Settings = None,
    resume: Resume = False,
    skip_damaged: SkipDamaged = False,
    device: Device = None,
    dtype: Dtype = None,
    compile_: Compile = None,
    explain: Explain = False,
) -> int:
    flags = {
        "text": [*(text or []), *(more or [])] or None,
        "valid_text": valid_text or None,
        "device": device,
        "dtype": dtype,
        "compile": compile_,
    }
    return _run("generate", out, recipe, set_, flags, resume, skip_damaged, explain)


@app.command(help=_("Learn vectors of sentences from text and sentences that mean the same."))
def embed(
    more: More = None,
    out: Out = None,
    text: Text = None,
    pairs: Pairs = None,
    source: Source = None,
    target: Alike = None,
    valid_pairs: Valid = None,
    valid_source: Valid = None,
    valid_target: Valid = None,
    recipe: RecipeFile = None,
    set_: Settings = None,
    resume: Resume = False,
    skip_damaged: SkipDamaged = False,
    device: Device = None,
    dtype: Dtype = None,
    compile_: Compile = None,
    explain: Explain = False,
) -> int:
    flags = {
        "text": [*(text or []), *(more or [])] or None,
        "pairs": pairs,
        "source": source,
        "target": target,
        "valid_pairs": valid_pairs,
        "valid_source": valid_source,
        "valid_target": valid_target,
        "device": device,
        "dtype": dtype,
        "compile": compile_,
    }
    return _run("embed", out, recipe, set_, flags, resume, skip_damaged, explain)


def _run(
    task: str,
    out: Path | None,
    recipe: Path | None,
    settings: list[str] | None,
    flags: Mapping[str, object],
    resume: bool,
    skip_damaged: bool,
    explain: bool,
) -> int:
    if explain:
        return _explain(task)
    if out is None:
        raise QkvError(f"qkv train {task}", _("no --out"), _("name a folder for the run"))
    return run_training(task, out, recipe, settings or [], flags, resume, skip_damaged)


def run_training(
    task: str,
    out: Path,
    recipe_file: Path | None,
    settings: list[str],
    flags: Mapping[str, object],
    resume: bool,
    skip_damaged: bool = False,
) -> int:
    """Read the recipe, prepare the data, train; the resolved recipe stands in the folder, for --resume to read."""
    from qkv.allocator import keep_pages

    keep_pages()  # before torch is imported
    from qkv.checkpoint.load import check_device
    from qkv.text.lines import write_text
    from qkv.threads import chosen_threads
    from qkv.train.lock import locked
    from qkv.train.loop import Trainer, state_to_resume
    from qkv.train.precision import check_bf16
    from qkv.train.recipe_reader import read_recipe
    from qkv.train.time_limit import check_time_limit

    kept = out / "train.yaml"
    flags = {**flags, "threads": chosen_threads()}
    recipe = read_recipe(
        _kind(task),
        kept if resume and recipe_file is None and kept.is_file() else recipe_file,
        settings,
        flags,
    )
    check_device(recipe.device)
    check_time_limit(recipe)
    if recipe.dtype == "bf16":
        check_bf16(recipe.device)
    if resume and not out.is_dir():
        state_to_resume(out, resume)  # refuses, and leaves no empty folder behind
    with locked(out):
        state = state_to_resume(out, resume, skip_damaged)
        prepared = _prepared(recipe, out / "data", resume)
        trainer = Trainer(prepared, recipe, out, state)
        del state  # or every weight would stay in memory twice
        trainer.fix_threads()
        write_text(
            kept, trainer.recipe.to_yaml()
        )  # only now is it sure that this recipe fits the run
        return trainer.run() or _tell(out, prepared)


def _kind(task: str) -> "type[Recipe]":
    from qkv.train.recipe import EmbedRecipe, GenerateRecipe, TranslateRecipe

    return {"translate": TranslateRecipe, "generate": GenerateRecipe, "embed": EmbedRecipe}[task]


def _prepared(recipe: Any, folder: Path, resume: bool) -> "Task":
    """The task with its data; a task's libraries are imported only for it."""
    match recipe.task:
        case "generate":
            from qkv.train.prepare_text import prepare_generation

            return prepare_generation(recipe, folder, resume)
        case "embed":
            from qkv.train.prepare_embed import prepare_embedding

            return prepare_embedding(recipe, folder, resume)
        case _:
            from qkv.train.prepare import prepare_translation

            return prepare_translation(recipe, folder, resume)


def _tell(out: Path, task: "Task") -> int:
    """The final score on the held-out data, by the model that was published, and its card."""
    import qkv
    from qkv.train.card import use_of, write_card

    print(write_card(out, task, qkv.load(out)))
    command = use_of(task)
    given = _("FILE --out vectors.npy") if command == "embed" else _("TEXT")
    print(
        _(
            "{out} holds the model: qkv {command} {out} {given}",
            out=out,
            command=command,
            given=given,
        )
    )
    return 0


def _explain(task: str) -> int:
    from rich.console import Console
    from rich.table import Table

    from qkv.train.recipe_reader import explain

    table = Table(_("option"), _("default"), _("why"))
    for row in explain(_kind(task)):
        table.add_row(*row)
    Console().print(table)
    return 0
