"""From prompts to written texts, whoever writes: marks, batches, stops, streams.

In: prompts. Out: what was written after each, in the order of the prompts. It knows no torch: the torch model
(pipeline/generator.py) and other engines each bring their own loop. Told in docs/generation.md.
"""

import secrets
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from qkv.errors import QkvError
from qkv.generate.settings import Writing
from qkv.generate.stream import TextStream
from qkv.language import say
from qkv.text.tokenizer import Tokenizer


class Draft(NamedTuple):
    """What was said after a prompt, as ids; `why` it ended: an "end" token, a "stop" text, or its "length"."""

    ids: list[int]
    why: str
    log_probs: Sequence[float] = ()                # of each token, by the model itself, before any rule
    best: Sequence[list[tuple[int, float]]] = ()   # at each place the likeliest tokens, with theirs


@dataclass(frozen=True)
class Written:
    """A text that follows a prompt, and how it came about."""

    text: str
    ids: list[int]
    why: str
    seed: int
    tokens: list[str] = field(default_factory=list)  # as a person reads them
    log_probs: list[float] | None = None              # None: not asked for
    best: list[list[tuple[str, float]]] | None = None


class TextGenerator(ABC):
    """generator("ROMEO:") == " what light through yonder window breaks?"; lists give lists."""

    tokenizer: Tokenizer
    begin: tuple[int, ...]  # what the model expects before every text
    first: int | None       # what stands where a text has no beginning of its own: the mark between documents
    ends: tuple[int, ...]   # ids that end a text
    context: int            # tokens it can look back at
    vocab_size: int

    def __call__(self, prompts: str | Sequence[str], **settings: Any) -> Any:
        """What follows each prompt, without the prompt: a text, or with n > 1 a list; `settings` are those of Writing."""
        if isinstance(prompts, str):
            return self([prompts], **settings)[0]
        written = self.generate(prompts, **settings)
        return [[one.text for one in some] if len(some) > 1 else some[0].text for some in written]

    def generate(self, prompts: Sequence[str], **settings: Any) -> list[list[Written]]:
        """The `n` texts of each prompt, with their ids, why they ended and, if wanted, log-probabilities."""
        chosen, stops = self.settled(**settings)
        ids = [self.encode_prompt(prompt) for prompt in prompts]
        order = sorted(range(len(ids)), key=lambda n: -len(ids[n]))  # those of one length together
        found: dict[int, list[Written]] = {}
        size = max(1, chosen.batch_size // chosen.n)
        for some in (order[start : start + size] for start in range(0, len(order), size)):
            drafts = iter(self.write_batch([ids[n] for n in some], chosen, stops))
            for n in some:
                found[n] = [self._written(ids[n], next(drafts), chosen) for _ in range(chosen.n)]
        return [found[n] for n in range(len(ids))]

    def stream(self, prompt: str, **settings: Any) -> Iterator[str]:
        """The text that follows a prompt, piece by piece as it is written; joined it is generator(prompt, ...)."""
        chosen, stops = self.settled(**settings)
        if chosen.n > 1:
            raise QkvError("n", say(f"{chosen.n} texts in one stream", f"一个流里要 {chosen.n} 段文本"), say("stream them one by one", "请逐段生成"))
        return self._pieces(self.encode_prompt(prompt), chosen, stops)

    def settled(self, **settings: Any) -> tuple[Writing, tuple[int, ...]]:
        """The settings, each known to be possible with this model, with their seed; and the ids that end a text."""
        chosen = Writing(**settings)
        chosen.refuse_ids_beyond(self.vocab_size)
        specials = {self.tokenizer.special_ids[stop] for stop in chosen.stop if stop in self.tokenizer.special_ids}
        stop = tuple(one for one in chosen.stop if one not in self.tokenizer.special_ids)
        for one in stop:
            ids = self.tokenizer.encode(one)
            if not ids or self.tokenizer.unk_id in ids:
                raise QkvError("stop", say(f"'{one}' never comes", f"'{one}' 不会出现"), say(
                    "this vocabulary cannot write it", "这个词表写不出它"))
        seed = secrets.randbits(32) if chosen.seed is None else chosen.seed
        return replace(chosen, stop=stop, seed=seed), tuple(sorted({*self.ends, *specials}))

    def encode_prompt(self, prompt: str) -> list[int]:
        """The ids a prompt is read as; an empty one begins a new text."""
        ids = [*self.begin, *self.tokenizer.encode(prompt)]
        if not ids and self.first is None:
            raise QkvError("prompt", say("empty, and the vocabulary has no mark to begin with", "提示为空，词表中又没有起始标记"),
                           say("give some text", "请给出文字"))
        ids = ids or [self.first or 0]
        if len(ids) > self.context:
            raise QkvError("prompt", say(f"{len(ids):,} tokens, the model reads {self.context:,}",
                                         f"有 {len(ids):,} 个词元，模型最多读 {self.context:,} 个"),
                           say("shorten it", "请缩短"))
        return ids

    @abstractmethod
    def write_batch(self, prompts: list[list[int]], settings: Writing, ends: tuple[int, ...]) -> list[Draft]:
        """`settings.n` drafts for each prompt, prompt after prompt; an end token is part of its draft."""

    @abstractmethod
    def write_stream(self, prompt: list[int], settings: Writing, ends: tuple[int, ...]) -> Iterator[int]:
        """The ids that write_batch would give, one by one as they come."""

    def text_stream(self, prompt: list[int], settings: Writing) -> TextStream:
        """What turns the ids that follow a prompt into text."""
        return TextStream(self.tokenizer, settings.stop, before=prompt)

    def _pieces(self, prompt: list[int], settings: Writing, ends: tuple[int, ...]) -> Iterator[str]:
        stream = self.text_stream(prompt, settings)
        for id in self.write_stream(prompt, settings, ends):
            if id not in ends and (piece := stream.add(id)):
                yield piece
            if stream.stopped:
                return
        if piece := stream.finish():
            yield piece

    def _written(self, prompt: list[int], draft: Draft, settings: Writing) -> Written:
        """The text of a draft, as far as its first stop."""
        stream, pieces = self.text_stream(prompt, settings), list[str]()
        for id in draft.ids[:-1] if draft.why == "end" else draft.ids:
            if not stream.stopped:
                pieces.append(stream.add(id))
        n = len(pieces) if stream.stopped else len(draft.ids)
        pieces.append(stream.finish())
        why, ids = "stop" if stream.stopped else draft.why, draft.ids[:n]
        assert settings.seed is not None
        written = Written("".join(pieces), ids, why, settings.seed, self.tokenizer.tokens_for_people(ids))
        if settings.logprobs is None:
            return written
        named = [[(self.tokenizer.tokens_for_people([id])[0], number) for id, number in some] for some in draft.best[:n]]
        return replace(written, log_probs=list(draft.log_probs[:n]), best=named)
