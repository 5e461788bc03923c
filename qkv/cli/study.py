"""`qkv study`: answer a question about Transformers by experiments on this machine.

See docs/explanation/studies/index.md.
"""

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from qkv.cli.options import Json
from qkv.cli.output import print_json
from qkv.cli.parameters import argument, option
from qkv.errors import QkvError
from qkv.messages import _

if TYPE_CHECKING:
    from qkv.study.runner import StudyStopped
    from qkv.study.study import Study


def study(
    question: Annotated[str | None, argument(..., "the name of the study; see --list")] = None,
    show_list: bool = option(False, "list the studies", "--list"),
    text: str | None = option(None, "a text file to train on instead of the built-in corpus"),
    source: str | None = option(None, "source sentences, for the studies of translation"),
    target: str | None = option(None, "their translations, aligned by line"),
    seeds: int = option(3, "seeds of each condition"),
    minutes: float | None = option(
        None, "time limit in minutes; default: 10, for norm and scaling 30"
    ),
    steps: int | None = option(None, "training steps instead of a time limit"),
    quick: bool = option(False, "train for about 15 seconds in all: a test", "--quick"),
    out: Path | None = option(None, "the folder to write; default: runs/study-NAME"),
    as_json: Json = False,
) -> int:
    """Answer a question about Transformers by experiments on this machine."""
    from qkv.study.question import STUDIES

    if show_list:
        print_list(as_json)
        return 0
    if question is None:
        known = ", ".join(STUDIES)
        raise QkvError("qkv study", _("no study given"), _("choose from {known}", known=known))
    from qkv.study.config import StudyConfig
    from qkv.study.runner import StudyStopped
    from qkv.study.study import default_folder, run
    from qkv.train.signals import STOPPED

    config = StudyConfig(seeds, minutes, steps, quick, text, source, target)
    try:
        finished = run(question, out, config)
    except StudyStopped as stopped:
        print_stopped(stopped, out or default_folder(question, config))
        return STOPPED
    print_study(finished, as_json)
    return 0


def print_list(as_json: bool) -> None:
    """The studies with their questions."""
    from qkv.study.question import STUDIES

    if as_json:
        rows = [{"study": name, "question": _(entry.question)} for name, entry in STUDIES.items()]
        print_json(rows, indent=2)
        return
    width = max(map(len, STUDIES))
    for name, entry in STUDIES.items():
        print(name.ljust(width), _(entry.question), sep="  ")


def print_study(finished: "Study", as_json: bool) -> None:
    from qkv.study.report import print_tables

    if as_json:
        print_json(finished.record, indent=2)
        return
    print_tables(finished.results)
    print(finished.conclusion)
    print(_("Published: {text}", text=_(finished.results.question.published)))
    print(_("Files: {folder}", folder=finished.folder))


def print_stopped(stopped: "StudyStopped", folder: Path) -> None:
    """How to continue: the same command in the same folder."""
    line = _(
        "stopped: {n_done} of {n_all} measurements are done ({folder}); continue with: {command}",
        n_done=stopped.n_done,
        n_all=stopped.n_all,
        folder=folder,
        command=shlex.join(["qkv", *sys.argv[1:]]),
    )
    print(line, file=sys.stderr)
