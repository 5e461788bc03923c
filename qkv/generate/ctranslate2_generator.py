"""Writing with CTranslate2: the likeliest text, the same as the torch model's, and torch is never imported.

In: a folder of a language model that `qkv export --to ctranslate2` wrote, then prompts. Out: what follows each. Only greedy:
CTranslate2 cannot repeat its draws, and a seed that gives another text each time is none. Told in docs/ctranslate2.md, "Writing".
"""

from collections.abc import Iterator
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from qkv.errors import QkvError
from qkv.generate.ctranslate2_translator import compute_type, open_core, read_facts, read_json
from qkv.generate.settings import Writing
from qkv.generate.writing import Draft, TextGenerator
from qkv.language import say
from qkv.text.tokenizer import Tokenizer


@dataclass
class Growing:
    """A text in the making; the model looks back at its ids from `start` on, with the beginning mark once some are gone."""

    ids: list[int]
    n_prompt: int
    start: int = 0
    why: str = ""  # it is not over
    log_probs: list[float] = field(default_factory=list)
    best: list[list[tuple[int, float]]] = field(default_factory=list)

    @property
    def length(self) -> int:
        return len(self.ids) - self.n_prompt

    def draft(self) -> Draft:
        return Draft(self.ids[self.n_prompt :], self.why, self.log_probs, self.best)


class CTranslate2Writer(TextGenerator):
    """writer("Once upon", temperature=0) == " a time, there was a little girl"; lists give lists."""

    def __init__(self, folder: str | Path, device: str = "cpu"):
        folder = Path(folder)
        facts = read_facts(folder, "generator")
        self.tokenizer = Tokenizer.load(folder / "tokenizer.json")
        self.names = read_json(folder / "vocabulary.json")
        self.begin, self.first, self.ends = tuple(facts["begin"]), facts["first"], tuple(facts["ends"])
        self.context, self.vocab_size = facts["max_len"], len(self.names)
        self.core = open_core("Generator", folder, device, compute_type(facts, device))

    def settled(self, **settings: Any) -> tuple[Writing, tuple[int, ...]]:
        chosen, ends = super().settled(**settings)
        refuse_other_rules(chosen)
        return chosen, ends

    def write_batch(self, prompts: list[list[int]], settings: Writing, ends: tuple[int, ...]) -> list[Draft]:
        texts = [Growing(list(prompt), len(prompt)) for prompt in prompts]
        while alive := [text for text in texts if not text.why]:
            for text in alive:
                self._look_back(text)
            # Prompts of one length go together: CTranslate2 reads only the shortest's length at once.
            for _, some in groupby(sorted(alive, key=self._reach), key=self._reach):
                self._go_on(list(some), settings, ends)
        return [text.draft() for text in texts for _ in range(settings.n)]

    def write_stream(self, prompt: list[int], settings: Writing, ends: tuple[int, ...]) -> Iterator[int]:
        text = Growing(list(prompt), len(prompt))
        while not text.why:
            context, before = self._named(self._look_back(text)), text.length
            steps = self._steps(text, settings)
            with self._listening(), closing(self.core.generate_tokens(
                    context, max_length=steps, **self._rules(settings, ends))) as tokens:
                for step in tokens:
                    text.ids.append(step.token_id)
                    yield step.token_id
            text.why = "end" if text.length - before < steps else "length" if text.length == settings.max_new_tokens else ""

    def _go_on(self, texts: list[Growing], settings: Writing, ends: tuple[int, ...]) -> None:
        """Write until the texts end or their context is full."""
        contexts, steps = list(map(self._look_back, texts)), min(self._steps(text, settings) for text in texts)
        streams = [self.text_stream(text.ids[: text.n_prompt], settings) for text in texts]
        for text, stream in zip(texts, streams, strict=True):
            for id in text.ids[text.n_prompt :]:
                stream.add(id)  # what was said before the context was full

        def stopped(step: Any) -> bool:
            streams[step.batch_id].add(step.token_id)
            return streams[step.batch_id].stopped
        with self._listening() if settings.stop else nullcontext():
            results = self.core.generate_batch(
                list(map(self._named, contexts)), max_length=steps, include_prompt_in_result=False, return_end_token=True,
                callback=stopped if settings.stop else None, **self._rules(settings, ends))
        for text, context, stream, result in zip(texts, contexts, streams, results, strict=True):
            said = result.sequences_ids[0]
            text.ids += said
            text.why = "end" if said[-1] in ends else "stop" if stream.stopped else (
                "length" if text.length == settings.max_new_tokens else "")
            if settings.logprobs is not None:
                self._note(text, context, said, settings.logprobs)

    @contextmanager
    def _listening(self) -> Iterator[None]:
        """Inside, CTranslate2 calls us at every token. It lets go of us a little after the last, and if Python ends before,
        the process is aborted: so one small task more, and it has."""
        try:
            yield
        finally:
            self.core.forward_batch([self.names[:1]])

    def _note(self, text: Growing, context: list[int], said: list[int], n_best: int) -> None:
        """The log-probabilities of what was said, by the model itself, before any rule."""
        told = self.core.forward_batch([self._named([*context, *said[:-1]])], return_log_probs=True)
        rows = np.array(told)[0, len(context) - 1 :]                      # (said, vocab)
        for row, id in zip(rows, said, strict=True):
            text.log_probs.append(float(row[id]))
            text.best.append([(int(one), float(row[one])) for one in np.argsort(-row, kind="stable")[:n_best]])

    def _reach(self, text: Growing) -> int:
        """Tokens that the model looks back at."""
        return len(text.ids) - text.start + (len(self.begin) if text.start else 0)

    def _steps(self, text: Growing, settings: Writing) -> int:
        """Tokens until the context is full or all is written; the last one is said and not read."""
        return min(self.context + 1 - self._reach(text), settings.max_new_tokens - text.length)

    def _look_back(self, text: Growing) -> list[int]:
        """All of a text; of one that is too long the beginning mark and the last part, by generate/loop.py's rule."""
        half = max(1, self.context // 2)
        if self._reach(text) > self.context:
            size = max(len(self.begin) + 1, self.context - (half - text.length % half))
            text.start = len(text.ids) - (size - len(self.begin))
        return [*(self.begin if text.start else ()), *text.ids[text.start :]]

    def _named(self, ids: list[int]) -> list[str]:
        return [self.names[id] for id in ids]

    def _rules(self, settings: Writing, ends: tuple[int, ...]) -> dict[str, Any]:
        banned = [[self.names[id]] for id in settings.banned]
        return {"end_token": list(ends), "suppress_sequences": banned or None, "min_length": 0}


def refuse_other_rules(settings: Writing) -> None:
    """What CTranslate2 does in another way than we, or not at all."""
    torch = say("or use --engine torch", "或用 --engine torch")
    if settings.temperature != 0:
        raise QkvError("temperature", say("CTranslate2 cannot repeat its draws", "CTranslate2 的抽样无法重复"),
                       say(f"use 0 (greedy), {torch}", f"请用 0（贪心），{torch}"))
    if settings.repetition_penalty != 1:
        raise QkvError("repetition_penalty", say("CTranslate2 counts repeats in its own way", "CTranslate2 对重复的算法不同"),
                       say(f"use 1, {torch}", f"请用 1，{torch}"))
    if settings.forced:
        raise QkvError("forced", say("CTranslate2 can only ban tokens", "CTranslate2 只能禁用词元"),
                       say(f"use banned, {torch}", f"请用 banned，{torch}"))
