"""When two engines give the same translations: the same text at each rank, or a tie, with scores equal up to rounding.

In a tie two hypotheses have the same score up to rounding, so the order in which an engine adds decides which comes first. The
other text must then really have that score: our model scores it again, token by token.
"""

import math
from collections.abc import Sequence

import torch

from qkv.generate.config import TranslationConfig
from qkv.pipeline.translator import Translation, Translator

ROUNDING = 1e-4  # of a score; float32 sums in another order differ by 5e-6


def differences(
    translator: Translator,
    sources: Sequence[str],
    ours: list[list[Translation]],
    theirs: list[list[Translation]],
    **settings,
) -> list[tuple[int, int, Translation, Translation]]:
    """Index of the source, rank, our translation and theirs, of all that are neither the same nor tied; `ours` are the translator's."""
    assert [len(best) for best in ours] == [len(best) for best in theirs]
    return [
        (index, rank, a, b)
        for index, (source, best, others) in enumerate(zip(sources, ours, theirs, strict=True))
        for rank, (a, b) in enumerate(zip(best, others, strict=True))
        if not is_same(a, b)
        and not is_tied(translator, source, a, b, TranslationConfig(**settings))
    ]


def is_same(a: Translation, b: Translation) -> bool:
    return (a.text, a.tokens) == (b.text, b.tokens) and abs(a.score - b.score) < ROUNDING


def is_tied(
    translator: Translator, source: str, a: Translation, b: Translation, settings: TranslationConfig
) -> bool:
    """Another text whose score, theirs and by our model, is that of ours."""
    ids = ids_of(translator, b.tokens)
    scores = [
        b.score,
        min(our_scores(translator, source, ids, settings), key=lambda score: abs(score - a.score)),
    ]
    return (
        a.tokens != b.tokens
        and b.text == translator.target.decode(ids)
        and max(abs(score - a.score) for score in scores) < ROUNDING
    )


def ids_of(translator: Translator, tokens: list[str]) -> list[int]:
    names = translator.target.tokens(range(translator.target.vocab_size))
    return [names.index(token) for token in tokens]


def our_scores(
    translator: Translator, source: str, ids: list[int], settings: TranslationConfig
) -> list[float]:
    """Of these ids with <eos>, and without (a translation that was cut off), by one pass of the readable model."""
    ids, model = [*ids, translator.eos], translator.model
    with torch.no_grad():
        memory = model.encode(torch.tensor([translator.encode_source(source)]))
        logits = model.logits(model.decode(torch.tensor([[translator.bos, *ids[:-1]]]), memory))[
            0
        ]  # (length, vocab)
        logits[
            :, [token for token in (translator.bos, translator.pad) if token != translator.eos]
        ] = -math.inf
        gains = logits.log_softmax(dim=-1).gather(1, torch.tensor(ids)[:, None])[:, 0]
    return [float(gains[:n].sum()) / settings.penalty(n) for n in (len(ids), len(ids) - 1) if n]
