"""Input that no model can read: each gets one clear line."""

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


def complaint(run, *arguments, **more) -> str:
    with pytest.raises(QkvError) as caught:
        run(*arguments, **more)
    return str(caught.value)


@pytest.mark.parametrize(("ids", "line"), WRONG, ids=[line for _, line in WRONG])
def test_ids_that_are_none_get_one_clear_line(ids, line):
    wrong = torch.tensor(ids, dtype=torch.long)
    assert complaint(build(decoder()).decode, wrong) == line
    assert complaint(build(encoder()).encode, wrong) == line


def test_the_source_has_its_own_vocabulary():
    from small_models import both

    line = complaint(build(both()).encode, torch.tensor([[20]]))
    assert line == f"ids: 20 is out of range; this vocabulary ends at 18; {OWN}"


def test_token_types_are_checked_too():
    model = build(shrink(preset("bert")))
    line = complaint(model.encode, torch.tensor([[1]]), types=torch.tensor([[2]]))
    assert line == f"ids: 2 is out of range; this vocabulary ends at 1; {OWN}"


MASKS = [
    (
        torch.ones(2, 3, dtype=torch.long),
        "real: a mask of int64 (2, 3); give bool (2, 3), True = a token",
    ),
    (
        torch.ones(2, 4, dtype=torch.bool),
        "real: a mask of bool (2, 4); give bool (2, 3), True = a token",
    ),
    (
        torch.ones(1, 3, dtype=torch.bool),
        "real: a mask of bool (1, 3); give bool (2, 3), True = a token",
    ),
]


@pytest.mark.parametrize(("real", "line"), MASKS, ids=[line for _, line in MASKS])
def test_a_mask_that_does_not_fit_its_ids_is_refused(real, line):
    ids = torch.ones(2, 3, dtype=torch.long)
    assert complaint(build(decoder()).decode, ids, real=real) == line
    assert complaint(build(encoder()).encode, ids, real) == line


TABLES = {"learned": decoder(positions=s.Learned()), "token-mlp": decoder(s.TokenMlp())}


@pytest.mark.parametrize("spec", TABLES.values(), ids=TABLES.keys())
@torch.no_grad()
def test_a_text_too_long_for_the_tables_is_refused_at_once_or_step_by_step(spec):
    model, line = build(spec), "ids: 25 tokens are too long; this model reads at most 24"
    assert complaint(model.decode, torch.zeros(1, 25, dtype=torch.long)) == line
    cache = model.new_cache()
    model.decode(torch.zeros(1, 24, dtype=torch.long), cache=cache)
    assert complaint(model.decode, torch.zeros(1, 1, dtype=torch.long), cache=cache) == line
    assert cache.length == 24


@torch.no_grad()
def test_rules_know_no_end():
    for positions in (s.Rotary(), s.Sinusoidal(), s.NoPositions()):
        assert (
            build(decoder(positions=positions))
            .decode(torch.zeros(1, 100, dtype=torch.long))
            .isfinite()
            .all()
        )
