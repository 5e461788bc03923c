"""The loop that writes: prompts are read, then every step adds a token to each text, until all have ended.

In: prompts as ids. Out: what was written after each, with the log-probabilities if they are wanted. A text is the same
alone and in any company. Told in docs/generation.md, "From prompt to text".
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from qkv.engine.prompt import PromptStepper
from qkv.engine.speculative import looking_ahead
from qkv.engine.step import decode_threads
from qkv.generate.backend import Draft
from qkv.generate.config import GenerationConfig
from qkv.generate.sampling import Draws, choose

LEAVE_SHARE = 0.25  # of the rows: so many must have ended before copying the others' cache pays
ROOM = 64           # places of the record at the start; it doubles when full

Watch = Callable[[int, int], bool]  # the number of a text and its newest token -> whether the text ends here


@dataclass(frozen=True)
class Bounds:
    """What the model sets: which ids end a text, how many tokens it can look back at, how its texts begin."""

    context: int
    ends: tuple[int, ...] = ()
    begin: tuple[int, ...] = ()


def write(
    stepper: PromptStepper, prompts: list[list[int]], settings: GenerationConfig, bounds: Bounds, watch: Watch | None = None
) -> list[Draft]:
    """`settings.n` drafts of each prompt, prompt after prompt; `watch` may end a text early."""
    writer = Writer(stepper, prompts, settings, bounds)
    while writer.n_alive:
        writer.advance(watch)
    return writer.drafts()


class Writer:
    """All texts in the making; a row is a text that still takes part in the steps."""

    def __init__(self, stepper: PromptStepper, prompts: list[list[int]], settings: GenerationConfig, bounds: Bounds):
        assert settings.seed is not None, "chosen by the caller, who tells it"
        self.stepper, self.settings, self.bounds = stepper, settings, bounds
        self.prompts = [prompt for prompt in prompts for _ in range(settings.n)]
        self.starts = [0] * len(self.prompts)                                 # where each text's context begins
        self.why = ["length"] * len(self.prompts)
        logits = stepper.read(prompts)                                        # (prompts, vocab)
        self.where = torch.arange(len(self.prompts), device=logits.device)    # which text stands in each row
        if settings.n > 1:
            stepper.keep(self.where // settings.n)  # a prompt is read once for all of its texts
        self.step = looking_ahead(stepper, self._foresee) or stepper.step
        self.logits = logits[self.where // settings.n]                        # (rows, vocab)
        self.alive = torch.ones_like(self.where, dtype=torch.bool)
        self.n_alive, self.length, self.room = len(self.where), 0, bounds.context - max(map(len, prompts))
        self.ends = torch.tensor(bounds.ends, dtype=torch.long, device=logits.device)
        self.draws = Draws(settings.seed, settings.n, logits.device)
        self.record = Record(len(self.where), settings.logprobs, logits)
        self.seen = seen_in(self.prompts, logits) if settings.repetition_penalty != 1 else None

    def advance(self, watch: Watch | None = None) -> Tensor:
        """One token further; gives the newest token of each row, (rows,)."""
        if self.length:
            self._read_on()
        with decode_threads(self.stepper):
            return self._choose(watch)

    def _choose(self, watch: Watch | None) -> Tensor:
        chances = self.draws.next()[self.where % self.settings.n]
        ids = choose(self.logits, self.settings, self.seen, chances)          # (rows,)
        self.record.note(self.where, self.length, ids, self.logits)
        if self.seen is not None:
            self.seen.scatter_(1, ids[:, None], True)
        self.length += 1
        self._end(ids, watch)
        return ids

    def _end(self, ids: Tensor, watch: Watch | None) -> None:
        """Notice which texts end with their newest token."""
        ended = self.alive & torch.isin(ids, self.ends)
        if bool(ended.any()):
            self._say_why(ended, "end")
        if watch is not None:  # here, text must be made
            pairs = zip(self.where.tolist(), ids.tolist(), self.alive.tolist(), strict=True)
            stopped = [alive and watch(text, id) for text, id, alive in pairs]
            self._say_why(torch.tensor(stopped, device=ids.device), "stop")
        if self.length == self.settings.max_new_tokens:
            self.alive.fill_(False)
        self.n_alive = int(self.alive.sum())

    def _say_why(self, ended: Tensor, why: str) -> None:
        for text in self.where[ended].tolist():
            self.why[text] = why
            self.record.lengths[text] = self.length
        self.alive &= ~ended

    def _read_on(self) -> None:
        """The scores after the newest tokens; when a context is full, its last part is read again."""
        if self.room == 0:
            self._leave()
            self.logits = self.stepper.read(self._contexts())
            return
        if self.n_alive <= (1 - LEAVE_SHARE) * len(self.where):
            self._leave()
        with decode_threads(self.stepper):
            self.logits = self.step(self.record.ids[self.where, self.length - 1])
        self.room -= 1

    def _foresee(self, logits: Tensor, ahead: int) -> Tensor | None:
        """What would be said so many tokens after the next one, were these the logits; None: it would be the last."""
        if ahead + 1 >= min(self.settings.max_new_tokens - self.length, self.room):
            return None
        ids = choose(logits, self.settings, self.seen, self.draws.coming(ahead))
        return None if int(ids) in self.bounds.ends else ids

    def _leave(self) -> None:
        """Texts that have ended take no further part."""
        stay = self.alive.nonzero()[:, 0]
        self.stepper.keep(stay)
        self.where, self.alive = self.where[stay], self.alive[stay]
        self.seen = None if self.seen is None else self.seen[stay]

    def _contexts(self) -> list[list[int]]:
        """What each text looks back at: all of it, or of a full one the beginning mark and the last part.

        How much stays depends on the place alone, so that it is the same in any company: up to the next multiple of
        half a context, where all full texts are read again together.
        """
        begin, half = list(self.bounds.begin), max(1, self.bounds.context // 2)
        size = max(len(begin) + 1, self.bounds.context - (half - self.length % half))
        contexts = []
        for text in self.where.tolist():
            whole = self.prompts[text] + self.record.ids[text, : self.length].tolist()
            marked = begin if self.starts[text] else []
            if len(marked) + len(whole) - self.starts[text] > self.bounds.context:
                self.starts[text], marked = len(whole) - (size - len(begin)), begin
            contexts.append(marked + whole[self.starts[text] :])
        self.room = self.bounds.context - max(map(len, contexts))
        return contexts

    def drafts(self) -> list[Draft]:
        """All texts, as plain values."""
        return self.record.drafts(self.length, self.why)


class Record:
    """What was said: ids, and if they are wanted the log-probabilities of the model itself, before any rule."""

    def __init__(self, n: int, n_best: int | None, logits: Tensor):
        self.n_best = None if n_best is None else min(n_best, logits.shape[1])
        self.ids = torch.zeros(n, ROOM, dtype=torch.long, device=logits.device)
        self.lengths = [-1] * n  # of those that ended before the last step
        width = 0 if self.n_best is None else self.n_best + 1
        self.log_probs = logits.new_zeros(n, ROOM, width)                      # of the token said, then of the best
        self.best = torch.zeros(n, ROOM, max(0, width - 1), dtype=torch.long, device=logits.device)

    def note(self, where: Tensor, place: int, ids: Tensor, logits: Tensor) -> None:
        """The tokens of one step, one for each row."""
        if place == self.ids.shape[1]:
            self.ids, self.log_probs, self.best = (
                torch.cat([one, torch.zeros_like(one)], dim=1) for one in (self.ids, self.log_probs, self.best))
        self.ids[where, place] = ids
        if self.n_best is not None:
            log_probs = logits.log_softmax(dim=1)                              # (rows, vocab)
            best = log_probs.topk(self.n_best, dim=1)                          # (rows, n_best)
            self.log_probs[where, place] = torch.cat([log_probs.gather(1, ids[:, None]), best.values], dim=1)
            self.best[where, place] = best.indices

    def drafts(self, length: int, why: list[str]) -> list[Draft]:
        drafts = []
        for n, reason in enumerate(why):
            end = length if self.lengths[n] < 0 else self.lengths[n]
            draft = Draft(self.ids[n, :end].tolist(), reason)
            if self.n_best is not None:
                numbers = self.log_probs[n, :end].tolist()
                best = self.best[n, :end].tolist()
                draft = Draft(draft.ids, reason, [row[0] for row in numbers], [
                    list(zip(ids, row[1:], strict=True)) for ids, row in zip(best, numbers, strict=True)])
            drafts.append(draft)
        return drafts


def seen_in(prompts: list[list[int]], logits: Tensor) -> Tensor:
    """Which tokens stand in each prompt, (rows, vocab)."""
    seen = torch.zeros(len(prompts), logits.shape[1], dtype=torch.bool, device=logits.device)
    for row, prompt in zip(seen, prompts, strict=True):
        row[prompt] = True
    return seen
