"""Sampling rules equal the textbook and transformers; draws follow the probabilities."""

import math

import numpy as np
import pytest
import torch
from transformers.generation import logits_process as theirs

from qkv.errors import QkvError
from qkv.generate import sampling as ours
from qkv.generate.config import GenerationConfig
from qkv.textbook import sampling as textbook

# 1,000 rows: flat and peaked, some with tokens of probability 0, some with equal logits.
torch.manual_seed(0)
ROWS = (
    torch.randn(1_000, 29, dtype=torch.float64)
    * torch.logspace(-1, 1, 1_000, dtype=torch.float64)[:, None]
)
ROWS[::5] = ROWS[::5].round()
ROWS[::7, 3:6] = -math.inf
SEEN = torch.rand(1_000, 29) < 0.2

RULES = {
    "top-k 1": (lambda x: ours.top_k(x, 1), lambda x: textbook.top_k(x, 1)),
    "top-k 5": (lambda x: ours.top_k(x, 5), lambda x: textbook.top_k(x, 5)),
    "top-k beyond the vocabulary": (lambda x: ours.top_k(x, 99), lambda x: textbook.top_k(x, 99)),
    "top-p 0.1": (lambda x: ours.top_p(x, 0.1), lambda x: textbook.top_p(x, 0.1)),
    "top-p 0.9": (lambda x: ours.top_p(x, 0.9), lambda x: textbook.top_p(x, 0.9)),
    "min-p 0.05": (lambda x: ours.min_p(x, 0.05), lambda x: textbook.min_p(x, 0.05)),
    "min-p 0.5": (lambda x: ours.min_p(x, 0.5), lambda x: textbook.min_p(x, 0.5)),
    "typical 0.2": (lambda x: ours.typical_p(x, 0.2), lambda x: textbook.typical_p(x, 0.2)),
    "typical 0.95": (lambda x: ours.typical_p(x, 0.95), lambda x: textbook.typical_p(x, 0.95)),
}


@pytest.mark.parametrize("rule", RULES)
def test_a_batched_rule_equals_the_textbook_row_by_row(rule):
    batched, textbook_rule = RULES[rule]
    assert torch.equal(batched(ROWS), torch.stack([textbook_rule(row) for row in ROWS]))


@pytest.mark.parametrize("scale", [0.5, 3.0])
def test_rules_of_a_large_vocabulary_equal_the_textbook(scale):
    """Peaked rows, whose nucleus has few candidates, and flat rows, which are sorted whole."""
    rows = torch.randn(6, 5_000, dtype=torch.float64) * scale
    rows = rows.round(decimals=1)  # many are equal
    uniforms = torch.rand(6, dtype=torch.float64)
    for p in (0.3, 0.9):
        assert torch.equal(
            ours.top_p(rows, p), torch.stack([textbook.top_p(row, p) for row in rows])
        )
    assert ours.draw(rows, uniforms).tolist() == [
        textbook.draw(row, uniform) for row, uniform in zip(rows, uniforms.tolist(), strict=True)
    ]


@pytest.mark.parametrize("temperature", [0.3, 1.0, 2.0])
def test_temperature_equals_the_textbook(temperature):
    expected = torch.stack([textbook.temperature(row, temperature) for row in ROWS])
    assert torch.equal(ours.apply_temperature(ROWS, temperature), expected)


@pytest.mark.parametrize("penalty", [0.8, 1.3])
def test_the_repetition_penalty_equals_the_textbook(penalty):
    expected = [
        textbook.repetition_penalty(row, seen.nonzero()[:, 0].tolist(), penalty)
        for row, seen in zip(ROWS, SEEN, strict=True)
    ]
    assert torch.equal(ours.apply_repetition_penalty(ROWS, SEEN, penalty), torch.stack(expected))


def test_suppressed_tokens_are_never_sampled_and_only_allowed_ones_are():
    uniforms = torch.rand(1_000, dtype=torch.float64)

    def sampled(**settings):
        return set(ours.sample(ROWS, GenerationConfig(**settings), None, uniforms).tolist())

    assert not {2, 9} & sampled(suppress_tokens=(2, 9))
    assert sampled(allowed_token_ids=(2, 9)) == {2, 9}
    assert sampled(allowed_token_ids=(2, 9), suppress_tokens=(9,), temperature=0) == {2}


def test_a_draw_equals_the_textbook():
    uniforms = torch.rand(1_000, dtype=torch.float64)
    uniforms[:2] = torch.tensor([0.0, 1 - 2**-53])  # the smallest and the largest
    expected = [
        textbook.draw(row, uniform) for row, uniform in zip(ROWS, uniforms.tolist(), strict=True)
    ]
    assert ours.draw(ROWS, uniforms).tolist() == expected


def test_temperature_zero_is_argmax_and_of_equal_logits_the_first():
    chosen = ours.sample(
        ROWS, GenerationConfig(temperature=0, top_p=0.5, typical_p=0.2), None, torch.rand(1_000)
    )
    assert chosen.tolist() == [row.index(max(row)) for row in ROWS.tolist()]


