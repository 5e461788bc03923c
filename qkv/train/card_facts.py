"""Facts of a run for its model card: data files, hold-out, recipe, changes and limits.

See docs/guides/training.md, "Output files".
"""

from collections.abc import Sequence
from typing import Any

from qkv.data.hold_out import hold_out_every
from qkv.messages import _, listed
from qkv.model.spec import Spec
from qkv.train.recipe import EmbedRecipe, GenerateRecipe
from qkv.train.task import Table

Changes = Sequence[Sequence[Any]]  # (step, what changed) of each resumption with changes


def data_facts(recipe: Any, n_train: int) -> Table:
    """The files of the training text, and how the held-out text was chosen."""
    names = ("text",) if recipe.task == "generate" else ("pairs", "source", "target", "text")
    return {
        _("training files"): _listed_files(recipe, names),
        _("hold-out"): hold_out_text(recipe, n_train),
    }


def hold_out_text(recipe: Any, n_train: int) -> str:
    """How the held-out text was chosen."""
    names = ("valid_text", "valid_pairs", "valid_source", "valid_target")
    if files := _listed_files(recipe, names):
        return _("files: {files}", files=files)
    if isinstance(recipe, GenerateRecipe):
        return _(
            "the last {fraction:.1%} of the characters, without documents that are training "
            "documents too",
            fraction=recipe.valid_fraction,
        )
    return _(
        "drawn from the training files: one of {every} pairs, evenly spaced; no sentence of them "
        "is in a training pair",
        every=hold_out_every(n_train),
    )


def recipe_facts(recipe: Any, steps: int) -> Table:
    """The options of the recipe that matter most; train.yaml has all."""
    batch = (
        _("{n_groups:,} groups", n_groups=recipe.batch_groups)
        if isinstance(recipe, EmbedRecipe)
        else _("{n_tokens:,} tokens", n_tokens=recipe.batch_tokens)
    )
    return {
        _("recipe"): "train.yaml",
        _("steps"): steps,
        _("batch"): batch,
        _("optimizer"): recipe.optimizer,
        "lr": f"{recipe.lr:g}",
        _("schedule"): recipe.schedule,
        _("seed"): recipe.seed,
        **_origin(recipe),
    }


def _origin(recipe: Any) -> Table:
    """The model that the weights start from, or the kind of tokenizer that was trained."""
    if init_from := getattr(recipe, "init_from", None):
        return {"init_from": init_from}
    return {_("tokenizer"): recipe.tokenizer}


def change_facts(changes: Changes) -> Table:
    """The changes that were accepted when the run was resumed, by step."""
    return {
        _("changed at step {step}", step=step): ", ".join(
            str(text) for other, text in changes if other == step
        )
        for step, _text in changes
    }


def limits(recipe: Any, spec: Spec) -> list[str]:
    """What the scores and the model do not cover, one sentence each."""
    lines = [
        _("The scores are those of the held-out text above; other kinds of text were not measured.")
    ]
    if recipe.task == "translate":
        lines.append(
            _("It translates in one direction, from the language of the source files to the other.")
        )
    if spec.max_len:
        lines.append(_("Context length: {max_len:,} tokens.", max_len=spec.max_len))
    if recipe.tokenizer in ("char", "word", "wordpiece", "bpe"):
        lines.append(_("Characters or words outside its vocabulary become an unknown token."))
    lines.append(
        _("It reproduces errors and biases of its training data; its output needs a check.")
    )
    return lines


def _listed_files(recipe: Any, names: Sequence[str]) -> str:
    """The files that these options name."""
    values = [getattr(recipe, name, None) or () for name in names]
    files = [path for value in values for path in ([value] if isinstance(value, str) else value)]
    return listed(files) if files else ""
