"""Recording gives the outputs of modules and restores the model."""

from dataclasses import replace

import pytest
import torch

from qkv.errors import QkvError
from qkv.explore.record import record
from qkv.model.eager_core import sdpa_cores
from qkv.model.presets import decoder_only, encoder_decoder, encoder_only
from qkv.model.spec import Attention, Gated, LatentAttention, MixtureOfExperts
from qkv.model.transformer import Transformer
from qkv.textbook.attention import scaled_dot_product_attention

WEIGHTS = "decoder.layers.*.attn.branch.core.weights"


def small_decoder(mixer=None):
    torch.manual_seed(5)
    spec = decoder_only(31, 16, 2, mixer or Attention(4, 2, 4), Gated(24))
    return Transformer(replace(spec, max_len=32)).double().eval()


def random_ids(batch=2, length=6):
    return torch.randint(0, 31, (batch, length), generator=torch.Generator().manual_seed(1))


def state_of(model):
    """Everything that recording could change."""
    modules = dict(model.named_modules())
    hooks = {
        path: len(module._forward_hooks)
        for path, module in modules.items()
        if module._forward_hooks
    }
    same = {path: (id(module), module.training) for path, module in modules.items()}
    return (
        hooks,
        same,
        {name: (id(w), w.sum().item()) for name, w in model.state_dict(keep_vars=True).items()},
    )


def test_weights_are_those_of_the_textbook_formula():
    model, ids = small_decoder(), random_ids()
    with record(model, "*.0.attn.branch.core.*") as steps:
        model.decode(ids)
    core = "decoder.layers.0.attn.branch.core"
    q, k, v = (steps[f"{core}.{name}"] for name in "qkv")
    mask = torch.ones(6, 6, dtype=torch.bool).tril()
    mixed, weights = scaled_dot_product_attention(q, k, v, mask)
    torch.testing.assert_close(steps[f"{core}.weights"], weights, rtol=0, atol=1e-12)
    torch.testing.assert_close(steps[f"{core}.mixed"], mixed, rtol=0, atol=1e-12)


def test_each_row_of_weights_sums_to_one_and_is_causal():
    model = small_decoder()
    with record(model, WEIGHTS) as steps:
        model.decode(random_ids())
    assert list(steps) == [WEIGHTS.replace("*", "0"), WEIGHTS.replace("*", "1")]
    for weights in steps.values():
        assert weights.shape == (2, 4, 6, 6) and not weights.requires_grad
        torch.testing.assert_close(weights.sum(-1), torch.ones(2, 4, 6, dtype=torch.float64))
        assert not weights.triu(1).any()


def test_recorded_outputs_are_those_of_the_pass():
    model, ids = small_decoder(), random_ids()
    with record(model, "decoder.norm", "embed", "decoder.layers.*.ffn") as steps:
        stream = model.decode(ids)
    assert torch.equal(steps["decoder.norm"], stream.detach())
    assert torch.equal(steps["embed"], model.embed.weight[ids].detach())
    torch.testing.assert_close(model.decoder.norm(steps["decoder.layers.1.ffn"]), stream)


def test_the_model_is_restored():
    model = small_decoder().train()
    model.decoder.layers[0].attn.branch.core.eval()
    before, stream = state_of(model), model.decode(random_ids())
    with record(model, "*") as steps:
        during = state_of(model)
        model.decode(random_ids())
    assert (
        state_of(model) == before
        and during[0]
        and during[1] != before[1]
        and during[2] == before[2]
    )
    assert torch.equal(model.decode(random_ids()), stream)
    assert len(steps) > 40


def test_the_model_is_restored_when_the_pass_fails():
    model = small_decoder()
    before = state_of(model)
    with pytest.raises(QkvError, match="out of range"), record(model, "*"):
        model.decode(torch.full((1, 3), 31))
    assert state_of(model) == before


def test_the_model_is_restored_when_a_pattern_is_wrong():
    model = small_decoder()
    before = state_of(model)
    with pytest.raises(QkvError), record(model, WEIGHTS, "nothing.like.it"):
        pass
    assert state_of(model) == before


def test_a_core_is_swapped_only_where_its_steps_are_recorded():
    model = small_decoder()
    with record(model, "decoder.layers.*.attn", "decoder.layers.*.attn.branch.core"):
        assert len(sdpa_cores(model)) == 2
    with record(model, "decoder.layers.1.attn.branch.core.scores"):
        assert list(sdpa_cores(model)) == ["decoder.layers.0.attn.branch.core"]


