"""Attention views: heads, means, words, thumbnails and rollout agree with recorded weights."""

import numpy as np
import pytest
import torch
from small_explorers import TEXT, explorer_of, small, tokenizer
from torch.utils.flop_counter import FlopCounterMode

from qkv.explore.attention_views import merge_to_words
from qkv.explore.record import record
from qkv.model.guided import AlignmentHead
from qkv.model.presets import decoder_only
from qkv.model.spec import Attention, Dense
from qkv.web.api_errors import ApiError

PARTS = {
    "encoder": "encoder.layers.{}.attn",
    "decoder": "decoder.layers.{}.attn",
    "cross": "decoder.layers.{}.cross",
}


def opened(family):
    explorer = small(family)
    trace = explorer.open(TEXT)
    return explorer, trace, f"pass/{trace['id']}"


def weights_of(explorer, trace, kind, layer):
    path = f"{PARTS[kind].format(layer)}.branch.core.weights"
    model, sides = explorer.explored.model, trace["sides"]
    ids = {side: torch.tensor([sides[side]["ids"]]) for side in sides}
    with torch.no_grad(), record(model, path) as steps:
        memory = model.encode(ids["source"]) if "source" in ids else None
        if "target" in ids:
            model.decode(ids["target"], memory)
    return steps[path][0]


@pytest.mark.parametrize(
    ("family", "kind"),
    [
        *(("translator", kind) for kind in PARTS),
        ("generator", "decoder"),
        ("embedder", "encoder"),
        ("latent", "decoder"),
    ],
)
def test_weights_are_those_of_the_pass(family, kind):
    explorer, trace, this = opened(family)
    theirs = weights_of(explorer, trace, kind, 1)
    ours = explorer.answer(f"{this}/attention/{kind}/1")
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-10)
    assert torch.equal(explorer.answer(f"{this}/attention/{kind}/1/1"), ours[1])
    torch.testing.assert_close(
        explorer.answer(f"{this}/attention/{kind}/1/mean"), theirs.mean(0), rtol=0, atol=1e-10
    )
    attention = next(entry for entry in trace["attention"] if entry["name"] == kind)
    assert {"layer": 1, "heads": len(theirs)} in attention["layers"]
    assert theirs.shape[1:] == tuple(
        len(trace["sides"][attention[axis]]["ids"]) for axis in ("rows", "columns")
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
    ("family", "kind"),
    [("translator", "encoder"), ("translator", "cross"), ("generator", "decoder")],
)
def test_the_mean_of_all_layers_is_that_of_every_head(family, kind):
    explorer, trace, this = opened(family)
    heads = torch.cat([weights_of(explorer, trace, kind, layer) for layer in range(2)])
    ours = explorer.answer(f"{this}/attention/{kind}/mean")
    assert len(heads) == 8
    torch.testing.assert_close(ours, heads.mean(dim=0), rtol=0, atol=1e-10)


def test_word_weights_sum_over_keys_and_average_over_queries():
    grid = torch.tensor([[[0.5, 0.2, 0.3], [0.1, 0.1, 0.8], [0.4, 0.6, 0.0]]])
    words = [{"tokens": [0]}, {"tokens": [1, 2]}]
    expected = torch.tensor([[[0.5, 0.5], [0.25, 0.75]]])
    torch.testing.assert_close(merge_to_words(grid, words, words), expected)


def test_rows_of_words_still_sum_to_one():
    explorer, trace, this = opened("translator")
    for kind in ("encoder", "decoder", "cross"):
        ours = explorer.answer(f"{this}/words/{kind}/0")
        attention = next(entry for entry in trace["attention"] if entry["name"] == kind)
        assert ours.shape[1:] == tuple(
            len(trace["sides"][attention[axis]]["words"]) for axis in ("rows", "columns")
        )
        torch.testing.assert_close(ours.sum(-1), torch.ones_like(ours[..., 0]))


def test_rollout_multiplies_half_the_weights_and_half_the_residual():
    explorer, trace, this = opened("generator")
    expected = None
    for layer in range(2):
        mean = weights_of(explorer, trace, "decoder", layer).numpy().mean(0)
        step = 0.5 * mean + 0.5 * np.eye(len(mean))
        expected = step if expected is None else step @ expected
    np.testing.assert_allclose(
        explorer.answer(f"{this}/rollout/decoder").numpy(), expected, atol=1e-10
    )
    with pytest.raises(ApiError, match="no rollout"):
        explorer.answer(f"{this}/rollout/encoder")


def test_thumbnails_keep_the_maxima():
    explorer, _, this = opened("generator")
    grid = explorer.answer(f"{this}/attention/decoder/0")
    thumbnail = explorer.answer(f"{this}/thumbnails/decoder/0")
    assert thumbnail.dtype == torch.uint8
    torch.testing.assert_close(
        thumbnail.double() / 255, grid, rtol=0, atol=0.5 / 255 + 1e-9
    )  # a short text is not pooled


def test_opening_512_tokens_costs_at_most_one_forward_pass():
    tokens = tokenizer()
    spec = decoder_only(tokens.vocab_size, 192, 12, Attention(12, 12, 16), Dense(768, "gelu"))
    explorer = explorer_of(spec, tokens)
    model = explorer.explored.model.float().requires_grad_(
        False
    )  # the counter requires no gradients
    with FlopCounterMode(display=False) as opening:
        trace = explorer.open("我" * 170)  # three bytes each, and <bos>
    ids = torch.tensor([trace["sides"]["target"]["ids"]])
    assert 500 < ids.shape[1] <= 512
    with FlopCounterMode(display=False) as one_pass:
        model.logits(model.decode(ids))
    with FlopCounterMode(display=False) as viewing:
        first = explorer.answer(f"pass/{trace['id']}/thumbnails/decoder/0")
        explorer.answer(f"pass/{trace['id']}/attention/decoder/0/3")
    assert first.shape == (12, 32, 32)
    assert (
        0 < viewing.get_total_flops() < opening.get_total_flops() / 5
        and opening.get_total_flops() <= one_pass.get_total_flops()
    )
    for layer in range(12):
        explorer.answer(
            f"pass/{trace['id']}/tensor/decoder.layers.{layer}.attn.branch.core.scores",
            {"index": "0"},
        )
    kept = sum(t.numel() * t.element_size() for t in flat(explorer.passes[trace["id"]].activations))
    assert kept < 100 << 20  # old activations are dropped


def flat(activations):
    for outputs in activations.values():
        for output in outputs.values():
            yield from output if isinstance(output, tuple) else [output]


@pytest.mark.parametrize(
    "name",
    [
        "attention/decoder/2",
        "attention/cross/0",
        "attention/decoder/0/4",
        "attention/decoder/0/best",
        "attention/encoder/mean",
        "thumbnails/encoder/0",
        "words/cross/1",
    ],
)
def test_missing_attention_is_a_404(name):
    explorer, _, this = opened("generator")
    with pytest.raises(ApiError) as error:
        explorer.answer(f"{this}/{name}")
    assert error.value.status == 404
