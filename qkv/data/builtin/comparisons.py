"""Comparisons of the built-in corpus: 比 (more than), 没有 (not as), 一样 (as ... as).

See docs/guides/data.md.
"""

from qkv.data.builtin import english
from qkv.data.builtin.phrases import Who, said
from qkv.data.builtin.words import Word

# How much: after the Chinese adjective, before the English one.
DIFFERENCES = [("", ""), ("得多", "much "), ("一点", "a little ")]


def more_than(
    first: Word | Who, second: Word | Who, look: Word, difference: tuple[str, str] = ("", "")
) -> Word:
    """Return 李明比王强高得多, li ming is much taller than wang qiang."""
    zh, en = difference
    return said(
        f"{first.zh}比{second.zh}{look.zh}{zh}",
        f"{first.en} is {en}{english.more(look.en)} than {second.en}",
    )


def not_as(first: Word, second: Word, look: Word) -> Word:
    """Return 李明没有王强高, li ming is not as tall as wang qiang."""
    return said(
        f"{first.zh}没有{second.zh}{look.zh}", f"{first.en} is not as {look.en} as {second.en}"
    )


def equally(first: Word, second: Word, look: Word) -> Word:
    """Return 李明和王强一样高, li ming is as tall as wang qiang."""
    return said(
        f"{first.zh}和{second.zh}一样{look.zh}", f"{first.en} is as {look.en} as {second.en}"
    )
