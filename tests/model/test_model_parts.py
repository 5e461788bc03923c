"""Feed-forward, norms, mixers and initialization against plain formulas (float64, 1e-10)."""

import copy
import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from small_models import (
    FEED_FORWARDS,
    assert_close,
    build,
    decoder,
    encoder,
    random_ids,
    randomize,
    without_residual,
)
from torch import nn

from qkv.model import spec as s
from qkv.model.attention_context import AttentionContext
from qkv.model.experts import ExpertFeedForward
from qkv.model.feed_forward import ACTIVATIONS, make_feed_forward
from qkv.model.init import zero_init_residual
from qkv.model.norms import TokenBatchNorm, make_norm
from qkv.model.presets import encoder_decoder, preset
from qkv.model.transformer import Transformer
from qkv.textbook import decoder_only as textbook_decoder
from qkv.textbook import feed_forward as textbook
from qkv.textbook import transformer as textbook_transformer
from qkv.textbook.convolution import convolution, effective_field, receptive_field
from qkv.textbook.masks import causal_mask


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64)


# ── Feed-forward ──────────────────────────────────────────────────────────────────────────────────
def test_activations_equal_the_textbook():
    x = normal(1_000) * 3
    for name, ours in ACTIVATIONS.items():
        theirs = getattr(textbook, {"relu2": "relu_squared"}.get(name, name))
        assert_close(ours(x), theirs(x))


EXPERTS = {
    name: spec for name, spec in FEED_FORWARDS.items() if isinstance(spec, s.MixtureOfExperts)
}


def moe_output(
    module: ExpertFeedForward, spec: s.MixtureOfExperts, x: torch.Tensor
) -> torch.Tensor:
    """The MoE output of one token: scores, top groups, top experts, weighted sum."""
    logits = module.router.weight @ x
    scores = (logits.softmax(0) if spec.scoring == "softmax" else logits.sigmoid()).tolist()
    bias = (
        [0.0] * spec.n_experts
        if module.router.score_correction_bias is None
        else module.router.score_correction_bias.tolist()
    )
    biased = [score + b for score, b in zip(scores, bias, strict=True)]
    size = spec.n_experts // spec.n_groups
    groups = [range(g * size, (g + 1) * size) for g in range(spec.n_groups)]
    best = 2 if spec.score_correction_bias else 1
    groups.sort(key=lambda group: -sum(sorted((biased[e] for e in group), reverse=True)[:best]))
    candidates = [e for group in groups[: spec.n_active_groups] for e in group]
    selected = sorted(candidates, key=lambda e: -biased[e])[: spec.n_experts_per_token]
    total = sum(scores[e] for e in selected) if spec.norm_topk_prob else 1.0
    out = torch.zeros_like(x) if module.shared is None else module.shared(x)
    for e in selected:
        act, experts = ACTIVATIONS[spec.expert.activation], module.experts
        hidden = experts.up_proj[e] @ x
        hidden = (
            act(hidden) if experts.gate_proj is None else act(experts.gate_proj[e] @ x) * hidden
        )
        out = out + scores[e] / total * spec.routed_scaling_factor * (experts.down_proj[e] @ hidden)
    return out


@pytest.mark.parametrize("spec", EXPERTS.values(), ids=EXPERTS.keys())
@pytest.mark.parametrize("tokens", [1, 40])
@torch.no_grad()
def test_experts_equal_a_loop_over_tokens(spec, tokens):
    module, x = randomize(make_feed_forward(spec, 16)), normal(tokens, 16)
    assert_close(module(x[None])[0], torch.stack([moe_output(module, spec, token) for token in x]))


