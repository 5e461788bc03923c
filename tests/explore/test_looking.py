"""Attention on the page is the attention of the pass, whole, merged, small or rolled out."""

import numpy as np
import pytest
import torch
from small_explorers import TEXT, explorer_of, small, tokenizer
from torch.utils.flop_counter import FlopCounterMode

from qkv.explore.looking import merged
from qkv.explore.problem import Problem
from qkv.explore.record import record
from qkv.model.guided import AlignmentHead
from qkv.model.presets import decoder_only
from qkv.model.spec import Dense, Heads


def opened(family):
    explorer = small(family)
    story = explorer.open(TEXT)
    return explorer, story, f"pass/{story['id']}"


def weights_of(explorer, story, path):
    model, sides = explorer.subject.model, story["sides"]
    ids = {side: torch.tensor([sides[side]["ids"]]) for side in sides}
    with torch.no_grad(), record(model, path) as steps:
        memory = model.encode(ids["source"]) if "source" in ids else None
        if "target" in ids:
            model.decode(ids["target"], memory)
    return steps[path][0]


@pytest.mark.parametrize(
    ("family", "which", "path"),
    [
        ("translator", "encoder", "encoder.layers.1.attn"),
        ("translator", "decoder", "decoder.layers.1.attn"),
        ("translator", "cross", "decoder.layers.1.cross"),
        ("generator", "decoder", "decoder.layers.1.attn"),
        ("embedder", "encoder", "encoder.layers.1.attn"),
        ("latent", "decoder", "decoder.layers.1.attn"),
    ],
)
def test_weights_are_those_of_the_pass(family, which, path):
    explorer, story, this = opened(family)
    theirs = weights_of(explorer, story, f"{path}.branch.core.weights")
    ours = explorer.answer(f"{this}/attention/{which}/1")
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-10)
    assert torch.equal(explorer.answer(f"{this}/attention/{which}/1/1"), ours[1])
    torch.testing.assert_close(
        explorer.answer(f"{this}/attention/{which}/1/mean"), theirs.mean(0), rtol=0, atol=1e-10
    )
    kind = next(one for one in story["attention"] if one["name"] == which)
    assert {"layer": 1, "heads": len(theirs)} in kind["layers"]
    assert theirs.shape[1:] == tuple(
        len(story["sides"][kind[axis]]["ids"]) for axis in ("rows", "columns")
    )


def test_the_guided_head_of_a_translator_is_named_and_that_of_others_is_not():
    plain, guided = (
        small("translator").open(TEXT),
        small("translator", alignment=AlignmentHead(0, 3)).open(TEXT),
    )
    assert {kind["name"]: kind["guided"] for kind in guided["attention"]} == {
        "encoder": None,
        "decoder": None,
        "cross": {"layer": 0, "head": 3},
    }
    assert all(kind["guided"] is None for kind in plain["attention"])


@pytest.mark.parametrize(
    ("family", "which", "part"),
    [
        ("translator", "encoder", "encoder.layers.{}.attn"),
        ("translator", "cross", "decoder.layers.{}.cross"),
        ("generator", "decoder", "decoder.layers.{}.attn"),
    ],
)
def test_the_mean_of_all_layers_is_that_of_every_head(family, which, part):
    explorer, story, this = opened(family)
    heads = torch.cat(
        [
            weights_of(explorer, story, f"{part.format(layer)}.branch.core.weights")
            for layer in range(2)
        ]
    )
    ours = explorer.answer(f"{this}/attention/{which}/mean")
    assert len(heads) == 8
    torch.testing.assert_close(ours, heads.mean(dim=0), rtol=0, atol=1e-10)


def test_a_word_is_looked_at_with_all_its_pieces_and_looks_as_their_mean():
    grid = torch.tensor([[[0.5, 0.2, 0.3], [0.1, 0.1, 0.8], [0.4, 0.6, 0.0]]])
    words = [{"tokens": [0]}, {"tokens": [1, 2]}]
    expected = torch.tensor([[[0.5, 0.5], [0.25, 0.75]]])
    torch.testing.assert_close(merged(grid, words, words), expected)


