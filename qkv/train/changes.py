"""What changed since a run began: its recipe and the contents of its data files.

Every checkpoint has this record. See docs/guides/training.md, "Stopping and resuming".
"""

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from qkv.data.corpus import document_files, fingerprint_of
from qkv.errors import QkvError
from qkv.messages import _
from qkv.train.recipe import Recipe
from qkv.train.recipe_reader import read_recipe

# By task: the options that name data files.
FILE_OPTIONS = {
    "translate": ("source", "target", "valid_source", "valid_target", "alignment"),
    "generate": ("text", "valid_text", "tokenizer"),
    "embed": ("text", "pairs", "source", "target", "valid_pairs", "valid_source", "valid_target"),
}
# Where and how a step is computed, not what: threads of another machine, for example.
NOT_COMPARED = ("threads", "device", "compile")
# The time limit fixes these while the run goes on and writes them to train.yaml.
FIXED_BY_TIME_LIMIT = ("steps", "max_minutes", "decay_changes")
SHOWN_LENGTH = 60  # characters of a value in the message

# {"recipe": options, "files": {name: SHA-256}, "changes": [[step, text], ...]}
RunRecord = dict[str, Any]


def run_record(recipe: Any) -> RunRecord:
    """The recipe and the hashes of its data files, as JSON values; missing files are left out."""
    files = {str(path): fingerprint_of([path]) for path in _files(recipe) if path.is_file()}
    record = {"recipe": asdict(recipe), "files": files, "changes": []}
    return dict(json.loads(json.dumps(record)))


def resumed_record(
    saved: RunRecord | None, step: int, recipe: Recipe, folder: Path, accept_changes: bool
) -> RunRecord:
    """The record of a resumed run: that of its beginning, with the changes that are accepted.

    Args:
        saved: The record in the checkpoint; None: written by an earlier version.
        step: The step of the checkpoint.
        recipe: The recipe to resume with.
        folder: The run folder, with the train.yaml of the run.
        accept_changes: Whether to go on with another recipe or other data.
    """
    present = run_record(recipe)
    if saved is None:
        text = _("begun with an earlier version of qkv, which did not record its data")
        return {**present, "changes": [[step, text]]}
    found = [*_changed_options(saved, present, recipe, folder), *_changed_files(saved, present)]
    if found and not accept_changes:
        wrong = _("changed since the run began: {changes}", changes=", ".join(found))
        right = _("undo it, or go on with --accept-changes, which the model card records")
        raise QkvError(folder, wrong, right)
    changes = [*saved["changes"], *([step, text] for text in found)]
    return {**present, "changes": changes} if found else saved


def _files(recipe: Any) -> Iterator[Path]:
    """The data files of a recipe: a folder stands for its text files, a pattern for its matches."""
    for name in FILE_OPTIONS[recipe.task]:
        value = getattr(recipe, name) or ()
        for path in map(Path, [value] if isinstance(value, str) else value):
            if "*" in path.name:
                yield from sorted(path.parent.glob(path.name))
            else:
                yield from document_files([path]) if path.is_dir() else [path]


def _changed_options(
    saved: RunRecord, present: RunRecord, recipe: Recipe, folder: Path
) -> Iterator[str]:
    """Each option that differs, as `lr (0.001 -> 0.0005)`."""
    before, now = saved["recipe"], present["recipe"]
    fixed = _fixed_by_time_limit(saved, recipe, folder)
    for name, value in now.items():
        if name not in before or name in NOT_COMPARED or fixed.get(name, before[name]) == value:
            continue
        if value != before[name]:
            yield f"{name} ({_shown(before[name])} -> {_shown(value)})"


def _fixed_by_time_limit(saved: RunRecord, recipe: Recipe, folder: Path) -> dict[str, Any]:
    """The options that the time limit of this run has written to train.yaml."""
    path = folder / "train.yaml"
    if not saved["recipe"]["max_minutes"] or not path.is_file():
        return {}
    written = json.loads(json.dumps(asdict(read_recipe(type(recipe), path))))
    return {name: written[name] for name in FIXED_BY_TIME_LIMIT}


def _changed_files(saved: RunRecord, present: RunRecord) -> Iterator[str]:
    """Each file of both records whose content differs; other names are other options."""
    for name, digest in saved["files"].items():
        if present["files"].get(name, digest) != digest:
            yield _("the content of {name}", name=name)


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= SHOWN_LENGTH else text[: SHOWN_LENGTH - 3] + "..."
