"""Generation loop: prefill, then one token per sequence and step until all have ended.

Temperature 0 is greedy decoding. Batch-invariant. See docs/guides/generation.md.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from qkv.engine.speculative import speculative_step
from qkv.engine.stepper import Stepper
from qkv.generate.backend import GeneratedTokens, OnToken
from qkv.generate.config import GenerationConfig
from qkv.generate.sampling import Draws, sample

MIN_FINISHED_FRACTION = 0.25  # of the rows: below, copying the cache of the others costs more


@dataclass(frozen=True)
class Bounds:
    """Properties of the model: context length, end tokens, tokens that begin every sequence."""

    context_length: int
    ends: tuple[int, ...] = ()
    begin: tuple[int, ...] = ()


@dataclass
class RunningSequence:
    """A prompt and the tokens generated after it."""

    prompt: list[int]
    limit: int  # of new tokens
    start: int = 0  # index of the first token in its context
    finish_reason: str = "length"
    alive: bool = True

    def __post_init__(self) -> None:
        self.ids: list[int] = []
        self.logprobs: list[float] = []
        self.top_logprobs: list[list[tuple[int, float]]] = []

    def result(self) -> GeneratedTokens:
        return GeneratedTokens(self.ids, self.finish_reason, self.logprobs, self.top_logprobs)


def generate(
    stepper: Stepper,
    prompts: list[list[int]],
    config: GenerationConfig,
    bounds: Bounds,
    on_token: OnToken | None = None,
    sources: list[list[int]] | None = None,
    limits: list[int] | None = None,
) -> list[GeneratedTokens]:
    """Return `config.n` sequences per prompt, in prompt order.

    Args:
        stepper: Runs the model.
        prompts: Token ids, one or more each.
        config: Sampling and stopping; its seed must be set.
        bounds: Context length and special tokens of the model.
        on_token: Called for each new token; returns True to stop that sequence.
        sources: Encoder inputs, for an encoder-decoder.
        limits: Maximum new tokens of each prompt; None: `config.max_new_tokens`.
    """
    with stepper.decoding():  # once for all steps: it costs as much as a small step
        loop = GenerationLoop(stepper, prompts, config, bounds, sources, limits)
        while loop.n_alive:
            loop.advance(on_token)
    return [sequence.result() for sequence in loop.sequences]


class GenerationLoop:
    """The sequences of a batch; `rows` are those that still take part in decode steps."""

    def __init__(
        self,
        stepper: Stepper,
        prompts: list[list[int]],
        config: GenerationConfig,
        bounds: Bounds,
        sources: list[list[int]] | None = None,
        limits: list[int] | None = None,
    ):
        assert config.seed is not None, "the caller chooses and reports it"
        self.stepper, self.config, self.bounds = stepper, config, bounds
        self.sampling = replace(config, suppress_tokens=())  # suppressed here, in place
        limits = limits or [config.max_new_tokens] * len(prompts)
        self.sequences = self.rows = [
            RunningSequence(prompt, limit)
            for prompt, limit in zip(prompts, limits, strict=True)
            for _ in range(config.n)
        ]
        self.logits = stepper.prefill(prompts, sources)  # (prompts, vocab)
        device = self.logits.device
        self.indices = torch.arange(len(self.rows), device=device)  # of the sequences in `rows`
        if config.n > 1:  # one prefill per prompt serves all of its sequences
            stepper.reorder([row // config.n for row in range(len(self.rows))])
            self.logits = self.logits[self.indices // config.n]  # (rows, vocab)
        self.step = speculative_step(stepper, self._choose_draft) or stepper.step
        self.n_alive, self.length = len(self.rows), 0
        self.n_free = bounds.context_length - max(map(len, prompts))  # positions left
        self.ends, self.last_ids = frozenset(bounds.ends), self.indices
        suppressed = config.suppress_tokens
        self.suppressed = torch.tensor(suppressed, device=device) if suppressed else None
        self.draws = Draws(config.seed, config.n, device) if config.temperature else None
        penalized = config.repetition_penalty != 1
        self.seen = (
            seen_tokens([row.prompt for row in self.rows], self.logits) if penalized else None
        )

    def advance(self, on_token: OnToken | None = None) -> list[int]:
        """One step: return the new token of each row. Call it in `stepper.decoding()`."""
        if self.length:
            self._next_logits()
        uniforms = None if self.draws is None else self.draws.next()[self.indices % self.config.n]
        self.last_ids = self._sample(self.logits, uniforms)  # (rows,)
        tokens = self.last_ids.tolist()
        if self.config.logprobs is not None:
            self._record_logprobs(self.config.logprobs)
        if self.seen is not None:
            self.seen.scatter_(1, self.last_ids[:, None], True)
        self.length += 1
        self._append(tokens, on_token)
        return tokens

    def _sample(self, logits: Tensor, uniforms: Tensor | None) -> Tensor:
        if self.suppressed is not None:
            fill = logits.index_fill_ if self.config.logprobs is None else logits.index_fill
            logits = fill(1, self.suppressed, -torch.inf)
        return sample(logits, self.sampling, self.seen, uniforms)

    def _append(self, tokens: list[int], on_token: OnToken | None) -> None:
        """Append the new tokens and mark the sequences that end with them."""
        indices = self.indices.tolist() if on_token is not None else range(len(tokens))
        for index, row, token in zip(indices, self.rows, tokens, strict=True):
            if not row.alive:
                continue
            row.ids.append(token)
            if token in self.ends:
                row.alive, row.finish_reason = False, "eos"
            elif on_token is not None and on_token(index, token):
                row.alive, row.finish_reason = False, "stop"
            elif len(row.ids) == row.limit:
                row.alive = False
            self.n_alive -= not row.alive

    def _next_logits(self) -> None:
        """Logits after the new tokens; a full context is truncated and prefilled again."""
        if self.n_free == 0:
            self._drop_finished()
            self.logits = self.stepper.prefill(self._contexts())
            return
        if self.n_alive <= (1 - MIN_FINISHED_FRACTION) * len(self.rows):
            self._drop_finished()
        self.logits = self.step(self.last_ids)
        self.n_free -= 1

    def _choose_draft(self, logits: Tensor, offset: int) -> Tensor | None:
        """The draft token `offset` tokens after the next one; None: it would be the last."""
        row = self.rows[0]
        if offset + 1 >= min(row.limit - len(row.ids), self.n_free):
            return None
        uniforms = None
        if self.draws is not None:
            uniforms = self.draws.peek(offset)[self.indices % self.config.n]
        ids = self._sample(logits, uniforms)
        return None if int(ids) in self.ends else ids

    def _drop_finished(self) -> None:
        """Remove finished sequences from the batch."""
        alive = [n for n, row in enumerate(self.rows) if row.alive]
        if len(alive) == len(self.rows):
            return
        self.stepper.reorder(alive)
        kept = self.indices.new_tensor(alive)
        self.rows = [self.rows[n] for n in alive]
        self.indices, self.last_ids = self.indices[kept], self.last_ids[kept]
        self.seen = None if self.seen is None else self.seen[kept]

    def _contexts(self) -> list[list[int]]:
        """The context of each row: all of it, or the begin tokens and the last part of a full one.

        The number of tokens kept depends on the length only, so that it is batch-invariant: up to
        the next multiple of half a context, where all full sequences are prefilled again together.
        """
        context_length, begin = self.bounds.context_length, list(self.bounds.begin)
        half = max(1, context_length // 2)
        size = max(len(begin) + 1, context_length - (half - self.length % half))
        contexts = []
        for row in self.rows:
            ids = row.prompt + row.ids
            prefix = begin if row.start else []
            if len(prefix) + len(ids) - row.start > context_length:
                row.start, prefix = len(ids) - (size - len(begin)), begin
            contexts.append(prefix + ids[row.start :])
        self.n_free = context_length - max(map(len, contexts))
        return contexts

    def _record_logprobs(self, k: int) -> None:
        """The model's log-probabilities before sampling rules: of the sampled token, and top-k."""
        logprobs = self.logits.log_softmax(dim=1)  # (rows, vocab)
        top = logprobs.topk(min(k, logprobs.shape[1]), dim=1)  # (rows, k)
        sampled = logprobs.gather(1, self.last_ids[:, None])[:, 0].tolist()
        columns = sampled, top.indices.tolist(), top.values.tolist()
        for row, logprob, ids, values in zip(self.rows, *columns, strict=True):
            if row.alive:
                row.logprobs.append(logprob)
                row.top_logprobs.append(list(zip(ids, values, strict=True)))


def seen_tokens(prompts: list[list[int]], logits: Tensor) -> Tensor:
    """Which tokens are in each prompt, (rows, vocab)."""
    seen = torch.zeros(len(prompts), logits.shape[1], dtype=torch.bool, device=logits.device)
    for row, prompt in zip(seen, prompts, strict=True):
        row[prompt] = True
    return seen