def test_the_rules_and_their_order_equal_transformers():
    rows = torch.randn(1_000, 40, dtype=torch.float64) * 3
    ids = torch.randint(0, 40, (1_000, 6))
    chain = theirs.LogitsProcessorList(
        [
            theirs.RepetitionPenaltyLogitsProcessor(1.4),
            theirs.SuppressTokensLogitsProcessor([7, 8]),
            theirs.TemperatureLogitsWarper(0.7),
            theirs.TopKLogitsWarper(12),
            theirs.TopPLogitsWarper(0.9),
            theirs.MinPLogitsWarper(0.02),
            theirs.TypicalLogitsWarper(0.8),
        ]
    )
    config = GenerationConfig(
        repetition_penalty=1.4,
        suppress_tokens=(7, 8),
        temperature=0.7,
        top_k=12,
        top_p=0.9,
        min_p=0.02,
        typical_p=0.8,
    )
    seen = torch.zeros(1_000, 40, dtype=torch.bool).scatter_(1, ids, True)
    logits = ours.suppress(ours.apply_repetition_penalty(rows, seen, 1.4), (7, 8))
    logits = ours.apply_filters(ours.apply_temperature(logits, 0.7), config)
    torch.testing.assert_close(logits, chain(ids, rows.clone()), rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    "config",
    [
        GenerationConfig(top_k=7),
        GenerationConfig(top_k=30, top_p=0.7),
        GenerationConfig(temperature=0.5, top_k=3, min_p=0.1),
    ],
)
def test_sampling_is_a_draw_after_all_rules(config):
    """With and without logits equal to the k-th largest, where top_k_ids is not used."""
    rows, uniforms = ROWS.clone(), torch.rand(1_000, dtype=torch.float64)
    for logits in (rows, rows[1::5]):  # the second has no rounded row
        filtered = ours.apply_filters(ours.apply_temperature(logits, config.temperature), config)
        pairs = zip(filtered, uniforms.tolist(), strict=False)
        expected = [textbook.draw(row, uniform) for row, uniform in pairs]
        assert ours.sample(logits, config, None, uniforms[: len(logits)]).tolist() == expected


def chi_square(counts: np.ndarray, expected: np.ndarray) -> float:
    """The chi-square statistic, standardized (mean df, variance 2 df)."""
    possible = expected > 0
    assert counts[~possible].sum() == 0
    df = int(possible.sum()) - 1
    statistic = (((counts - expected) ** 2)[possible] / expected[possible]).sum()
    return (statistic - df) / math.sqrt(2 * df)


@pytest.mark.parametrize(
    "config",
    [
        GenerationConfig(seed=1),
        GenerationConfig(seed=2, temperature=0.7, top_k=12),
        GenerationConfig(seed=3, top_p=0.8, min_p=0.01),
    ],
)
def test_100000_draws_follow_the_probabilities(config):
    torch.manual_seed(4)
    logits = torch.randn(1, 50, dtype=torch.float64) * 1.5
    draws = ours.Draws(config.seed, 1, torch.device("cpu"))
    uniforms = torch.cat([draws.next() for _ in range(100_000)])
    rows = logits.expand(1_000, -1)
    tokens = torch.cat([ours.sample(rows, config, None, part) for part in uniforms.split(1_000)])
    filtered = ours.apply_filters(ours.apply_temperature(logits, config.temperature), config)
    probs = filtered.softmax(dim=1)[0].numpy()
    assert abs(chi_square(np.bincount(tokens.numpy(), minlength=50), probs * 100_000)) < 4


def test_the_first_draws_of_5000_sequences_are_uniform():
    first = ours.Draws(9, 5_000, torch.device("cpu")).next()
    assert abs(chi_square(np.histogram(first.numpy(), 50, (0, 1))[0], np.full(50, 100.0))) < 4


def test_a_draw_depends_on_seed_sequence_and_position_only():
    def numbers(seed: int, n: int) -> torch.Tensor:
        draws = ours.Draws(seed, n, torch.device("cpu"))
        return torch.stack([draws.next().clone() for _ in range(600)])  # (position, sequence)

    assert torch.equal(numbers(5, 3)[:, :2], numbers(5, 2))
    assert len(numbers(5, 3).unique()) == 1_800
    assert not set(numbers(5, 1)[:, 0].tolist()) & set(numbers(6, 1)[:, 0].tolist())


@pytest.mark.parametrize(
    "settings, message",
    [
        (
            {"temperature": -0.1},
            "temperature: -0.1 is out of range; use 0 (greedy), or 1e-06 to 1,000,000",
        ),
        (
            {"temperature": math.nan},
            "temperature: nan is out of range; use 0 (greedy), or 1e-06 to 1,000,000",
        ),
        ({"top_k": 0}, "top_k: 0 is out of range; use 1 to 134,217,728"),
        ({"top_p": 0.0}, "top_p: 0 is out of range; use more than 0, at most 1"),
        ({"min_p": 1.5}, "min_p: 1.5 is out of range; use more than 0, at most 1"),
        ({"typical_p": -1.0}, "typical_p: -1 is out of range; use more than 0, at most 1"),
        (
            {"repetition_penalty": 0.0},
            "repetition_penalty: 0 is out of range; use 0.01 to 100; 1 disables it",
        ),
        ({"seed": -1}, "seed: -1 is out of range; use 0 to 9,223,372,036,854,775,807"),
        ({"n": 0}, "n: 0 is out of range; use 1 to 16,384"),
        ({"max_new_tokens": 0}, "max_new_tokens: 0 is out of range; use 1 to 1,048,576"),
        ({"logprobs": -1}, "logprobs: -1 is out of range; use 0 to 10,000"),
        ({"stop": ("a", "")}, "stop: empty stop string; give some text"),
    ],
)
def test_invalid_settings_raise(settings, message):
    with pytest.raises(QkvError) as error:
        GenerationConfig(**settings)
    assert str(error.value) == message
