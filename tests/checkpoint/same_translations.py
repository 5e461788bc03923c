"""Compare the translations of two engines: the same text at each rank, or a tie.

In a tie two hypotheses have the same score up to rounding, and the order of floating-point sums
decides which is first. The torch model then scores the other text again, token by token.
"""

import math
from collections.abc import Sequence

import torch

from qkv.generate.config import TranslationConfig
from qkv.pipeline.segments import Translation
from qkv.pipeline.translator import Translator

SCORE_TOLERANCE = 1e-4  # float32 sums in another order differ by 5e-6


def differences(
    translator: Translator,
    sources: Sequence[str],
    expected: list[list[Translation]],
    actual: list[list[Translation]],
    **settings,
) -> list[tuple[int, int, Translation, Translation]]:
    """(source index, rank, expected, actual) of all translations that are neither equal nor tied.

    `expected` are those of `translator`.
    """
    assert [len(best) for best in expected] == [len(best) for best in actual]
    return [
        (index, rank, a, b)
        for index, (source, best, others) in enumerate(zip(sources, expected, actual, strict=True))
        for rank, (a, b) in enumerate(zip(best, others, strict=True))
        if not is_same(a, b)
        and not is_tied(translator, source, a, b, TranslationConfig(**settings))
    ]


def is_same(a: Translation, b: Translation) -> bool:
    return (a.text, a.tokens) == (b.text, b.tokens) and abs(a.score - b.score) < SCORE_TOLERANCE


def is_tied(
    translator: Translator, source: str, a: Translation, b: Translation, settings: TranslationConfig
) -> bool:
    """Whether b is another text with the score of a, in its engine and in the torch model."""
    ids = ids_of(translator, b.tokens)
    scores = [
        b.score,
        min(
            torch_scores(translator, source, ids, settings), key=lambda score: abs(score - a.score)
        ),
    ]
    return (
        a.tokens != b.tokens
        and b.text == translator.target.decode(ids)
        and max(abs(score - a.score) for score in scores) < SCORE_TOLERANCE
    )


def ids_of(translator: Translator, tokens: list[str]) -> list[int]:
    names = translator.target.tokens(range(translator.target.vocab_size))
    return [names.index(token) for token in tokens]


def torch_scores(
    translator: Translator, source: str, ids: list[int], settings: TranslationConfig
) -> list[float]:
    """The scores of these ids with <eos> and without (truncated), by the torch model."""
    ids, model = [*ids, translator.eos], translator.model
    with torch.no_grad():
        memory = model.encode(torch.tensor([translator.encode_source(source)]))
        logits = model.logits(model.decode(torch.tensor([[translator.bos, *ids[:-1]]]), memory))[
            0
        ]  # (length, vocab)
        logits[
            :, [token for token in (translator.bos, translator.pad) if token != translator.eos]
        ] = -math.inf
        log_probs = logits.log_softmax(dim=-1).gather(1, torch.tensor(ids)[:, None])[:, 0]
    return [float(log_probs[:n].sum()) / settings.penalty(n) for n in (len(ids), len(ids) - 1) if n]
