"""CTranslate2 backend for generation: greedy decoding, the same text as with torch, without torch.

Greedy only: CTranslate2 sampling cannot be seeded. See docs/guides/import-export.md, "Text
generation".
"""

from collections.abc import Iterator
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from qkv.checkpoint.ctranslate2.folder import compute_type, open_core, read_metadata, read_names
from qkv.errors import QkvError
from qkv.generate.backend import GeneratedTokens, OnToken
from qkv.generate.config import GenerationConfig
from qkv.messages import _
from qkv.text.special_tokens import GenerationTokens


@dataclass
class RunningSequence:
    """A prompt and the tokens generated after it; its context are the ids from `start` on.

    Once ids are dropped from the context, the begin tokens precede it.
    """

    ids: list[int]
    n_prompt: int
    index: int = 0  # in the batch
    start: int = 0
    finish_reason: str = ""  # "": not finished
    stopped: bool = False
    logprobs: list[float] = field(default_factory=list)
    top_logprobs: list[list[tuple[int, float]]] = field(default_factory=list)

    @property
    def n_new(self) -> int:
        return len(self.ids) - self.n_prompt

    def result(self) -> GeneratedTokens:
        new_ids = self.ids[self.n_prompt :]
        return GeneratedTokens(new_ids, self.finish_reason, self.logprobs, self.top_logprobs)


