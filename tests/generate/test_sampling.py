"""Every rule is its textbook definition, the chain is transformers', and draws follow the probabilities."""

import math

import numpy as np
import pytest
import torch
from transformers.generation import logits_process as theirs

from qkv.errors import QkvError
from qkv.generate import sampling as ours
from qkv.generate.config import GenerationConfig
from qkv.textbook import sampling as textbook

# 1,000 rows: flat and peaked ones, some with impossible tokens, some with equals.
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
    "typical 0.2": (lambda x: ours.typical(x, 0.2), lambda x: textbook.typical(x, 0.2)),
    "typical 0.95": (lambda x: ours.typical(x, 0.95), lambda x: textbook.typical(x, 0.95)),
}


@pytest.mark.parametrize("rule", RULES)
def test_a_rule_for_all_rows_at_once_is_its_textbook_definition_row_by_row(rule):
    fast, plain = RULES[rule]
    assert torch.equal(fast(ROWS), torch.stack([plain(row) for row in ROWS]))


@pytest.mark.parametrize("scale", [0.5, 3.0])
def test_in_a_large_vocabulary_the_shortcuts_change_nothing(scale):
    """Peaked rows, whose nucleus is found among a few tokens, and flat ones, for which all must be sorted."""
    rows = (torch.randn(6, 5_000, dtype=torch.float64) * scale).round(
        decimals=1
    )  # with many equals
    chances = torch.rand(6, dtype=torch.float64)
    for p in (0.3, 0.9):
        assert torch.equal(
            ours.top_p(rows, p), torch.stack([textbook.top_p(row, p) for row in rows])
        )
    assert ours.draw(rows, chances).tolist() == [
        textbook.draw(row, chance) for row, chance in zip(rows, chances.tolist(), strict=True)
    ]


@pytest.mark.parametrize("temperature", [0.3, 1.0, 2.0])
def test_temperature_is_its_textbook_definition(temperature):
    expected = torch.stack([textbook.temperature(row, temperature) for row in ROWS])
    assert torch.equal(ours.heat(ROWS, temperature), expected)


@pytest.mark.parametrize("penalty", [0.8, 1.3])
def test_the_repetition_penalty_is_its_textbook_definition(penalty):
    expected = [
        textbook.repetition_penalty(row, seen.nonzero()[:, 0].tolist(), penalty)
        for row, seen in zip(ROWS, SEEN, strict=True)
    ]
    assert torch.equal(ours.penalise(ROWS, SEEN, penalty), torch.stack(expected))


def test_banned_tokens_are_never_said_and_only_forced_ones_are():
    chances = torch.rand(1_000, dtype=torch.float64)
    assert not {2, 9} & set(
        ours.choose(ROWS, GenerationConfig(banned=(2, 9)), None, chances).tolist()
    )
    assert set(ours.choose(ROWS, GenerationConfig(forced=(2, 9)), None, chances).tolist()) == {2, 9}
    assert set(
        ours.choose(
            ROWS, GenerationConfig(forced=(2, 9), banned=(9,), temperature=0), None, chances
        ).tolist()
    ) == {2}


def test_a_draw_is_its_textbook_definition():
    chances = torch.rand(1_000, dtype=torch.float64)
    chances[:2] = torch.tensor([0.0, 1 - 2**-53])  # the first and the last number a draw can bring
    expected = [
        textbook.draw(row, chance) for row, chance in zip(ROWS, chances.tolist(), strict=True)
    ]
    assert ours.draw(ROWS, chances).tolist() == expected


def test_temperature_zero_takes_the_likeliest_and_of_equals_the_first():
    chosen = ours.choose(
        ROWS, GenerationConfig(temperature=0, top_p=0.5, typical=0.2), None, torch.rand(1_000)
    )
    assert chosen.tolist() == [row.index(max(row)) for row in ROWS.tolist()]


