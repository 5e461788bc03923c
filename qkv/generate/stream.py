"""From ids to text while it is being written: never half a character, never the beginning of a stop.

In: ids, one at a time. Out: the text that can be shown by now; all pieces joined are the whole text.
Told in docs/generation.md, "Streams".
"""

from collections.abc import Sequence

from qkv.text.tokenizer import Tokenizer

UNFINISHED = 3     # a character has four bytes at most, so a begun one has three tokens at most
WINDOW = 8         # tokens before the text that tell how it joins on: whether a space stands between
BROKEN = "\ufffd"  # what a tokenizer gives for bytes that are not a whole character


class Characters:
    """Ids in, whole characters out; bytes that are surely no character come out as U+FFFD."""

    def __init__(self, tokenizer: Tokenizer, before: Sequence[int] = ()):
        self.tokenizer = tokenizer
        self.known = self._last_whole(list(before))  # tokens whose text is out, as far as it matters for what follows
        self.waiting: list[int] = []                 # tokens whose text is not out yet: they end within a character

    def add(self, id: int) -> str:
        """The characters that are whole with this token."""
        self.waiting.append(id)
        surely_broken = ""
        if len(self.waiting) > UNFINISHED and self._is_cut(self._text()):
            surely_broken, self.known = self.tokenizer.decode(self.waiting[:1]), []
            del self.waiting[0]
        text = self._text()
        if self._is_cut(text):
            return surely_broken
        self.known = self.waiting if text else (self.known + self.waiting)[:WINDOW]
        self.waiting = []
        return surely_broken + text

    def finish(self) -> str:
        """The rest; bytes that never became a character are left off."""
        text = self._text()
        text = text.rstrip(BROKEN) if self._is_cut(text) else text
        self.known, self.waiting = self.waiting, []
        return text

    def _text(self) -> str:
        """What the waiting tokens add to the known ones: tokenizers join words by looking at both."""
        known, both = self.tokenizer.decode_batch([self.known, self.known + self.waiting])
        if both.startswith(known):
            return both[len(known) :]
        return self.tokenizer.decode(self.waiting)  # one foreign byte spoils its neighbours, but theirs is out already

    def _is_cut(self, text: str) -> bool:
        """Whether it ends within a character; the model may also mean the sign U+FFFD itself."""
        if not text.endswith(BROKEN):
            return False
        shown = "".join(self.tokenizer.tokens_for_people(self.waiting))
        return not shown.endswith(("<U+FFFD>", BROKEN))

    def _last_whole(self, before: list[int]) -> list[int]:
        """The last tokens, beginning with a whole character."""
        tails = [before[max(0, len(before) - size) :] for size in range(WINDOW, WINDOW - 4, -1)]
        return next((tail for tail in tails if not self.tokenizer.decode(tail).startswith(BROKEN)), [])


class TextStream:
    """Ids in, text out, up to the first of the `stop` strings, which is itself never shown."""

    def __init__(self, tokenizer: Tokenizer, stop: Sequence[str] = (), before: Sequence[int] = ()):
        self.characters, self.stop = Characters(tokenizer, before), tuple(stop)
        self.held = ""        # may be the beginning of a stop
        self.stopped = False

    def add(self, id: int) -> str:
        """The text that can be shown now."""
        return self._show(self.characters.add(id), last=False)

    def finish(self) -> str:
        """What was held back, now that nothing follows."""
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
    sizes = (size for stop in stops for size in range(min(len(stop) - 1, len(text)), 0, -1) if text.endswith(stop[:size]))
    return max(sizes, default=0)


def text_of(tokenizer: Tokenizer, ids: Sequence[int], before: Sequence[int] = ()) -> str:
    """The text of ids that follow others, as a stream of them would give it."""
    stream = TextStream(tokenizer, before=before)
    return "".join([stream.add(id) for id in ids]) + stream.finish()
