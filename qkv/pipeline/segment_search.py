"""Search the translations of segments in batches, and decode the hypotheses to texts.

See docs/guides/translation.md.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from qkv.generate.backend import Hypothesis
from qkv.generate.config import TranslationConfig
from qkv.pipeline.segments import Segment, Translation

if TYPE_CHECKING:
    from qkv.pipeline.translator import Translator

Progress = Callable[[int, int], None]  # segments done, segments in total


def search_segments(
    translator: "Translator",
    segments: list[Segment],
    config: TranslationConfig,
    progress: Progress | None,
) -> list[list[Hypothesis]]:
    """Return the hypotheses of each segment; batches have segments of similar length."""
    before, after = translator.template.before, translator.template.after
    rows = [[*before, *segment.ids, *after] for segment in segments]
    max_len, limit = translator.backend.max_len, config.max_target_len
    limits = [min(limit or 2 * len(row) + 20, max_len) for row in rows]
    lengths = list(map(len, rows))
    order = sorted(range(len(rows)), key=lengths.__getitem__, reverse=True)
    found: dict[int, list[Hypothesis]] = {}
    for start in range(0, len(order), config.batch_size):
        batch = order[start : start + config.batch_size]
        hypotheses = translator.backend.search(
            [rows[n] for n in batch], [limits[n] for n in batch], config
        )
        found.update(zip(batch, hypotheses, strict=True))
        if progress is not None:
            progress(len(found), len(rows))
    return [found[n] for n in range(len(rows))]


def decode_hypotheses(
    translator: "Translator",
    segment: Segment,
    hypotheses: list[Hypothesis],
    config: TranslationConfig,
) -> list[Translation]:
    """Decode the n_best hypotheses of a segment."""
    translations = []
    for hypothesis in hypotheses[: config.n_best]:
        ids = [id for id in hypothesis.ids if id != translator.eos]
        text = " ".join(translator.target.decode(ids).splitlines()).strip()  # no new lines
        translations.append(
            Translation(
                text,
                hypothesis.score,
                translator.target.display_tokens(ids) if config.details else [],
                translator.links(segment.text, ids) if config.alignment else None,
            )
        )
    return translations