class CTranslate2Generation:
    """Greedy decoding with an exported decoder-only model."""

    model = None

    def __init__(self, folder: Path, device: str = "cpu"):
        metadata = read_metadata(folder, "generator")
        begin, first, ends = metadata["begin"], metadata["first"], metadata["ends"]
        self.tokens = GenerationTokens(tuple(begin), first, tuple(ends))
        self.names, self.begin = read_names(folder)[1], self.tokens.begin
        self.context_length = metadata["max_len"]
        self.core = open_core("Generator", folder, device, compute_type(metadata, device))

    def check(self, config: GenerationConfig) -> None:
        config.check_vocabulary(len(self.names))
        check_supported(config)

    def generate(
        self, prompts: list[list[int]], config: GenerationConfig, on_token: OnToken | None
    ) -> list[GeneratedTokens]:
        sequences = [
            RunningSequence(list(prompt), len(prompt), number * config.n)
            for number, prompt in enumerate(prompts)
        ]
        while running := [sequence for sequence in sequences if not sequence.finish_reason]:
            for sequence in running:
                self._context(sequence)
            # CTranslate2 prefills only as many tokens as the shortest prompt of a batch has, so
            # each batch has prompts of one length.
            running.sort(key=self._context_size)
            for _size, batch in groupby(running, key=self._context_size):
                self._extend(list(batch), config, on_token)
        return [sequence.result() for sequence in sequences for _ in range(config.n)]

    def stream(self, prompt: list[int], config: GenerationConfig) -> Iterator[int]:
        sequence = RunningSequence(list(prompt), len(prompt))
        while not sequence.finish_reason:
            context, before = self._named(self._context(sequence)), sequence.n_new
            steps = self._max_steps(sequence, config)
            options = self._options(config)
            with (
                self._callback_released(),
                closing(self.core.generate_tokens(context, max_length=steps, **options)) as tokens,
            ):
                for step in tokens:
                    sequence.ids.append(step.token_id)
                    yield step.token_id
            if sequence.n_new - before < steps:
                sequence.finish_reason = "eos"
            elif sequence.n_new == config.max_new_tokens:
                sequence.finish_reason = "length"

    def _extend(
        self, sequences: list[RunningSequence], config: GenerationConfig, on_token: OnToken | None
    ) -> None:
        """Generate until the sequences end or their context is full."""
        contexts = list(map(self._context, sequences))
        steps = min(self._max_steps(sequence, config) for sequence in sequences)

        def stopped(step: Any) -> bool:
            sequence = sequences[step.batch_id]
            sequence.stopped = on_token is not None and on_token(sequence.index, step.token_id)
            return sequence.stopped

        with self._callback_released() if on_token else nullcontext():
            results = self.core.generate_batch(
                list(map(self._named, contexts)),
                max_length=steps,
                include_prompt_in_result=False,
                return_end_token=True,
                callback=stopped if on_token else None,
                **self._options(config),
            )
        for sequence, context, result in zip(sequences, contexts, results, strict=True):
            new_ids = result.sequences_ids[0]
            sequence.ids += new_ids
            if new_ids[-1] in config.stop_token_ids:
                sequence.finish_reason = "eos"
            elif sequence.stopped:
                sequence.finish_reason = "stop"
            elif sequence.n_new == config.max_new_tokens:
                sequence.finish_reason = "length"
            if config.logprobs is not None:
                self._record_logprobs(sequence, context, new_ids, config.logprobs)

    @contextmanager
    def _callback_released(self) -> Iterator[None]:
        """For a call with a per-token callback: wait until CTranslate2 has released it.

        It releases the callback shortly after the last token, and the process aborts if Python
        exits before. After one more small task it is released.
        """
        try:
            yield
        finally:
            self.core.forward_batch([self.names[:1]])

    def _record_logprobs(
        self, sequence: RunningSequence, context: list[int], new_ids: list[int], k: int
    ) -> None:
        """The model's log-probabilities before any rule: of the new tokens, and top-k."""
        inputs = self._named([*context, *new_ids[:-1]])
        log_probs = self.core.forward_batch([inputs], return_log_probs=True)
        rows = np.array(log_probs)[0, len(context) - 1 :]  # (new tokens, vocab)
        for row, id in zip(rows, new_ids, strict=True):
            top = np.argsort(-row, kind="stable")[:k]
            sequence.logprobs.append(float(row[id]))
            sequence.top_logprobs.append([(int(other), float(row[other])) for other in top])

    def _context_size(self, sequence: RunningSequence) -> int:
        """Tokens in the context of a sequence."""
        n_begin = len(self.begin) if sequence.start else 0
        return len(sequence.ids) - sequence.start + n_begin

    def _max_steps(self, sequence: RunningSequence, config: GenerationConfig) -> int:
        """Steps until the context or the sequence is full; the last token is not an input."""
        n_free = self.context_length + 1 - self._context_size(sequence)
        return min(n_free, config.max_new_tokens - sequence.n_new)

    def _context(self, sequence: RunningSequence) -> list[int]:
        """All ids, or the begin tokens and the last part, by the rule of generate/loop.py."""
        half = max(1, self.context_length // 2)
        if self._context_size(sequence) > self.context_length:
            n_kept = self.context_length - (half - sequence.n_new % half)
            size = max(len(self.begin) + 1, n_kept)
            sequence.start = len(sequence.ids) - (size - len(self.begin))
        return [*(self.begin if sequence.start else ()), *sequence.ids[sequence.start :]]

    def _named(self, ids: list[int]) -> list[str]:
        return [self.names[id] for id in ids]

    def _options(self, config: GenerationConfig) -> dict[str, Any]:
        suppressed = [[self.names[id]] for id in config.suppress_tokens]
        return {
            "end_token": list(config.stop_token_ids),
            "suppress_sequences": suppressed or None,
            "min_length": 0,
        }


def check_supported(config: GenerationConfig) -> None:
    """Raise for settings that CTranslate2 does not support, or computes differently."""
    if config.temperature != 0:
        raise QkvError(
            "temperature",
            _("CTranslate2 sampling cannot be seeded"),
            _("use 0 (greedy), or use --engine torch"),
        )
    if config.repetition_penalty != 1:
        raise QkvError(
            "repetition_penalty",
            _("CTranslate2 computes the repetition penalty differently"),
            _("use 1, or use --engine torch"),
        )
    if config.allowed_token_ids:
        raise QkvError(
            "allowed_token_ids",
            _("CTranslate2 can only suppress tokens"),
            _("use suppress_tokens, or use --engine torch"),
        )