def test_experts_and_their_gradients_equal_the_textbook():
    ours = randomize(
        make_feed_forward(s.MixtureOfExperts(5, 2, s.Gated(12), shared_expert=s.Gated(12)), 16)
    )
    theirs = textbook.MixtureOfExperts(
        16, 12, n_experts=5, n_experts_per_token=2, n_shared=1
    ).double()
    state = {f"shared.0.{name}": weight for name, weight in ours.shared.state_dict().items()}
    state |= {
        f"experts.{e}.{name}.weight": weight[e]
        for name, weight in ours.experts.state_dict().items()
        for e in range(5)
    }
    theirs.load_state_dict(state | {"router.weight": ours.router.weight})
    x = normal(2, 9, 16)
    assert_close(ours(x), theirs(x))
    ours(x).sin().sum().backward()
    theirs(x).sin().sum().backward()
    assert_close(ours.router.weight.grad, theirs.router.weight.grad)
    for e in range(5):
        for name in ("gate_proj", "up_proj", "down_proj"):
            wanted = theirs.get_parameter(f"experts.{e}.{name}.weight").grad
            got = ours.experts.get_parameter(name).grad[e]
            assert_close(got, torch.zeros_like(got) if wanted is None else wanted)


def test_the_router_aux_loss_is_the_textbooks_summed_over_layers():
    model = build(decoder(ff=s.MixtureOfExperts(5, 2, s.Gated(12))))
    logits = []
    for layer in model.decoder.layers:
        router = layer.ffn.branch.router
        router.register_forward_hook(
            lambda module, args, _: logits.append(args[0] @ module.weight.T)
        )
    model.decode(random_ids(model.spec, 3, 8))
    wanted = sum(textbook.load_balancing_loss(layer, 2) for layer in logits)
    assert_close(model.router_aux_loss(), wanted, atol=1e-7)  # the textbook's fractions are float32
    assert build(decoder()).router_aux_loss() == 0


def test_a_model_with_experts_can_be_copied_after_a_pass():
    model, ids = (
        build(decoder(ff=s.MixtureOfExperts(5, 2, s.Gated(12)))),
        random_ids(decoder(), 2, 4),
    )
    out = model.decode(ids)
    clone = copy.deepcopy(model)
    assert_close(clone.decode(ids), out)
    assert clone.router_aux_loss() == model.router_aux_loss()
    assert model.router_aux_loss().requires_grad


# ── Norms ─────────────────────────────────────────────────────────────────────────────────────────
def test_norms_equal_torch_and_their_formulas():
    x, gain, shift = normal(3, 5, 16) * 2 + 1, normal(16), normal(16)
    layer, rms = (
        make_norm(s.Norm("layer", eps=1e-5), 16).double(),
        make_norm(s.Norm("rms", eps=1e-6), 16).double(),
    )
    with torch.no_grad():
        layer.weight.copy_(gain), layer.bias.copy_(shift), rms.weight.copy_(gain)
    assert_close(layer(x), F.layer_norm(x, (16,), gain, shift, 1e-5))
    assert_close(
        layer(x),
        (x - x.mean(-1, True)) / (x.var(-1, correction=0, keepdim=True) + 1e-5).sqrt() * gain
        + shift,
    )
    assert_close(rms(x), F.rms_norm(x, (16,), gain, 1e-6))
    assert_close(rms(x), x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt() * gain)


def test_batch_norm_equals_torch_in_training_and_evaluation():
    ours, theirs = TokenBatchNorm(16, 1e-5).double(), nn.BatchNorm1d(16, 1e-5).double()
    for _ in range(3):
        x = normal(4, 5, 16) * 2 + 1
        assert_close(ours(x), theirs(x.flatten(0, 1)).view_as(x))
    assert_close(ours.mean, theirs.running_mean)
    assert_close(ours.variance, theirs.running_var)
    assert_close(ours.eval()(x), theirs.eval()(x.flatten(0, 1)).view_as(x))


@torch.no_grad()
def test_pre_norm_adds_to_the_residual_stream_and_post_norm_normalizes_it():
    for placement in ("pre", "post"):
        model = build(encoder(norm=s.Norm("layer", placement)))
        residual, x = model.encoder.layers[0].ffn, normal(2, 5, 16)
        wanted = (
            x + residual.branch(residual.norm(x))
            if placement == "pre"
            else residual.norm(x + residual.branch(x))
        )
        assert_close(residual(x), wanted)


