"""The result of a check."""

from collections.abc import Iterable
from dataclasses import dataclass
from math import isnan

import torch

from qkv.check.checked_model import CheckedModel
from qkv.messages import _


@dataclass(frozen=True)
class CheckResult:
    """Outcome of one check; `passed` is None where the check does not apply."""

    passed: bool | None
    message: str
    difference: float | None = None  # the largest relative difference that was measured
    check: str = ""  # name, for programs
    title: str = ""  # in the language of the messages


def compared(checked: CheckedModel, differences: Iterable[tuple[str, float]]) -> CheckResult:
    """Passed if every (condition, difference) is within rounding; the message has the largest one.

    NaN counts as the largest.
    """
    condition, largest = max(differences, key=lambda item: torch.inf if isnan(item[1]) else item[1])
    if largest <= checked.tolerance:
        message = _("largest difference {difference:.0e}", difference=largest)
        return CheckResult(True, message, largest)
    message = _(
        "{condition}: relative difference {difference:.1e}", condition=condition, difference=largest
    )
    return CheckResult(False, message, largest)
