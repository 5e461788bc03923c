"""Results of a study: every measurement of every condition and seed, and their summaries."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from qkv.study.question import Experiment, Measurement, Question
from qkv.study.statistics import Comparison, deviation, paired_t_test

Measurements = dict[str, dict[str, list[Measurement]]]  # experiment -> condition -> by seed


@dataclass(frozen=True)
class Results:
    """The measurements of a study.

    Attributes:
        question: The study.
        measurements: By experiment and condition, a list in the order of the seeds.
    """

    question: Question
    measurements: Measurements

    def values(self, experiment: str, condition: str, key: str) -> list[float]:
        """A number of every seed; NaN where it was not finite."""
        found = [measured[key] for measured in self.measurements[experiment][condition]]
        return [math.nan if value is None else float(value) for value in found]

    def mean(self, experiment: str, condition: str, key: str) -> float:
        return fmean(self.values(experiment, condition, key))

    def compare(self, experiment: str, key: str, first: str, second: str) -> Comparison:
        """The paired difference of a number, second - first."""
        return paired_t_test(
            self.values(experiment, first, key), self.values(experiment, second, key)
        )

    def best(self, experiment: str, key: str, conditions: Iterable[str] | None = None) -> str:
        """The condition with the lowest mean; not finite is the highest."""
        names = self.measurements[experiment] if conditions is None else conditions
        means = {name: self.mean(experiment, name, key) for name in names}
        return min(means, key=lambda name: math.inf if math.isnan(means[name]) else means[name])

    def label(self, experiment: str, condition: str) -> str:
        return self.question.experiments[experiment].conditions[condition].text

    def summary(self, experiment: str) -> dict[str, dict[str, Any]]:
        """Of each condition: mean, deviation and comparison of the numbers of the table."""
        described = self.question.experiments[experiment]
        return {name: self._row(experiment, described, name) for name in described.conditions}

    def _row(self, experiment: str, described: Experiment, condition: str) -> dict[str, Any]:
        measured = self.measurements[experiment][condition][0]
        row: dict[str, Any] = {}
        for column in described.columns:
            if column.key in measured:
                values = self.values(experiment, condition, column.key)
                row[column.key] = {"mean": fmean(values), "deviation": deviation(values)}
        key, first = described.columns[0].key, next(iter(described.conditions))
        if described.trains and described.compares and condition != first:
            compared = self.compare(experiment, key, first, condition)
            row["compared"] = {"difference": compared.difference, "p": compared.p}
        return row
