"""Word boundaries, as word alignments count them: a run of letters and digits, or one character of Chinese or punctuation.

In: a text. Out: the span of each word. Explained in docs/translation.md, "Alignment".
"""

import re

# A word of an alphabet with its hyphens and apostrophes; of other scripts, and of punctuation, each character.
WORD = re.compile(r"[^\W\u2e80-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]+(?:['’-]\w+)*|\S")


def word_spans(text: str) -> list[tuple[int, int]]:
    """The (start, end) of each word: word_spans("我 don't") == [(0, 1), (2, 7)]."""
    return [word.span() for word in WORD.finditer(text)]