def test_rows_of_words_still_sum_to_one():
    explorer, story, this = opened("translator")
    for which in ("encoder", "decoder", "cross"):
        ours = explorer.answer(f"{this}/words/{which}/0")
        kind = next(one for one in story["attention"] if one["name"] == which)
        assert ours.shape[1:] == tuple(
            len(story["sides"][kind[axis]]["words"]) for axis in ("rows", "columns")
        )
        torch.testing.assert_close(ours.sum(-1), torch.ones_like(ours[..., 0]))


def test_rollout_multiplies_half_the_weights_and_half_the_residual():
    explorer, story, this = opened("generator")
    expected = None
    for layer in range(2):
        mean = (
            weights_of(explorer, story, f"decoder.layers.{layer}.attn.branch.core.weights")
            .numpy()
            .mean(0)
        )
        step = 0.5 * mean + 0.5 * np.eye(len(mean))
        expected = step if expected is None else step @ expected
    np.testing.assert_allclose(
        explorer.answer(f"{this}/rollout/decoder").numpy(), expected, atol=1e-10
    )
    with pytest.raises(Problem, match="no rollout"):
        explorer.answer(f"{this}/rollout/encoder")


def test_a_small_picture_keeps_the_peaks():
    explorer, _, this = opened("generator")
    grid = explorer.answer(f"{this}/attention/decoder/0")
    small_one = explorer.answer(f"{this}/thumbs/decoder/0")
    assert small_one.dtype == torch.uint8
    torch.testing.assert_close(
        small_one.double() / 255, grid, rtol=0, atol=0.5 / 255 + 1e-9
    )  # short: nothing is lost


def test_512_tokens_of_12_layers_with_12_heads_open_with_the_work_of_one_pass():
    tokens = tokenizer()
    spec = decoder_only(tokens.vocab_size, 192, 12, Heads(12, 12, 16), Dense(768, "gelu"))
    explorer = explorer_of(spec, tokens)
    model = explorer.subject.model.float().requires_grad_(
        False
    )  # or the counter looks for gradients
    with FlopCounterMode(display=False) as opening:
        story = explorer.open("我" * 170)  # three bytes each, and <bos>
    ids = torch.tensor([story["sides"]["target"]["ids"]])
    assert 500 < ids.shape[1] <= 512
    with FlopCounterMode(display=False) as one_pass:
        model.logits(model.decode(ids))
    with FlopCounterMode(display=False) as looking:
        first = explorer.answer(f"pass/{story['id']}/thumbs/decoder/0")
        explorer.answer(f"pass/{story['id']}/attention/decoder/0/3")
    assert first.shape == (12, 32, 32)
    assert (
        0 < looking.get_total_flops() < opening.get_total_flops() / 5
        and opening.get_total_flops() <= one_pass.get_total_flops()
    )
    for layer in range(12):
        explorer.answer(f"pass/{story['id']}/tensor/decoder.{layer}.attn.scores", {"index": "0"})
    kept = sum(one.numel() * one.element_size() for one in flat(explorer.passes[story["id"]].looks))
    assert kept < 100 << 20  # what is looked at is forgotten again


def flat(looks):
    for look in looks.values():
        for one in look.values():
            yield from one if isinstance(one, tuple) else [one]


@pytest.mark.parametrize(
    "name",
    [
        "attention/decoder/2",
        "attention/cross/0",
        "attention/decoder/0/4",
        "attention/decoder/0/best",
        "attention/encoder/mean",
        "thumbs/encoder/0",
        "words/cross/1",
    ],
)
def test_attention_that_is_not_there_is_said_to_be_so(name):
    explorer, _, this = opened("generator")
    with pytest.raises(Problem) as problem:
        explorer.answer(f"{this}/{name}")
    assert problem.value.status == 404