def test_every_decoding_step_is_kept():
    model, ids = small_decoder(), random_ids(length=4)
    cache, path = model.new_cache(), WEIGHTS.replace("*", "1")
    with record(model, WEIGHTS) as steps:
        for position in range(4):
            model.decode(ids[:, position : position + 1], cache=cache)
    with record(model, WEIGHTS) as whole:
        model.decode(ids)
    rows = steps.all(path)
    assert [row.shape for row in rows] == [(2, 4, 1, n) for n in (1, 2, 3, 4)]
    assert torch.equal(steps[path], rows[-1])
    for position, row in enumerate(rows):
        torch.testing.assert_close(
            row[:, :, 0], whole[path][:, :, position, : position + 1], rtol=0, atol=1e-12
        )


def test_recordings_may_be_nested():
    model, ids = small_decoder(), random_ids()
    before, path = state_of(model), WEIGHTS.replace("*", "0")
    with record(model, WEIGHTS) as outer:
        with record(model, path) as inner:
            model.decode(ids)
        model.decode(ids)
    assert torch.equal(outer.all(path)[0], inner[path]) and len(outer.all(path)) == 2
    assert state_of(model) == before


def test_all_families_and_parts_can_be_recorded():
    torch.manual_seed(3)
    model, ids = Transformer(encoder_decoder(31, 16, 2, 4, 24)).eval(), random_ids()
    with record(model, "*.core.weights") as steps:
        model.decode(ids[:, :3], model.encode(ids))
    assert len(steps) == 6 and steps["decoder.layers.1.cross.branch.core.weights"].shape == (
        2,
        4,
        3,
        6,
    )
    bert = Transformer(encoder_only(31, 16, 2, 4, 24)).eval()
    with record(bert, "encoder.layers.0.attn.branch.core.weights") as steps:
        bert.encode(ids)
    assert steps["encoder.layers.0.attn.branch.core.weights"].shape == (2, 4, 6, 6)
    latent = small_decoder(LatentAttention(2, 6, 4, 4, 5))
    with record(latent, WEIGHTS) as steps:
        latent.decode(ids)
    assert steps[WEIGHTS.replace("*", "0")].shape == (2, 2, 6, 6)


def test_several_outputs_are_a_tuple():
    model = Transformer(
        decoder_only(31, 16, 1, Attention(4, 4, 4), MixtureOfExperts(4, 2, Gated(8)))
    )
    with record(model, "decoder.layers.0.ffn.branch.router") as steps:
        model.decode(random_ids())
    chosen, weights, scores = steps["decoder.layers.0.ffn.branch.router"]
    assert (
        chosen.shape == weights.shape == (12, 2)
        and scores.shape == (12, 4)
        and not scores.requires_grad
    )


def test_gradients_are_the_same_while_recording():
    model, ids = small_decoder(), random_ids()
    plain = torch.autograd.grad(model.loss(model.decode(ids), ids), model.embed.weight)[0]
    with record(model, "*"):
        recorded = torch.autograd.grad(model.loss(model.decode(ids), ids), model.embed.weight)[0]
    torch.testing.assert_close(plain, recorded, rtol=0, atol=1e-12)


def test_a_compiled_model_is_recorded_as_the_plain_one():
    model, ids = small_decoder(), random_ids()
    model.decoder.compile(backend="eager")
    model.decode(ids)  # compiled code would ignore hooks that are set afterwards
    with record(
        torch.compile(model, backend="eager"), "decoder.norm", "decoder.layers.*.ffn"
    ) as steps:
        model.decode(ids)
    assert len(steps) == 3
    torch._dynamo.reset()


@pytest.mark.parametrize(
    ("pattern", "line"),
    [
        (
            "decoder.layers.*.attn.branch.core.wieghts",
            "no module of this model matches; did you mean"
            " 'decoder.layers.*.attn.branch.core.weights'?",
        ),
        (
            "decoder.layers.7.ffn",
            "no module of this model matches; did you mean 'decoder.layers.*.ffn'?",
        ),
        ("attention", "no module of this model matches; choose from embed, decoder, lm_head"),
    ],
)
def test_a_pattern_without_a_match_gets_the_near_miss(pattern, line):
    with pytest.raises(QkvError) as error, record(small_decoder(), "embed", pattern):
        pass
    assert str(error.value) == f"{pattern}: {line}"


def test_a_path_that_was_not_recorded_is_an_error():
    model = small_decoder()
    with record(model, "embed") as steps:
        pass
    with pytest.raises(QkvError) as error:
        steps["embed"]
    assert (
        str(error.value)
        == "embed: was selected, but no forward pass has run; run the model inside the block"
    )
    with pytest.raises(QkvError) as error:
        steps["embad"]
    assert str(error.value) == "embad: was not recorded; did you mean 'embed'?"
