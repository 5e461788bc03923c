"""Search with CTranslate2: the same settings and hypotheses as the torch model's, and torch is never imported.

CTranslate2 extends the beams; which of them wins, and when nothing can overtake it any more, is decided here by our rules.
Explained in docs/ctranslate2.md.
"""

import math
from pathlib import Path

from qkv.checkpoint.ctranslate2.folder import compute_type, open_core, read_facts, read_names
from qkv.generate.backend import Hypothesis
from qkv.generate.config import TranslationConfig

# CTranslate2 divides by length^penalty, we by ((5 + length) / 6)^alpha. This penalty divides by 1 and so gives plain sums
# of log-probabilities; 0 would do so too, but lets a search end as soon as its first beam has.
NO_PENALTY = 1e-9
IMPOSSIBLE = -1e30  # log-probability of a token that must not be said
MORE_STEPS = 4  # beyond the usual length: by then most searches are settled, others begin again with twice as many


class CTranslate2Search:
    """Greedy and beam search with an exported encoder-decoder model."""

    model = None

    def __init__(self, folder: Path, device: str = "cpu"):
        facts = read_facts(folder, "translator")
        self.source_names, self.names = read_names(folder)
        self.ids = {name: id for id, name in enumerate(self.names)}
        self.bos, self.eos, self.pad, self.max_len = (
            facts["bos"],
            facts["eos"],
            facts["pad"],
            facts["max_len"],
        )
        self.suppressed = [[self.names[id]] for id in {self.bos, self.pad} - {self.eos}]
        self.pace = 1.0  # target tokens per source token in the last batch: an estimate that costs or saves time only
        self.core = open_core("Translator", folder, device, compute_type(facts, device))

    def search(self, rows: list[list[int]], config: TranslationConfig) -> list[list[Hypothesis]]:
        """Searches of too few steps begin again with twice as many; what is settled is what an endless one would find."""
        limits = [config.longest(len(row), self.max_len) for row in rows]
        found: dict[int, list[Hypothesis]] = {}
        steps = (
            max(limits)
            if config.beam_size == 1
            else round(self.pace * max(map(len, rows))) + MORE_STEPS
        )
        while waiting := [n for n in range(len(rows)) if n not in found]:
            steps = min(steps, min(limits[n] for n in waiting))
            for n, all_found in zip(
                waiting, self._search_steps([rows[n] for n in waiting], steps, config), strict=True
            ):
                best = settled(all_found, self.eos, steps, limits[n], config)
                if best:
                    found[n] = best
            steps *= 2
        self.pace = sum(len(best[0].ids) for best in found.values()) / sum(map(len, rows))
        return [found[n] for n in range(len(rows))]

    def _search_steps(
        self, rows: list[list[int]], steps: int, config: TranslationConfig
    ) -> list[list[Hypothesis]]:
        """All that ended within so many steps, and what was alive after the last of them."""
        size = config.beam_size
        patience = (
            steps + 1 if size > 1 else 1
        )  # with each step at most `size` end: none stops the search
        results = self.core.translate_batch(
            [[self.source_names[id] for id in row] for row in rows],
            beam_size=size,
            patience=patience,
            num_hypotheses=size * patience,
            length_penalty=NO_PENALTY,
            suppress_sequences=self.suppressed,
            return_scores=size > 1 or config.details,
            return_end_token=True,
            max_input_length=0,
            max_decoding_length=steps,
            min_decoding_length=0,
        )
        return [
            [
                self._hypothesis(said, score, config)
                for said, score in zip(one.hypotheses, one.scores or [0.0], strict=True)
                if score > IMPOSSIBLE
            ]
            for one in results
        ]

    def _hypothesis(
        self, said: list[str], log_prob: float, config: TranslationConfig
    ) -> Hypothesis:
        return Hypothesis(
            [self.ids[name] for name in said], log_prob, log_prob / config.penalty(len(said))
        )


def settled(
    found: list[Hypothesis], eos: int, steps: int, limit: int, config: TranslationConfig
) -> list[Hypothesis]:
    """The n_best, if no live hypothesis after `steps` can still beat one of them; else none.

    A live hypothesis only loses probability, and no length penalty is larger than that of the longest translation. Of the
    last step CTranslate2 returns the best `beam_size`: if all of them ended, the live ones rank below the worst of them.
    """
    whole = [one for one in found if one.ids[-1] == eos or steps == limit]
    whole.sort(key=lambda one: (-one.score, len(one.ids)))
    best = whole[: config.n_best]
    if steps == limit or config.beam_size == 1:
        return best
    last = [one for one in found if len(one.ids) == steps]
    alive = [one.log_prob for one in last if one.ids[-1] != eos] or [
        min((one.log_prob for one in last), default=-math.inf)
    ]
    hope = max(alive) / config.penalty(limit)
    return (
        best if hope == -math.inf or (len(best) == config.n_best and best[-1].score >= hope) else []
    )
