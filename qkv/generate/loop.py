"""The generation loop: prefill, then one token per step and sequence until all have ended. Greedy is temperature 0.

In: a stepper, prompts (and for an encoder-decoder sources). Out: the tokens generated after each prompt, with
log-probabilities if they are wanted. Batch-invariant. Explained in docs/generation.md, "From prompt to text".
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from qkv.engine.speculative import speculative_step
from qkv.engine.stepper import Stepper, decode_threads
from qkv.generate.backend import Draft, OnToken
from qkv.generate.config import GenerationConfig
from qkv.generate.sampling import Draws, choose

LEAVE_FRACTION = (
    0.25  # of the rows: so many must have ended before copying the cache of the others pays
)


@dataclass(frozen=True)
class Bounds:
    """What the model sets: which ids end a sequence, how many tokens it can attend to, how its texts begin."""

    context: int
    ends: tuple[int, ...] = ()
    begin: tuple[int, ...] = ()


@dataclass
class RunningSequence:
    """One prompt and what was generated after it."""

    prompt: list[int]
    limit: int  # of new tokens
    start: int = 0  # where its context begins
    finish_reason: str = "length"
    alive: bool = True

    def __post_init__(self) -> None:
        self.ids: list[int] = []
        self.log_probs: list[float] = []
        self.best: list[list[tuple[int, float]]] = []

    def draft(self, logprobs: int | None) -> Draft:
        if logprobs is None:
            return Draft(self.ids, self.finish_reason)
        return Draft(self.ids, self.finish_reason, self.log_probs, self.best)


def generate(
    stepper: Stepper,
    prompts: list[list[int]],
    settings: GenerationConfig,
    bounds: Bounds,
    on_token: OnToken | None = None,
    sources: list[list[int]] | None = None,
    limits: list[int] | None = None,
) -> list[Draft]:
    """`settings.n` sequences for each prompt, prompt after prompt; `on_token` may end one early.

    `limits` are the most new tokens of each prompt, where they differ.
    """
    loop = GenerationLoop(stepper, prompts, settings, bounds, sources, limits)
    with decode_threads(
        stepper
    ):  # once for all steps: changing the number of threads costs as much as a small step
        while loop.n_alive:
            loop.advance(on_token)
    return [sequence.draft(settings.logprobs) for sequence in loop.sequences]


class GenerationLoop:
    """All sequences of a batch; `rows` are those that still take part in the steps."""

    def __init__(
        self,
        stepper: Stepper,
        prompts: list[list[int]],
        settings: GenerationConfig,
        bounds: Bounds,
        sources: list[list[int]] | None = None,
        limits: list[int] | None = None,
    ):
        assert settings.seed is not None, "chosen by the caller, who reports it"
        self.stepper, self.settings, self.bounds = stepper, settings, bounds
        self.sampling = replace(settings, banned=())  # banned ids are suppressed here, in place
        limits = limits or [settings.max_new_tokens] * len(prompts)
        each = [
            (prompt, limit)
            for prompt, limit in zip(prompts, limits, strict=True)
            for _ in range(settings.n)
        ]
        self.sequences = self.rows = [RunningSequence(*pair) for pair in each]
        self.logits = stepper.prefill(prompts, sources)  # (prompts, vocab)
        self.numbers = torch.arange(
            len(self.rows), device=self.logits.device
        )  # of the sequences in the rows
        if settings.n > 1:  # a prompt is read once for all of its sequences
            stepper.reorder([row // settings.n for row in range(len(self.rows))])
            self.logits = self.logits[self.numbers // settings.n]  # (rows, vocab)
        self.step = speculative_step(stepper, self._choose_draft) or stepper.step
        self.n_alive, self.length, self.room = (
            len(self.rows),
            0,
            bounds.context - max(map(len, prompts)),
        )
        self.ends, self.last_ids = frozenset(bounds.ends), self.numbers
        self.suppressed = (
            torch.tensor(settings.banned, device=self.logits.device) if settings.banned else None
        )
        self.draws = (
            Draws(settings.seed, settings.n, self.logits.device) if settings.temperature else None
        )
        self.seen = (
            seen_in([row.prompt for row in self.rows], self.logits)
            if settings.repetition_penalty != 1
            else None
        )

    def advance(self, on_token: OnToken | None = None) -> list[int]:
        """One step: the newest token of each row."""
        if self.length:
            self._next_logits()
        with decode_threads(self.stepper):
            uniforms = (
                None if self.draws is None else self.draws.next()[self.numbers % self.settings.n]
            )
            self.last_ids = self._choose(self.logits, uniforms)  # (rows,)
            tokens = self.last_ids.tolist()
            if self.settings.logprobs is not None:
                self._note_log_probs(self.settings.logprobs)
            if self.seen is not None:
                self.seen.scatter_(1, self.last_ids[:, None], True)
        self.length += 1
        self._append(tokens, on_token)
        return tokens

    def _choose(self, logits: Tensor, uniforms: Tensor | None) -> Tensor:
        if self.suppressed is not None:
            fill = logits.index_fill_ if self.settings.logprobs is None else logits.index_fill
            logits = fill(1, self.suppressed, -torch.inf)
        return choose(logits, self.sampling, self.seen, uniforms)

    def _append(self, tokens: list[int], on_token: OnToken | None) -> None:
        """Note the newest tokens, and which sequences end with them."""
        numbers = self.numbers.tolist() if on_token is not None else range(len(tokens))
        for number, row, token in zip(numbers, self.rows, tokens, strict=True):
            if not row.alive:
                continue
            row.ids.append(token)
            if token in self.ends:
                row.alive, row.finish_reason = False, "end"
            elif on_token is not None and on_token(number, token):
                row.alive, row.finish_reason = False, "stop"
            elif len(row.ids) == row.limit:
                row.alive = False
            self.n_alive -= not row.alive

    def _next_logits(self) -> None:
        """The logits after the newest tokens; when a context is full, its last part is read again."""
        if self.room == 0:
            self._leave()
            self.logits = self.stepper.prefill(self._contexts())
            return
        if self.n_alive <= (1 - LEAVE_FRACTION) * len(self.rows):
            self._leave()
        with decode_threads(self.stepper):
            self.logits = self.step(self.last_ids)
        self.room -= 1

    def _choose_draft(self, logits: Tensor, ahead: int) -> Tensor | None:
        """What would be chosen so many tokens after the next one for these logits; None: it would be the last."""
        row = self.rows[0]
        if ahead + 1 >= min(row.limit - len(row.ids), self.room):
            return None
        ids = self._choose(
            logits,
            None
            if self.draws is None
            else self.draws.coming(ahead)[self.numbers % self.settings.n],
        )
        return None if int(ids) in self.ends else ids

    def _leave(self) -> None:
        """Sequences that have ended take no further part."""
        alive = [n for n, row in enumerate(self.rows) if row.alive]
        if len(alive) == len(self.rows):
            return
        self.stepper.reorder(alive)
        kept = self.numbers.new_tensor(alive)
        self.rows, self.numbers, self.last_ids = (
            [self.rows[n] for n in alive],
            self.numbers[kept],
            self.last_ids[kept],
        )
        self.seen = None if self.seen is None else self.seen[kept]

    def _contexts(self) -> list[list[int]]:
        """What each row attends to: all of it, or of a full one the beginning mark and the last part.

        How much stays depends on the length alone, so that it is batch-invariant: up to the next multiple of half a
        context, where all full sequences are read again together.
        """
        begin, half = list(self.bounds.begin), max(1, self.bounds.context // 2)
        size = max(len(begin) + 1, self.bounds.context - (half - self.length % half))
        contexts = []
        for row in self.rows:
            whole = row.prompt + row.ids
            marked = begin if row.start else []
            if len(marked) + len(whole) - row.start > self.bounds.context:
                row.start, marked = len(whole) - (size - len(begin)), begin
            contexts.append(marked + whole[row.start :])
        self.room = self.bounds.context - max(map(len, contexts))
        return contexts

    def _note_log_probs(self, n_best: int) -> None:
        """The model's own log-probabilities, before any sampling rule: of the chosen token, and the best."""
        log_probs = self.logits.log_softmax(dim=1)  # (rows, vocab)
        best = log_probs.topk(min(n_best, log_probs.shape[1]), dim=1)  # (rows, n_best)
        chosen = log_probs.gather(1, self.last_ids[:, None])[:, 0].tolist()
        for row, log_prob, ids, values in zip(
            self.rows, chosen, best.indices.tolist(), best.values.tolist(), strict=True
        ):
            if row.alive:
                row.log_probs.append(log_prob)
                row.best.append(list(zip(ids, values, strict=True)))


def seen_in(prompts: list[list[int]], logits: Tensor) -> Tensor:
    """Which tokens are in each prompt, (rows, vocab)."""
    seen = torch.zeros(len(prompts), logits.shape[1], dtype=torch.bool, device=logits.device)
    for row, prompt in zip(seen, prompts, strict=True):
        row[prompt] = True
    return seen
