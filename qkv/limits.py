"""Ranges of the numbers that come from outside: options, settings, recipes.

Each config has one table of ranges by field name; its checks and the options of the command line
use this table.
"""

from collections.abc import Mapping
from typing import NamedTuple

from qkv.errors import QkvError
from qkv.messages import N_, _

MAX_BATCH_SIZE = 65_536
MAX_TOKENS = 2**20  # of a sequence: the longest published context lengths have 1 million tokens
MAX_TEXT_CHARACTERS = 2**20  # of a text to translate: its translation is kept until it is complete
MAX_SHOWN_BITS = 128  # of a number in a message


class NumberRange(NamedTuple):
    """The numbers from `least` to `most`, both included.

    >>> 3 in NumberRange(1, 8), float("nan") in NumberRange(0, 1), NumberRange(1, 1e6).right()
    (True, False, 'use 1 to 1,000,000')
    """

    least: float
    most: float
    or_zero: bool = False  # 0 is allowed too
    message: str = N_("use {least} to {most}")  # what would be right, not yet translated

    def __contains__(self, value: object) -> bool:
        """False for NaN."""
        assert isinstance(value, int | float), value
        return self.least <= value <= self.most or (self.or_zero and value == 0)

    def right(self) -> str:
        """What would be right, in the user's language."""
        return _(self.message, least=format_number(self.least), most=format_number(self.most))

    def check(self, where: str, value: float | None) -> None:
        """Raise an error that names the option or field; None, an option not given, is right."""
        if value is not None and value not in self:
            raise QkvError(
                where, _("{value} is out of range", value=format_number(value)), self.right()
            )


K_LIMIT = NumberRange(1, 10**6)  # results of a search
Limits = Mapping[str, NumberRange]  # by the name of a field


def check_limits(settings: object, limits: Limits) -> None:
    """Check each field that has a range; its type has been checked before."""
    for name, limit in limits.items():
        limit.check(name, getattr(settings, name))


def format_number(value: float) -> str:
    """A number in a message: 1,024, 0.6, 1e-06; the digits of a very large one are left out."""
    if isinstance(value, float) and not (value.is_integer() and abs(value) < 1e15):
        return float.__repr__(value)  # all digits: 1.0000001 is not shown as 1
    return (
        f"{int(value):,}" if int(value).bit_length() <= MAX_SHOWN_BITS else _("a very large number")
    )