@torch.no_grad()
def test_layers_without_residual_or_feed_forward_equal_the_textbook():
    for placement, theirs in (
        ("pre", textbook_decoder.PreNormOnly(nn.Identity(), 16)),
        ("post", textbook_transformer.PostNormOnly(nn.Identity(), 16, dropout=0.0)),
    ):
        norm = s.Norm("rms" if placement == "pre" else "layer", placement)
        block = build(without_residual(encoder(norm=norm))).encoder.layers[0]
        theirs.norm.load_state_dict(block.ffn.norm.state_dict())
        theirs.norm.eps, theirs.branch, x = norm.eps, block.ffn.branch, normal(2, 5, 16)
        assert_close(block.ffn(x), theirs.double()(x))
    block = build(encoder(ff=None)).encoder.layers[0]
    assert_close(block(x, AttentionContext(5)), block.attn(x, AttentionContext(5)))
    assert not list(block.ffn.parameters())


def test_without_residual_connections_gradients_vanish_with_the_depth():
    def gradient(spec):
        layer = replace(spec.decoder.layers[0], repeat=12)
        torch.manual_seed(0)
        model = Transformer(replace(spec, decoder=replace(spec.decoder, layers=(layer,)))).double()
        model.decode(random_ids(spec, 2, 8)).sin().sum().backward()
        return model.embed.weight.grad.norm()

    spec = decoder(s.Attention(4, 4, 4), s.Dense(64))
    assert gradient(without_residual(spec)) < gradient(spec) / 10


# ── Other mixers ──────────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize("make", [decoder, encoder])
@torch.no_grad()
def test_pooling_is_the_mean_of_the_neighbors_minus_the_token(make):
    model, x = build(make(s.Pooling(4))), normal(1, 6, 16)
    stack = model.decoder or model.encoder
    before, after = (3, 0) if model.decoder else (1, 2)
    means = [x[0, max(0, t - before) : t + after + 1].mean(0) for t in range(6)]
    assert_close(stack.layers[0].attn.branch(x, AttentionContext(6))[0], torch.stack(means) - x[0])


@pytest.mark.parametrize("make", [decoder, encoder])
@torch.no_grad()
def test_convolution_is_a_weighted_sum_of_the_neighbors(make):
    model, x = build(make(s.Convolution(3))), normal(1, 6, 16)
    mixer = (model.decoder or model.encoder).layers[0].attn.branch
    shift = -2 if model.decoder else -1
    out = torch.stack(
        [
            mixer.conv.bias
            + sum(
                mixer.conv.weight[:, :, j] @ x[0, t + j + shift]
                for j in range(3)
                if 0 <= t + j + shift < 6
            )
            for t in range(6)
        ]
    )
    assert_close(mixer(x, AttentionContext(6))[0], out)


@pytest.mark.parametrize("make", [decoder, encoder])
@pytest.mark.parametrize("width", [1, 2, 3, 4])
@pytest.mark.parametrize("dilation", [1, 2, 5])
def test_a_dilated_convolution_and_its_gradients_equal_the_textbook(make, width, dilation):
    model, x = build(make(s.Convolution(width, dilation))), normal(2, 9, 16).requires_grad_()
    mixer = (model.decoder or model.encoder).layers[0].attn.branch
    weight, bias = mixer.conv.weight, mixer.conv.bias
    ours = mixer(x, AttentionContext(9))
    theirs = convolution(x, weight.permute(2, 0, 1), bias, dilation, causal=make is decoder)
    assert_close(ours, theirs)
    for a, b in zip(
        torch.autograd.grad(ours.sin().sum(), (x, weight, bias)),
        torch.autograd.grad(theirs.sin().sum(), (x, weight, bias)),
        strict=True,
    ):
        assert_close(a, b)


