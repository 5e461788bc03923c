"""Word boundaries for word alignment. See docs/guides/translation.md.

A word is a run of letters and digits (with its hyphens and apostrophes), or one Chinese character
or punctuation mark.
"""

import re

# Alphabetic scripts: a word; other scripts and punctuation: each character.
WORD = re.compile(r"[^\W\u2e80-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]+(?:['’-]\w+)*|\S")


def word_spans(text: str) -> list[tuple[int, int]]:
    """Return the (start, end) of each word: word_spans("我 don't") == [(0, 1), (2, 7)]."""
    return [word.span() for word in WORD.finditer(text)]
