"""From ids to text while it is being written: never half a character, never the beginning of a stop.

In: ids, one at a time. Out: the text that can be shown by now; all pieces joined are the whole text.
Told in docs/generation.md, "Streams".
"""

import codecs
from collections.abc import Sequence

from qkv.text.pipeline import remove_prefix_space
from qkv.text.tokenizer import Tokenizer

WINDOW = 8  # tokens that tell how the next one joins on: whether a space stands between


class Characters:
    """Ids in, whole characters out; bytes that are surely no character come out as U+FFFD, the sign for that."""

    def __init__(self, tokenizer: Tokenizer, before: Sequence[int] = ()):
        self.tokenizer, self.specials = tokenizer, set(tokenizer.special_ids.values())
        self.last = [id for id in before if id not in self.specials][-WINDOW:]
        self.bytes = codecs.getincrementaldecoder("utf-8")(
            errors="replace"
        )  # keeps what is not yet a character
        self.spaces: str | None = (
            "" if tokenizer.adds_prefix_space and not self.last else None
        )  # held at the beginning

    def add(self, id: int) -> str:
        """The characters that are whole with this token."""
        return "" if id in self.specials else self._begun(self._added(id))

    def finish(self) -> str:
        """The spaces held at the beginning, now that no word follows."""
        return self.spaces or ""

    def _begun(self, text: str) -> str:
        """Where a text begins, its prefix space is removed, which can be told only once something else follows."""
        if self.spaces is None:
            return text
        self.spaces += text
        if not self.spaces.strip(" "):
            return ""
        text, self.spaces = remove_prefix_space().decode([self.spaces]), None
        return text

    def _added(self, id: int) -> str:
        piece = self.tokenizer._bytes(self.tokenizer.tokens([id])[0])
        text = (
            self.bytes.decode(piece)
            if isinstance(piece, bytes)
            else self.bytes.decode(b"", True) + self._joined(id)
        )
        self.last = [*self.last, id][-WINDOW:]
        return text

    def _joined(self, id: int) -> str:
        """What a token adds to the last ones: tokenizers join words by looking at both."""
        before, both = self.tokenizer.decode_batch([self.last, [*self.last, id]])
        return both[len(before) :]


class TextStream:
    """Ids in, text out, up to the first of the `stop` strings, which is itself never shown."""

    def __init__(self, tokenizer: Tokenizer, stop: Sequence[str] = (), before: Sequence[int] = ()):
        self.characters, self.stop = Characters(tokenizer, before), tuple(stop)
        self.held = ""  # may be the beginning of a stop
        self.stopped = False

    def add(self, id: int) -> str:
        """The text that can be shown now."""
        return self._show(self.characters.add(id), last=False)

    def finish(self) -> str:
        """What was held back, now that nothing follows; bytes that never became a character are left off."""
        return self._show(self.characters.finish(), last=True)

    def _show(self, new: str, last: bool) -> str:
        if self.stopped:
            return ""
        text = self.held + new
        places = [place for stop in self.stop if (place := text.find(stop)) >= 0]
        if places:
            self.stopped, self.held = True, ""
            return text[: min(places)]
        end = len(text) if last else len(text) - begun(text, self.stop)
        self.held = text[end:]
        return text[:end]


def begun(text: str, stops: Sequence[str]) -> int:
    """How many characters at the end may be the beginning of a stop: begun("one <", ["<end>"]) == 1."""
    sizes = (
        size
        for stop in stops
        for size in range(min(len(stop) - 1, len(text)), 0, -1)
        if text.endswith(stop[:size])
    )
    return max(sizes, default=0)


def text_of(tokenizer: Tokenizer, ids: Sequence[int], before: Sequence[int] = ()) -> str:
    """The text of ids that follow others, as a stream of them would give it."""
    stream = TextStream(tokenizer, before=before)
    return "".join([stream.add(id) for id in ids]) + stream.finish()
