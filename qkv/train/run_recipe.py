"""Train a model from a recipe and data, in files or in memory; returns its pipeline.

See docs/guides/training.md, "Training in Python".
"""

import json
from collections.abc import Iterable
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, overload

from qkv.allocator import keep_pages
from qkv.arguments import displayed
from qkv.checkpoint.load import check_device
from qkv.errors import QkvError
from qkv.messages import N_, _, listed
from qkv.model.custom import allow_custom
from qkv.text.lines import write_text
from qkv.train.card import write_card
from qkv.train.lock import locked
from qkv.train.loop import Trainer
from qkv.train.precision import check_bf16
from qkv.train.recipe import EmbedRecipe, GenerateRecipe, Recipe, TranslateRecipe
from qkv.train.recipe_reader import validated
from qkv.train.report import OnStep
from qkv.train.resume import state_to_resume
from qkv.train.task import Task
from qkv.train.time_limit import check_time_limit

if TYPE_CHECKING:
    from qkv.pipeline.embedder import Embedder
    from qkv.pipeline.generator import Generator
    from qkv.pipeline.translator import Translator

__all__ = ["run"]

SAVED_RECIPE = "train.yaml"  # for --resume
# By task: the options of a recipe that name its data, the first two for training and validation.
DATA_OPTIONS = {
    "translate": ("source", "valid_source", "target", "valid_target"),
    "generate": ("text", "valid_text"),
    "embed": ("pairs", "valid_pairs", "source", "target", "valid_source", "valid_target", "text"),
}
ROWS = {  # by task: what data in memory is
    "translate": N_("give (source, target) pairs of texts"),
    "generate": N_("give texts"),
    "embed": N_("give groups of two or more texts with the same meaning"),
}


class FinishedRun(NamedTuple):
    """A run that has taken all its steps."""

    task: Task
    pipeline: Any  # Translator, Generator or Embedder of the best model
    scores: str  # of the final evaluation


@overload
def run(
    recipe: TranslateRecipe,
    data: Iterable[tuple[str, str]] | None = None,
    *,
    out: str | Path,
    valid: Iterable[tuple[str, str]] | None = None,
    resume: bool = False,
    on_step: OnStep | None = None,
    custom: Iterable[str] = (),
) -> "Translator": ...
@overload
def run(
    recipe: GenerateRecipe,
    data: Iterable[str] | None = None,
    *,
    out: str | Path,
    valid: Iterable[str] | None = None,
    resume: bool = False,
    on_step: OnStep | None = None,
    custom: Iterable[str] = (),
) -> "Generator": ...
@overload
def run(
    recipe: EmbedRecipe,
    data: Iterable[tuple[str, ...]] | None = None,
    *,
    out: str | Path,
    valid: Iterable[tuple[str, ...]] | None = None,
    resume: bool = False,
    on_step: OnStep | None = None,
    custom: Iterable[str] = (),
) -> "Embedder": ...
def run(
    recipe: Any,
    data: Iterable[Any] | None = None,
    *,
    out: str | Path,
    valid: Iterable[Any] | None = None,
    resume: bool = False,
    on_step: OnStep | None = None,
    custom: Iterable[str] = (),
) -> Any:
    """Train a model and return its pipeline; the run folder is that of `qkv train`.

    Example:
        recipe = qkv.train.TranslateRecipe(steps=500)
        translator = qkv.train.run(recipe, [("你好", "hello"), ...], out="runs/mine")

    Args:
        recipe: A TranslateRecipe, GenerateRecipe or EmbedRecipe.
        data: Training data in memory: (source, target) pairs, texts, or groups of texts with the
            same meaning. It is written to the run folder. None: the files that the recipe names.
        out: The run folder.
        valid: Held-out data in memory; None: a part of the training data is held out.
        resume: Whether to continue from the last checkpoint.
        on_step: Called after each optimizer step with a TrainingStep.
        custom: The import paths of the model's custom parts, "package.module:Class".

    Returns:
        The Translator, Generator or Embedder of the best model.

    Raises:
        QkvError: The recipe or the data is wrong, or `out` is in use.
        KeyboardInterrupt: The run was interrupted; it has saved a checkpoint to resume from.
    """
    if not isinstance(recipe, TranslateRecipe | GenerateRecipe | EmbedRecipe):
        right = _("use a TranslateRecipe, GenerateRecipe or EmbedRecipe")
        raise QkvError("recipe", _("cannot be {value}", value=displayed(recipe)), right)
    folder, recipe = Path(out), validated(type(recipe), asdict(recipe), "recipe")
    if data is not None or valid is not None:
        recipe = _with_data(recipe, data, valid, folder)
    with allow_custom(custom):
        finished = train_recipe(recipe, folder, resume, on_step=on_step)
    if finished is None:
        raise KeyboardInterrupt(_("a checkpoint is saved in {out}", out=folder))
    return finished.pipeline


