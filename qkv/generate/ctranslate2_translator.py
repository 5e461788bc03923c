"""CTranslate2 backend for translation: same settings and hypotheses as with torch, without torch.

CTranslate2 extends the beams; the ranking and the stopping rule are those of generate/beam.py.
See docs/guides/import-export.md.
"""

import math
from pathlib import Path

from qkv.checkpoint.ctranslate2.folder import compute_type, open_core, read_metadata, read_names
from qkv.generate.backend import Hypothesis
from qkv.generate.config import TranslationConfig

# CTranslate2 divides by length^penalty, we by ((5 + length) / 6)^alpha. This penalty divides by 1
# and gives plain sums of log-probabilities; with 0 a search would end as soon as its first beam
# has ended.
NO_PENALTY = 1e-9
MIN_LOG_PROB = -1e30  # CTranslate2 gives suppressed tokens a lower one
EXTRA_STEPS = 4  # beyond the expected length: enough for most searches


class CTranslate2Search:
    """Greedy and beam search with an exported encoder-decoder model."""

    model = None

    def __init__(self, folder: Path, device: str = "cpu"):
        metadata = read_metadata(folder, "translator")
        self.source_names, self.names = read_names(folder)
        self.ids = {name: id for id, name in enumerate(self.names)}
        self.bos, self.eos, self.pad = metadata["bos"], metadata["eos"], metadata["pad"]
        self.max_len = metadata["max_len"]
        self.suppressed = [[self.names[id]] for id in {self.bos, self.pad} - {self.eos}]
        # Target tokens per source token of the last batch: an estimate that affects time only.
        self.length_ratio = 1.0
        self.core = open_core("Translator", folder, device, compute_type(metadata, device))

    def search(
        self, rows: list[list[int]], limits: list[int], config: TranslationConfig
    ) -> list[list[Hypothesis]]:
        """Search with an estimated number of steps; repeat with twice as many where needed.

        The result of a settled search is that of a search without a limit on its steps.
        """
        found: dict[int, list[Hypothesis]] = {}
        steps = round(self.length_ratio * max(map(len, rows))) + EXTRA_STEPS
        if config.beam_size == 1:
            steps = max(limits)
        while pending := [n for n in range(len(rows)) if n not in found]:
            steps = min(steps, min(limits[n] for n in pending))
            results = self._search_steps([rows[n] for n in pending], steps, config)
            for n, hypotheses in zip(pending, results, strict=True):
                best = settled(hypotheses, self.eos, steps, limits[n], config)
                if best:
                    found[n] = best
            steps *= 2
        self.length_ratio = sum(len(best[0].ids) for best in found.values()) / sum(map(len, rows))
        return [found[n] for n in range(len(rows))]

    def _search_steps(
        self, rows: list[list[int]], steps: int, config: TranslationConfig
    ) -> list[list[Hypothesis]]:
        """All hypotheses that ended within `steps`, and the live ones after the last step."""
        size = config.beam_size
        # At most `size` hypotheses end in a step: with this patience none ends the search.
        patience = steps + 1 if size > 1 else 1
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
                self._hypothesis(tokens, log_prob, config)
                for tokens, log_prob in zip(result.hypotheses, result.scores or [0.0], strict=True)
                if log_prob > MIN_LOG_PROB
            ]
            for result in results
        ]

    def _hypothesis(
        self, tokens: list[str], log_prob: float, config: TranslationConfig
    ) -> Hypothesis:
        ids, score = [self.ids[name] for name in tokens], log_prob / config.penalty(len(tokens))
        return Hypothesis(ids, log_prob, score)


def settled(
    hypotheses: list[Hypothesis], eos: int, steps: int, limit: int, config: TranslationConfig
) -> list[Hypothesis]:
    """The n_best, if no live hypothesis after `steps` can still beat one of them; else [].

    The log-probability of a live hypothesis only decreases, and the largest length penalty is that
    of the longest translation. Of the last step CTranslate2 returns the best `beam_size`: if all of
    them ended, the live ones rank below the worst of them.
    """
    finished = [found for found in hypotheses if found.ids[-1] == eos or steps == limit]
    finished.sort(key=lambda found: (-found.score, len(found.ids)))
    best = finished[: config.n_best]
    if steps == limit or config.beam_size == 1:
        return best
    last = [found for found in hypotheses if len(found.ids) == steps]
    live = [found.log_prob for found in last if found.ids[-1] != eos]
    live = live or [min((found.log_prob for found in last), default=-math.inf)]
    best_possible = max(live) / config.penalty(limit)
    if best_possible == -math.inf:
        return best
    return best if len(best) == config.n_best and best[-1].score >= best_possible else []