def test_the_receptive_field_of_dilated_convolutions_doubles_with_each_layer():
    x, dilations = normal(1, 20, 16).requires_grad_(), [1, 2, 4]
    y = x
    for dilation in dilations:
        mixer = build(decoder(s.Convolution(2, dilation))).decoder.layers[0].attn.branch
        y = mixer(y, AttentionContext(20))
    reached = effective_field(y, x)
    assert reached.tolist() == [False] * 12 + [True] * 8
    assert receptive_field(2, dilations) == 8


@pytest.mark.parametrize("make", [decoder, encoder])
@torch.no_grad()
def test_a_token_mlp_is_two_matrices_across_positions(make):
    model, x = build(make(s.TokenMlp())), normal(1, 6, 16)
    mixer = (model.decoder or model.encoder).layers[0].attn.branch
    up, down = mixer.up_proj[:6, :6], mixer.down_proj[:6, :6]
    if model.decoder:
        up, down = up * causal_mask(6), down * causal_mask(6)
    assert_close(mixer(x, AttentionContext(6))[0], down @ textbook.gelu(up @ x[0]))


@torch.no_grad()
def test_the_bidirectional_lstm_equals_torch():
    model, x = build(encoder(s.Recurrent("lstm"))), normal(2, 6, 16)
    mixer, theirs = (
        model.encoder.layers[0].attn.branch,
        nn.LSTM(16, 8, batch_first=True, bidirectional=True).double(),
    )
    state = dict(mixer.onward.state_dict())
    reverse = mixer.backward_.state_dict()
    state |= {f"{name}_reverse": weight for name, weight in reverse.items()}
    theirs.load_state_dict(state)
    assert_close(mixer(x, AttentionContext(6)), theirs(x)[0])


# ── Initialization ────────────────────────────────────────────────────────────────────────────────
@torch.no_grad()
def test_matrices_start_xavier_uniform_tables_normal_and_biases_zero():
    model = Transformer(encoder_decoder(2_000, 64, layers=1, n_heads=4, d_ff=100))
    up = model.decoder.layers[0].ffn.branch.up_proj
    bound = math.sqrt(6 / (64 + 100))
    assert 0.97 * bound < up.weight.abs().max() <= bound
    assert up.bias.eq(0).all() and model.decoder.layers[0].attn.norm.weight.eq(1).all()
    assert model.embed.weight.std() * math.sqrt(64) == pytest.approx(1.0, abs=0.02)
    assert Transformer(decoder()).embed.weight.std() == pytest.approx(0.02, rel=0.2)


def test_after_zero_init_residual_every_branch_adds_zero():
    model, ids = (
        Transformer(decoder(ff=s.MixtureOfExperts(4, 2, s.Gated(8), shared_expert=s.Gated(8)))),
        random_ids(decoder(), 2, 5),
    )
    zero_init_residual(model)
    assert torch.equal(model.decode(ids), model.decoder.norm(model.embed(ids)))


def test_zero_init_residual_leaves_layers_without_residual():
    model = Transformer(without_residual(decoder()))
    before = {name: weight.clone() for name, weight in model.named_parameters()}
    zero_init_residual(model)
    assert all(torch.equal(weight, before[name]) for name, weight in model.named_parameters())


@pytest.mark.parametrize("name", ["tiny", "gpt2", "llama"])
def test_an_untrained_model_predicts_almost_uniformly(name):
    spec = preset(name)
    spec = (
        replace(spec, vocab_size=1_000)
        if spec.d_model < 500
        else replace(
            spec,
            vocab_size=1_000,
            d_model=64,
            decoder=s.Stack(
                (s.Layer(s.Attention(4, 4, 16), s.Dense(128)),), causal=True, final_norm=True
            ),
        )
    )
    model, ids = Transformer(spec).eval(), torch.randint(0, 1_000, (2, 12))
    memory = model.encode(ids) if model.encoder else None
    with torch.no_grad():
        loss = model.loss(model.decode(ids, memory), torch.randint(0, 1_000, (2, 12))) / 24
    assert loss == pytest.approx(math.log(1_000), abs=1.0)
