"""The description of a study: a question, its experiments, their conditions and published results.

A study is a value; `measure` of an experiment runs in a worker process.
See docs/explanation/studies/index.md, "Parts of a study".
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from qkv.messages import N_, _

if TYPE_CHECKING:
    from qkv.study.results import Results

Settings = Mapping[str, Any]
Measurement = dict[str, Any]  # name -> number or list of numbers; None: not finite


class Trial(NamedTuple):
    """What one measurement gets: the settings of its condition, the seed, steps and data."""

    settings: Settings
    seed: int
    steps: int  # of training; 0: the experiment does not train
    data: Path  # the folder with train.txt and valid.txt, or train.tsv and valid.tsv
    on_step: Callable[[int], None]  # called with the number of each step


@dataclass(frozen=True)
class Condition:
    """One condition of an experiment; the label is filled in with the settings."""

    label: str
    settings: Settings = field(default_factory=dict)

    @property
    def text(self) -> str:
        return _(self.label, **self.settings)


@dataclass(frozen=True)
class Column:
    """A column of the table: a measured number, with its heading and format."""

    key: str
    title: str
    format: str = ".3f"


@dataclass(frozen=True)
class Values:
    """A panel of the figure with one row per condition: the measured number `y`."""

    y: str
    y_label: str


@dataclass(frozen=True)
class Lines:
    """A panel with one line per condition: the measured lists `x` and `y`."""

    x: str
    y: str
    x_label: str
    y_label: str
    log_x: bool = False
    log_y: bool = False


@dataclass(frozen=True)
class Points:
    """A panel with one line per value of the setting `by`: the setting `x`, the number `y`."""

    x: str
    y: str
    x_label: str
    y_label: str
    by: str = ""
    log_x: bool = False
    log_y: bool = False


Panel = Values | Lines | Points


@dataclass(frozen=True)
class Experiment:
    """Conditions that are measured in the same way, with what is held equal between them.

    Attributes:
        title: The heading of its table.
        conditions: By name, which is part of the names of files.
        measure: Measures one condition with one seed.
        equal: What the conditions have in common.
        columns: The table.
        panels: The figure.
        trains: Whether it trains a model for `Trial.steps` steps.
        compares: Whether, if it trains, the first column is compared with the first condition.
        n_seeds: The number of seeds; None: that of the study.
    """

    title: str
    conditions: Mapping[str, Condition]
    measure: Callable[[Trial], Measurement]
    equal: str
    columns: tuple[Column, ...]
    panels: tuple[Panel, ...] = ()
    trains: bool = False
    compares: bool = True
    n_seeds: int | None = None

    def seeds(self, n_seeds: int) -> range:
        return range(n_seeds if self.n_seeds is None else self.n_seeds)


@dataclass(frozen=True)
class Question:
    """A study: experiments that answer a question.

    Attributes:
        experiments: By name, which is part of the names of files.
        conclude: The conclusion, in the current language; it says what is within noise.
        published: What papers report, to compare with.
        data: The data that the experiments read.
        minutes: The default time limit.
    """

    experiments: Mapping[str, Experiment]
    conclude: Callable[["Results"], str]
    published: str
    data: Literal["none", "text", "pairs"] = "none"
    minutes: float = 10.0


class Entry(NamedTuple):
    """A study in the list of studies: the module that defines QUESTION, and the question."""

    module: str
    question: str


STUDIES = {
    "scale": Entry("qkv.study.scale", N_("Why are attention scores divided by √d_k?")),
    "heads": Entry("qkv.study.heads", N_("Do several heads help, at equal parameters?")),
    "norm": Entry(
        "qkv.study.norm", N_("Pre-norm or post-norm, with or without warmup, and which norm?")
    ),
    "residual": Entry("qkv.study.residual", N_("What happens without residual connections?")),
    "feed-forward": Entry("qkv.study.feed_forward", N_("What happens without the feed-forward?")),
    "positions": Entry(
        "qkv.study.positions",
        N_("Which position encoding, and what happens beyond the trained length?"),
    ),
    "smoothing": Entry(
        "qkv.study.smoothing", N_("Does label smoothing make perplexity worse and BLEU better?")
    ),
    "warmup": Entry(
        "qkv.study.schedules", N_("Which learning-rate schedule, and is warmup needed?")
    ),
    "optimizer": Entry(
        "qkv.study.optimizer", N_("Adam, AdamW or Muon, at equal steps and at equal time?")
    ),
    "mixers": Entry(
        "qkv.study.mixers", N_("Is attention better than an RNN, a convolution, an MLP or pooling?")
    ),
    "complexity": Entry(
        "qkv.study.complexity", N_("How do time, FLOPs and path length grow with length and width?")
    ),
    "cache": Entry("qkv.study.cache", N_("What does the KV cache save?")),
    "scaling": Entry(
        "qkv.study.scaling", N_("How does the loss fall with model size, data and compute?")
    ),
    "it": Entry("qkv.study.coreference", N_('Does attention find what "it" refers to?')),
    "context": Entry(
        "qkv.study.context", N_("One word, two meanings: where do its vectors separate?")
    ),
}


def load_question(name: str) -> Question:
    """The study of this name."""
    question: Question = import_module(STUDIES[name].module).QUESTION
    return question