def test_the_chain_is_that_of_transformers():
    """Same rules, same order: what stays in the draw and how likely it is."""
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
    sampling = GenerationConfig(
        repetition_penalty=1.4,
        banned=(7, 8),
        temperature=0.7,
        top_k=12,
        top_p=0.9,
        min_p=0.02,
        typical=0.8,
    )
    seen = torch.zeros(1_000, 40, dtype=torch.bool).scatter_(1, ids, True)
    mine = ours.narrow(ours.heat(ours.ban(ours.penalise(rows, seen, 1.4), (7, 8)), 0.7), sampling)
    torch.testing.assert_close(mine, chain(ids, rows.clone()), rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    "sampling",
    [
        GenerationConfig(top_k=7),
        GenerationConfig(top_k=30, top_p=0.7),
        GenerationConfig(temperature=0.5, top_k=3, min_p=0.1),
    ],
)
def test_a_choice_is_a_draw_from_what_all_rules_leave(sampling):
    """The shortlist that top-k makes changes nothing, with equals of the k-th best and without."""
    rows, chances = ROWS.clone(), torch.rand(1_000, dtype=torch.float64)
    for some in (rows, rows[1::5]):  # the second has no row of whole numbers
        expected = [
            textbook.draw(row, chance)
            for row, chance in zip(
                ours.narrow(ours.heat(some, sampling.temperature), sampling),
                chances.tolist(),
                strict=False,
            )
        ]
        assert ours.choose(some, sampling, None, chances[: len(some)]).tolist() == expected


def chi_square(counts: np.ndarray, expected: np.ndarray) -> float:
    """How far counts are from what is expected, in standard deviations of chi-square (mean df, variance 2 df)."""
    possible = expected > 0
    assert counts[~possible].sum() == 0
    freedom = int(possible.sum()) - 1
    statistic = (((counts - expected) ** 2)[possible] / expected[possible]).sum()
    return (statistic - freedom) / math.sqrt(2 * freedom)


@pytest.mark.parametrize(
    "sampling",
    [
        GenerationConfig(seed=1),
        GenerationConfig(seed=2, temperature=0.7, top_k=12),
        GenerationConfig(seed=3, top_p=0.8, min_p=0.01),
    ],
)
def test_100000_draws_of_one_text_follow_the_probabilities(sampling):
    torch.manual_seed(4)
    logits = torch.randn(1, 50, dtype=torch.float64) * 1.5
    draws = ours.Draws(sampling.seed, 1, torch.device("cpu"))
    chances = torch.cat([draws.next() for _ in range(100_000)])
    tokens = torch.cat(
        [
            ours.choose(logits.expand(1_000, -1), sampling, None, some)
            for some in chances.split(1_000)
        ]
    )
    shares = (
        ours.narrow(ours.heat(logits, sampling.temperature), sampling).softmax(dim=1)[0].numpy()
    )
    assert abs(chi_square(np.bincount(tokens.numpy(), minlength=50), shares * 100_000)) < 4


def test_the_first_draws_of_5000_texts_are_as_even_as_those_of_one():
    first = ours.Draws(9, 5_000, torch.device("cpu")).next()
    assert abs(chi_square(np.histogram(first.numpy(), 50, (0, 1))[0], np.full(50, 100.0))) < 4


def test_a_draw_depends_on_seed_text_and_place_alone():
    def numbers(seed: int, n: int) -> torch.Tensor:
        draws = ours.Draws(seed, n, torch.device("cpu"))
        return torch.stack([draws.next().clone() for _ in range(600)])  # (place, text)

    assert torch.equal(numbers(5, 3)[:, :2], numbers(5, 2))
    assert len(numbers(5, 3).unique()) == 1_800 and not set(numbers(5, 1)[:, 0].tolist()) & set(
        numbers(6, 1)[:, 0].tolist()
    )


@pytest.mark.parametrize(
    "settings, line",
    [
        ({"temperature": -0.1}, "temperature: -0.1 is impossible; use 0 (greedy) or more"),
        ({"temperature": math.nan}, "temperature: nan is impossible; use 0 (greedy) or more"),
        ({"top_k": 0}, "top_k: 0 leaves no token; use 1 or more, or leave it out"),
        ({"top_p": 0.0}, "top_p: 0.0 is not such a share; use more than 0, at most 1"),
        ({"min_p": 1.5}, "min_p: 1.5 is not such a share; use more than 0, at most 1"),
        ({"typical": -1.0}, "typical: -1.0 is not such a share; use more than 0, at most 1"),
        (
            {"repetition_penalty": 0.0},
            "repetition_penalty: 0.0 is no penalty; use more than 0; 1 changes nothing",
        ),
        ({"seed": -1}, "seed: -1 is negative; use 0 or more"),
        ({"n": 0}, "n: 0 is too small; use 1 or more"),
        ({"max_new_tokens": 0}, "max_new_tokens: 0 is too small; use 1 or more"),
        ({"logprobs": -1}, "logprobs: -1 is negative; use 0 for the chosen tokens alone"),
        ({"stop": ("a", "")}, "stop: an empty text stops nothing; give some text"),
    ],
)
def test_impossible_settings_are_refused_in_one_line(settings, line):
    with pytest.raises(QkvError) as error:
        GenerationConfig(**settings)
    assert str(error.value) == line
