"""Generation with CTranslate2: greedy decoding, the same text as the torch model's, and torch is never imported.

Only greedy: CTranslate2 cannot repeat its random draws, so a seed would give another text at every call. Explained in
docs/ctranslate2.md, "Writing".
"""

from collections.abc import Iterator
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from qkv.checkpoint.ctranslate2.folder import compute_type, open_core, read_facts, read_names
from qkv.errors import QkvError
from qkv.generate.backend import Draft, OnToken
from qkv.generate.config import GenerationConfig
from qkv.messages import _
from qkv.text.special_tokens import GenerationTokens


@dataclass
class Growing:
    """An unfinished text; the model reads its ids from `start` on, after the begin tokens once some are dropped."""

    ids: list[int]
    n_prompt: int
    number: int = 0  # in the batch
    start: int = 0
    why: str = ""  # it is not finished
    stopped: bool = False
    log_probs: list[float] = field(default_factory=list)
    best: list[list[tuple[int, float]]] = field(default_factory=list)

    @property
    def length(self) -> int:
        return len(self.ids) - self.n_prompt

    def draft(self) -> Draft:
        return Draft(self.ids[self.n_prompt :], self.why, self.log_probs, self.best)


class CTranslate2Generation:
    """Greedy decoding with an exported decoder-only model."""

    model = None

    def __init__(self, folder: Path, device: str = "cpu"):
        facts = read_facts(folder, "generator")
        self.tokens = GenerationTokens(tuple(facts["begin"]), facts["first"], tuple(facts["ends"]))
        self.names, self.begin, self.context = (
            read_names(folder)[1],
            self.tokens.begin,
            facts["max_len"],
        )
        self.core = open_core("Generator", folder, device, compute_type(facts, device))

    def check(self, config: GenerationConfig) -> None:
        config.check_vocabulary(len(self.names))
        check_supported(config)

    def generate(
        self, prompts: list[list[int]], config: GenerationConfig, on_token: OnToken | None
    ) -> list[Draft]:
        texts = [
            Growing(list(prompt), len(prompt), number * config.n)
            for number, prompt in enumerate(prompts)
        ]
        while alive := [text for text in texts if not text.why]:
            for text in alive:
                self._look_back(text)
            # Prompts of one length go together: CTranslate2 reads only the shortest's length at once.
            for _reach, some in groupby(sorted(alive, key=self._reach), key=self._reach):
                self._go_on(list(some), config, on_token)
        return [text.draft() for text in texts for _ in range(config.n)]

    def stream(self, prompt: list[int], config: GenerationConfig) -> Iterator[int]:
        text = Growing(list(prompt), len(prompt))
        while not text.why:
            context, before = self._named(self._look_back(text)), text.length
            steps = self._steps(text, config)
            with (
                self._listening(),
                closing(
                    self.core.generate_tokens(context, max_length=steps, **self._rules(config))
                ) as tokens,
            ):
                for step in tokens:
                    text.ids.append(step.token_id)
                    yield step.token_id
            text.why = (
                "end"
                if text.length - before < steps
                else "length"
                if text.length == config.max_new_tokens
                else ""
            )

    def _go_on(
        self, texts: list[Growing], config: GenerationConfig, on_token: OnToken | None
    ) -> None:
        """Generate until the texts end or their context is full."""
        contexts, steps = (
            list(map(self._look_back, texts)),
            min(self._steps(text, config) for text in texts),
        )

        def stopped(step: Any) -> bool:
            text = texts[step.batch_id]
            text.stopped = on_token is not None and on_token(text.number, step.token_id)
            return text.stopped

        with self._listening() if on_token else nullcontext():
            results = self.core.generate_batch(
                list(map(self._named, contexts)),
                max_length=steps,
                include_prompt_in_result=False,
                return_end_token=True,
                callback=stopped if on_token else None,
                **self._rules(config),
            )
        for text, context, result in zip(texts, contexts, results, strict=True):
            said = result.sequences_ids[0]
            text.ids += said
            text.why = (
                "end"
                if said[-1] in config.stop_token_ids
                else "stop"
                if text.stopped
                else ("length" if text.length == config.max_new_tokens else "")
            )
            if config.logprobs is not None:
                self._note(text, context, said, config.logprobs)

    @contextmanager
    def _listening(self) -> Iterator[None]:
        """Inside, CTranslate2 calls us at every token. It releases the callback a little after the last token, and the process is
        aborted if Python exits before: one small task more, and it is released."""
        try:
            yield
        finally:
            self.core.forward_batch([self.names[:1]])

    def _note(self, text: Growing, context: list[int], said: list[int], n_best: int) -> None:
        """The log-probabilities of what was said, by the model itself, before any rule."""
        told = self.core.forward_batch([self._named([*context, *said[:-1]])], return_log_probs=True)
        rows = np.array(told)[0, len(context) - 1 :]  # (said, vocab)
        for row, id in zip(rows, said, strict=True):
            text.log_probs.append(float(row[id]))
            text.best.append(
                [(int(one), float(row[one])) for one in np.argsort(-row, kind="stable")[:n_best]]
            )

    def _reach(self, text: Growing) -> int:
        """Tokens that the model looks back at."""
        return len(text.ids) - text.start + (len(self.begin) if text.start else 0)

    def _steps(self, text: Growing, config: GenerationConfig) -> int:
        """Tokens until the context is full or all is written; the last one is said and not read."""
        return min(self.context + 1 - self._reach(text), config.max_new_tokens - text.length)

    def _look_back(self, text: Growing) -> list[int]:
        """All of a text; of one that is too long the beginning mark and the last part, by generate/loop.py's rule."""
        half = max(1, self.context // 2)
        if self._reach(text) > self.context:
            size = max(len(self.begin) + 1, self.context - (half - text.length % half))
            text.start = len(text.ids) - (size - len(self.begin))
        return [*(self.begin if text.start else ()), *text.ids[text.start :]]

    def _named(self, ids: list[int]) -> list[str]:
        return [self.names[id] for id in ids]

    def _rules(self, config: GenerationConfig) -> dict[str, Any]:
        banned = [[self.names[id]] for id in config.banned]
        return {
            "end_token": list(config.stop_token_ids),
            "suppress_sequences": banned or None,
            "min_length": 0,
        }


def check_supported(config: GenerationConfig) -> None:
    """Refuse what CTranslate2 does differently or not at all."""
    torch = _("or use --engine torch")
    if config.temperature != 0:
        raise QkvError(
            "temperature",
            _("CTranslate2 cannot repeat its draws"),
            _("use 0 (greedy), {torch}", torch=torch),
        )
    if config.repetition_penalty != 1:
        raise QkvError(
            "repetition_penalty",
            _("CTranslate2 counts repeats in its own way"),
            _("use 1, {torch}", torch=torch),
        )
    if config.forced:
        raise QkvError(
            "forced", _("CTranslate2 can only ban tokens"), _("use banned, {torch}", torch=torch)
        )
