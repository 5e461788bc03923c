"""Invalid input: each gets a one-line error."""

import pytest
import torch
from small_models import build, decoder, encoder, shrink

from qkv.errors import QkvError
from qkv.model import spec as s
from qkv.model.presets import preset

OWN = "is the tokenizer the model's own?"
WRONG = [
    ([[1, 23]], f"ids: 23 is out of range; this vocabulary ends at 22; {OWN}"),
    ([[1, 5], [99, -4]], f"ids: 99 is out of range; this vocabulary ends at 22; {OWN}"),
    ([[1, -1]], f"ids: -1 is out of range; this vocabulary ends at 22; {OWN}"),
    ([], "ids: a batch of shape (0,); give (batch, length) with at least one token"),
    ([[]], "ids: a batch of shape (1, 0); give (batch, length) with at least one token"),
    ([[], []], "ids: a batch of shape (2, 0); give (batch, length) with at least one token"),
    ([1, 2, 3], "ids: a batch of shape (3,); give (batch, length) with at least one token"),
    ([[[1]]], "ids: a batch of shape (1, 1, 1); give (batch, length) with at least one token"),
]


def error_of(run, *arguments, **more) -> str:
    with pytest.raises(QkvError) as caught:
        run(*arguments, **more)
    return str(caught.value)


@pytest.mark.parametrize(("ids", "line"), WRONG, ids=[line for _, line in WRONG])
def test_invalid_ids_get_one_line(ids, line):
    wrong = torch.tensor(ids, dtype=torch.long)
    assert error_of(build(decoder()).decode, wrong) == line
    assert error_of(build(encoder()).encode, wrong) == line


def test_the_source_has_its_own_vocabulary():
    from small_models import both

    line = error_of(build(both()).encode, torch.tensor([[20]]))
    assert line == f"ids: 20 is out of range; this vocabulary ends at 18; {OWN}"


def test_token_types_are_checked_too():
    model = build(shrink(preset("bert")))
    line = error_of(model.encode, torch.tensor([[1]]), types=torch.tensor([[2]]))
    assert line == f"ids: 2 is out of range; this vocabulary ends at 1; {OWN}"


MASKS = [
    (
        torch.ones(2, 3, dtype=torch.long),
        "attention_mask: a mask of int64 (2, 3); give bool (2, 3), True = token",
    ),
    (
        torch.ones(2, 4, dtype=torch.bool),
        "attention_mask: a mask of bool (2, 4); give bool (2, 3), True = token",
    ),
    (
        torch.ones(1, 3, dtype=torch.bool),
        "attention_mask: a mask of bool (1, 3); give bool (2, 3), True = token",
    ),
]


@pytest.mark.parametrize(("attention_mask", "line"), MASKS, ids=[line for _, line in MASKS])
def test_a_mask_that_does_not_fit_its_ids_is_an_error(attention_mask, line):
    ids = torch.ones(2, 3, dtype=torch.long)
    assert error_of(build(decoder()).decode, ids, attention_mask=attention_mask) == line
    assert error_of(build(encoder()).encode, ids, attention_mask) == line


TABLES = {"learned": decoder(positions=s.Learned()), "token-mlp": decoder(s.TokenMlp())}


@pytest.mark.parametrize("spec", TABLES.values(), ids=TABLES.keys())
@torch.no_grad()
def test_a_sequence_longer_than_a_table_is_an_error_with_and_without_a_cache(spec):
    model, line = build(spec), "ids: 25 tokens are too long; this model reads at most 24"
    assert error_of(model.decode, torch.zeros(1, 25, dtype=torch.long)) == line
    cache = model.new_cache()
    model.decode(torch.zeros(1, 24, dtype=torch.long), cache=cache)
    assert error_of(model.decode, torch.zeros(1, 1, dtype=torch.long), cache=cache) == line
    assert cache.length == 24


@torch.no_grad()
def test_positions_without_a_table_have_no_limit():
    for positions in (s.Rotary(), s.Sinusoidal(), s.NoPositions()):
        assert (
            build(decoder(positions=positions))
            .decode(torch.zeros(1, 100, dtype=torch.long))
            .isfinite()
            .all()
        )
