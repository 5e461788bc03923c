"""Incremental detokenization: ids in one by one, text out as soon as it is certain.

Incomplete characters and possible beginnings of a stop string are held back; all pieces joined are
the whole text. See docs/explanation/decoding.md, "Streaming".
"""

import codecs
from collections.abc import Sequence

from qkv.text.normalization import remove_prefix_space
from qkv.text.tokenizer import Tokenizer

CONTEXT_TOKENS = 8  # previous tokens that decide whether a space precedes the next one


class IncrementalDetokenizer:
    """Ids in, complete characters out; bytes that are not valid UTF-8 become U+FFFD."""

    def __init__(self, tokenizer: Tokenizer, before: Sequence[int] = ()):
        self.tokenizer, self.special_ids = tokenizer, set(tokenizer.special_ids.values())
        self.recent = [id for id in before if id not in self.special_ids][-CONTEXT_TOKENS:]
        # Holds back the bytes of an incomplete character.
        self.decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        # Spaces held back at the beginning of a text; None: the text has begun.
        at_start = tokenizer.adds_prefix_space and not self.recent
        self.leading_spaces: str | None = "" if at_start else None

    def add(self, id: int) -> str:
        """The characters that this token completes."""
        return "" if id in self.special_ids else self._strip_prefix_space(self._decode(id))

    def finish(self) -> str:
        """The spaces held back at the beginning, if no word followed."""
        return self.leading_spaces or ""

    def _strip_prefix_space(self, text: str) -> str:
        """Remove the prefix space of a text, once something other than a space follows."""
        if self.leading_spaces is None:
            return text
        self.leading_spaces += text
        if not self.leading_spaces.strip(" "):
            return ""
        text = remove_prefix_space().decode([self.leading_spaces])
        self.leading_spaces = None
        return text

    def _decode(self, id: int) -> str:
        piece = self.tokenizer._bytes(self.tokenizer.tokens([id])[0])
        if isinstance(piece, bytes):
            text = self.decoder.decode(piece)
        else:
            text = self.decoder.decode(b"", True) + self._decode_after_recent(id)
        self.recent = [*self.recent, id][-CONTEXT_TOKENS:]
        return text

    def _decode_after_recent(self, id: int) -> str:
        """The text that a token adds to the recent ones: joining depends on both."""
        before, both = self.tokenizer.decode_batch([self.recent, [*self.recent, id]])
        return both[len(before) :]


class TextStream:
    """Ids in, text out, up to the first `stop` string, which is not part of the text."""

    def __init__(self, tokenizer: Tokenizer, stop: Sequence[str] = (), before: Sequence[int] = ()):
        self.detokenizer, self.stop = IncrementalDetokenizer(tokenizer, before), tuple(stop)
        self.held = ""  # may be the beginning of a stop string
        self.stopped = False

    def add(self, id: int) -> str:
        """The text that is certain after this token."""
        return self._release(self.detokenizer.add(id), last=False)

    def finish(self) -> str:
        """The text held back; bytes of an incomplete character are dropped."""
        return self._release(self.detokenizer.finish(), last=True)

    def _release(self, new: str, last: bool) -> str:
        if self.stopped:
            return ""
        text = self.held + new
        found = [start for stop in self.stop if (start := text.find(stop)) >= 0]
        if found:
            self.stopped, self.held = True, ""
            return text[: min(found)]
        end = len(text) if last else len(text) - partial_stop_length(text, self.stop)
        self.held = text[end:]
        return text[:end]


def partial_stop_length(text: str, stops: Sequence[str]) -> int:
    """The length of the longest suffix that begins a stop string.

    >>> partial_stop_length("one <", ["<end>"])
    1
    """
    sizes = (
        size
        for stop in stops
        for size in range(min(len(stop) - 1, len(text)), 0, -1)
        if text.endswith(stop[:size])
    )
    return max(sizes, default=0)


def text_of(tokenizer: Tokenizer, ids: Sequence[int], before: Sequence[int] = ()) -> str:
    """The text of ids that follow others, as a TextStream gives it."""
    stream = TextStream(tokenizer, before=before)
    return "".join([stream.add(id) for id in ids]) + stream.finish()