def train_recipe(
    recipe: Recipe,
    out: Path,
    resume: bool = False,
    skip_damaged: bool = False,
    on_step: OnStep | None = None,
) -> FinishedRun | None:
    """Prepare the data, train, evaluate the best model, write its card; None: interrupted."""
    keep_pages()
    check_device(recipe.device)
    check_time_limit(recipe)
    if recipe.dtype == "bfloat16":
        check_bf16(recipe.device)
    if resume and not out.is_dir():
        state_to_resume(out, resume)  # raises before the folder is created
    with locked(out):
        state = state_to_resume(out, resume, skip_damaged)
        task = _prepared(recipe, out / "data", resume)
        trainer = Trainer(task, recipe, out, state)
        trainer.on_step = on_step
        del state  # frees the second copy of the weights
        trainer.choose_threads()
        write_text(out / SAVED_RECIPE, trainer.recipe.to_yaml())  # after the trainer's checks
        if trainer.run():
            return None
        pipeline = _pipeline(recipe, out)
        return FinishedRun(task, pipeline, write_card(out, task, pipeline))


def _prepared(recipe: Any, folder: Path, resume: bool) -> Task:
    """The task with its data; imports only the modules of this task."""
    match recipe:
        case GenerateRecipe():
            from qkv.train.prepare_text import prepare_generation

            return prepare_generation(recipe, folder, resume)
        case EmbedRecipe():
            from qkv.train.prepare_embed import prepare_embedding

            return prepare_embedding(recipe, folder, resume)
        case _:
            from qkv.train.prepare import prepare_translation

            return prepare_translation(recipe, folder, resume)


def _pipeline(recipe: Recipe, out: Path) -> Any:
    """The pipeline of the published model."""
    match recipe:
        case GenerateRecipe():
            from qkv.pipeline.generator import Generator

            return Generator.load(out)
        case EmbedRecipe():
            from qkv.pipeline.embedder import Embedder

            return Embedder.load(out)
        case _:
            from qkv.pipeline.translator import Translator

            return Translator.load(out)


# ── Data in memory ───────────────────────────────────────────────────────────────────────────────
def _with_data(
    recipe: Any, data: Iterable[Any] | None, valid: Iterable[Any] | None, out: Path
) -> Any:
    """The recipe with the names of the files to which data in memory is written."""
    options = DATA_OPTIONS[recipe.task]
    if named := [name for name in options if getattr(recipe, name)]:
        wrong = _("the recipe names files too ({names})", names=listed(named))
        raise QkvError("data", wrong, _("give one of them"))
    if data is None:
        raise QkvError("data", _("valid is given without data"), _("give both"))
    files = {}
    with locked(out):
        for option, name, rows in zip(options, ("data", "valid"), (data, valid), strict=False):
            if rows is not None:
                path = out / f"{'train' if name == 'data' else name}.jsonl"
                write_text(path, _as_lines(recipe.task, rows, name))
                files[option] = (str(path),) if recipe.task == "generate" else str(path)
    return replace(recipe, **files)


def _as_lines(task: str, rows: Iterable[Any], name: str) -> str:
    """JSON lines that the readers of files read."""
    records = [_record(task, row, f"{name}[{n}]") for n, row in enumerate(rows)]
    return "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)


def _record(task: str, row: Any, where: str) -> dict[str, Any]:
    match task, row:
        case "translate", (str() as source, str() as target):
            return {"source": source, "target": target}
        case "generate", str() as text:
            return {"text": text}
        case "embed", (str(), str(), *_rest) if all(isinstance(text, str) for text in row):
            return {"texts": list(row)}
    raise QkvError(where, _("cannot be {value}", value=displayed(row)), _(ROWS[task]))
