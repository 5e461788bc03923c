"""`qkv train`: train a model from files, options and a recipe. See docs/guides/training.md."""

import inspect
from collections.abc import Mapping
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from typer import Option, Typer

from qkv.allocator import keep_pages
from qkv.cli.interrupted import print_interrupted, reporting_ctrl_c, resume_command
from qkv.cli.parameters import argument, option
from qkv.errors import QkvError
from qkv.messages import _
from qkv.threads import chosen_threads

if TYPE_CHECKING:
    from qkv.train.recipe import Recipe
    from qkv.train.run_recipe import FinishedRun

app = Typer(no_args_is_help=True, help=_("Train a model on your own text."))

Out = Annotated[Path | None, option(..., "output folder of the run")]
Source = Annotated[
    str | None, option(..., "source sentences, one per line; or a TSV or JSONL file of pairs")
]
Text = Annotated[
    list[str] | None, option(..., "a text file, a folder of them, or JSONL; may be repeated")
]
More = Annotated[list[str] | None, argument(..., "more files for --text", metavar="[FILE]...")]
Valid = Annotated[str | None, option(..., "validation sentences")]


class RunOptions(NamedTuple):
    """The options of every training command."""

    recipe: Path | None = option(None, "recipe file (YAML)")
    set_: list[str] | None = option(
        None, "an option of the recipe; may be repeated", "--set", metavar="KEY=VALUE"
    )
    resume: bool = option(False, "resume from the last checkpoint", "--resume")
    accept_changes: bool = option(
        False,
        "resume although the recipe or the data has changed since the run began; the model card "
        "records the changes",
        "--accept-changes",
    )
    skip_damaged: bool = option(False, "skip damaged checkpoints", "--skip-damaged")
    minutes: float | None = option(
        None,
        "time limit in minutes, for preparation, training and evaluation: as many steps as fit",
    )
    device: str | None = option(None, "device: cpu, cuda or mps")
    dtype: str | None = option(None, "float32 (fp32), or bf16 (bfloat16) for mixed precision")
    compile_: bool | None = Option(None, "--compile/--no-compile", help="torch.compile")
    explain: bool = option(
        False,
        "print every recipe option with its default and description, and the parameter groups",
        "--explain",
    )


def _with_run_options(command: Any) -> Any:
    """Show typer the fields of RunOptions in the place of `**run_options`."""
    signature = inspect.signature(command)
    *own, _run_options = signature.parameters.values()
    shared = [
        parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        for parameter in inspect.signature(RunOptions).parameters.values()
    ]
    command.__signature__ = signature.replace(parameters=[*own, *shared])
    return command


@app.command(help=_("Train a translation model (encoder-decoder) on sentence pairs."))
@_with_run_options
def translate(
    out: Out = None,
    source: Source = None,
    target: str | None = option(None, "target sentences (translations), one per line"),
    valid_source: Valid = None,
    valid_target: Valid = None,
    **run_options: Any,
) -> int:
    return _run("translate", **locals())


@app.command(help=_("Train a causal language model on plain text."))
@_with_run_options
def generate(
    more: More = None,
    out: Out = None,
    text: Text = None,
    valid_text: list[str] | None = option(None, "validation text"),
    **run_options: Any,
) -> int:
    return _run("generate", **locals())


@app.command(
    help=_(
        "Train sentence embeddings: masked language modeling on text, contrastive loss on pairs."
    )
)
@_with_run_options
def embed(
    more: More = None,
    out: Out = None,
    text: Text = None,
    pairs: str | None = option(
        None, "groups of similar sentences, one group per line: TSV or JSONL"
    ),
    source: Source = None,
    target: str | None = option(
        None, "sentences that match the source line by line, such as translations"
    ),
    valid_pairs: Valid = None,
    valid_source: Valid = None,
    valid_target: Valid = None,
    **run_options: Any,
) -> int:
    return _run("embed", **locals())


def _run(
    task: str,
    out: Path | None,
    run_options: dict[str, Any],
    text: list[str] | None = None,
    more: list[str] | None = None,
    **flags: object,
) -> int:
    """Run the command of a task; `flags` are its options that are those of the recipe."""
    options = RunOptions(**run_options)
    if options.explain:
        return _explain(task, options.recipe, options.set_ or [])
    if out is None:
        raise QkvError(f"qkv train {task}", _("no --out"), _("give an output folder"))
    flags |= {
        "text": [*(text or []), *(more or [])] or None,
        "device": options.device,
        "dtype": options.dtype,
        "compile": options.compile_,
        "max_minutes": options.minutes,
    }
    command = resume_command(task, out)
    with reporting_ctrl_c(out, command):
        code = run_training(
            task,
            out,
            options.recipe,
            options.set_ or [],
            flags,
            resume=options.resume,
            skip_damaged=options.skip_damaged,
            accept_changes=options.accept_changes,
        )
    if code:
        print_interrupted(out, command)
    return code


def run_training(
    task: str,
    out: Path,
    recipe_file: Path | None,
    settings: list[str],
    flags: Mapping[str, object],
    *,
    resume: bool,
    skip_damaged: bool = False,
    accept_changes: bool = False,
) -> int:
    """Read the recipe and train; train.yaml keeps the recipe for --resume.

    Returns 0, or STOPPED.
    """
    keep_pages()  # before torch is imported
    from qkv.train.recipe_reader import read_recipe
    from qkv.train.run_recipe import SAVED_RECIPE, train_recipe
    from qkv.train.signals import STOPPED

    if resume and recipe_file is None and (out / SAVED_RECIPE).is_file():
        recipe_file = out / SAVED_RECIPE
    flags = {**flags, "threads": chosen_threads()}
    recipe = read_recipe(_recipe_type(task), recipe_file, settings, flags)
    finished = train_recipe(
        recipe, out, resume, skip_damaged=skip_damaged, accept_changes=accept_changes
    )
    return STOPPED if finished is None else _print_result(out, finished)


def _recipe_type(task: str) -> "type[Recipe]":
    from qkv.train.recipe import EmbedRecipe, GenerateRecipe, TranslateRecipe

    return {"translate": TranslateRecipe, "generate": GenerateRecipe, "embed": EmbedRecipe}[task]


def _print_result(out: Path, finished: "FinishedRun") -> int:
    """Print the scores of the final evaluation and the next command."""
    from qkv.train.card import command_of

    print(finished.scores)
    command = command_of(finished.task)
    arguments = _("FILE --out vectors.npy") if command == "embed" else _("TEXT")
    print(
        _(
            "The model is in {out}: qkv {command} {out} {arguments}",
            out=out,
            command=command,
            arguments=arguments,
        )
    )
    return 0


def _explain(task: str, recipe_file: Path | None, settings: list[str]) -> int:
    """Print the options, and the parameter groups of the optimizer for this recipe."""
    from rich.console import Console
    from rich.table import Table

    from qkv.train.parameter_groups import planned_groups
    from qkv.train.recipe_reader import explain, read_recipe

    recipe = read_recipe(_recipe_type(task), recipe_file, settings)
    table = Table(_("option"), _("default"), _("description"))
    for row in explain(_recipe_type(task)):
        table.add_row(*row)
    groups = planned_groups(recipe)
    Console().print(table)
    if groups:
        print(_("Parameter groups, with the vocabulary size of the recipe:"))
    for group in groups:
        names = wrap(" ".join(group.patterns), 96, break_on_hyphens=False)
        print(f"{group.title}: {group.counts}", *(f"    {line}" for line in names), sep="\n")
    return 0
