"""Settings of a study run, for `qkv.study.run` and `qkv study`."""

from dataclasses import dataclass

from qkv.arguments import check_types
from qkv.errors import QkvError
from qkv.limits import Limits, NumberRange, check_limits
from qkv.messages import _

__all__ = ["StudyConfig"]

LIMITS: Limits = {
    "seeds": NumberRange(1, 100),
    "minutes": NumberRange(0.1, 100_000),
    "steps": NumberRange(1, 10**7),
    "workers": NumberRange(1, 256),
}


@dataclass(frozen=True)
class StudyConfig:
    """How long a study trains, on how many seeds, and on which data.

    >>> StudyConfig(seeds=5, minutes=20).quick
    False

    Attributes:
        seeds: The number of seeds of each condition; the paired test needs at least 2.
        minutes: The time limit; None: the default of the study.
        steps: Training steps instead of a time limit, to repeat a run exactly.
        quick: Train for about 15 seconds in all: a test, without a meaningful result.
        text: A text file to train on instead of the built-in corpus.
        source: Source sentences, one per line, for the studies of translation.
        target: Their translations, aligned by line.
        workers: The number of processes; None: one per CPU.
    """

    seeds: int = 3
    minutes: float | None = None
    steps: int | None = None
    quick: bool = False
    text: str | None = None
    source: str | None = None
    target: str | None = None
    workers: int | None = None

    def __post_init__(self) -> None:
        check_types(self)
        check_limits(self, {name: limit for name, limit in LIMITS.items() if self._is_set(name)})
        given = [name for name in ("minutes", "steps", "quick") if self._is_set(name)]
        if len(given) > 1:
            wrong = _("{first} and {second} both set the length", first=given[0], second=given[1])
            raise QkvError(given[1], wrong, _("give one of them"))
        if (self.source is None) != (self.target is None):
            raise QkvError("source", _("needs a target, and a target a source"), _("give both"))

    def _is_set(self, name: str) -> bool:
        value = getattr(self, name)
        return value is not None and value is not False
