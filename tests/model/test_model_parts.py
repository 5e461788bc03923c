"""The parts, one by one, against a plainer way to the same numbers (float64, 1e-10)."""

import copy
import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from small_models import FEED_FORWARDS, POSITIONS, assert_close, build, decoder, encoder, random_ids, stirred
from torch import nn

from qkv.model import spec as s
from qkv.model.attention import ExplainedCore, FusedCore, GroupedAttention
from qkv.model.experts import ExpertFeedForward
from qkv.model.feed_forward import ACTIVATIONS, make_feed_forward
from qkv.model.latent import LatentAttention
from qkv.model.norms import TokenBatchNorm, make_norm
from qkv.model.positions import sinusoids
from qkv.model.presets import preset
from qkv.model.turn import frequencies, make_turn
from qkv.model.view import Sight, View, places_of
from qkv.textbook import feed_forward as textbook
from qkv.textbook.masks import look_ahead_mask, window_mask
from qkv.textbook.positions import sinusoidal

ROTARY = {name: one for name, one in POSITIONS.items() if isinstance(one, s.Rotary)} | {"rotary": s.Rotary()}


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64)


# ── Positions ────────────────────────────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize("rotary", ROTARY.values(), ids=ROTARY.keys())
def test_rotary_scores_depend_on_the_distance_only(rotary):
    q, k = normal(1, 1, 1, 8).expand(1, 1, 12, 8), normal(1, 1, 1, 8).expand(1, 1, 12, 8)
    scores = []
    for first in (0, 5, 1_000):
        turn = make_turn(rotary, int(8 * rotary.share), torch.arange(first, first + 12)[None], torch.float64)
        scores.append((turn(q) @ turn(k).mT)[0, 0])  # (query, key)
    for later in scores[1:]:
        assert_close(later, scores[0])
    for distance in range(-11, 12):
        one = scores[0].diagonal(distance)
        assert_close(one, one[:1].expand_as(one))
    assert scores[0][0].unique().numel() == 12


@pytest.mark.parametrize("pairs", ["halves", "adjacent"])
def test_a_turn_is_a_rotation_of_each_pair(pairs):
    x, places = normal(1, 1, 6, 8), torch.arange(6)[None]
    turned = make_turn(s.Rotary(pairs=pairs), 8, places, torch.float64)(x)
    for pair in range(4):
        a, b = (pair, pair + 4) if pairs == "halves" else (2 * pair, 2 * pair + 1)
        before, after = torch.complex(x[..., a], x[..., b]), torch.complex(turned[..., a], turned[..., b])
        angles = torch.arange(6, dtype=torch.float64) * 10_000 ** (-2 * pair / 8)
        assert_close(after, before * torch.polar(torch.ones_like(angles), angles))


def test_a_partial_turn_leaves_the_rest_of_the_head():
    x = normal(1, 1, 6, 8)
    turned = make_turn(s.Rotary(share=0.5), 4, torch.arange(6)[None], torch.float64)(x)
    assert torch.equal(turned[..., 4:], x[..., 4:]) and not torch.equal(turned[..., :4], x[..., :4])


@pytest.mark.parametrize(("rotary", "theirs"), [
    (s.Rotary(base=500_000.0, scaling=s.LlamaScaling(8.0, 1.0, 4.0, 8_192)),
     {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
      "original_max_position_embeddings": 8_192, "rope_theta": 500_000.0}),
    (s.Rotary(scaling=s.LinearScaling(4.0)), {"rope_type": "linear", "factor": 4.0, "rope_theta": 10_000.0}),
    (s.Rotary(scaling=s.YarnScaling(40.0, 4_096)),
     {"rope_type": "yarn", "factor": 40.0, "original_max_position_embeddings": 4_096, "beta_fast": 32, "beta_slow": 1,
      "rope_theta": 10_000.0, "mscale": 0.707, "mscale_all_dim": 0.707}),
], ids=["llama3", "linear", "yarn"])  # fmt: skip
def test_slowed_frequencies_equal_those_of_transformers(rotary, theirs):
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    config = LlamaConfig(
        hidden_size=256, num_attention_heads=4, max_position_embeddings=163_840, rope_parameters=theirs
    )
    wanted, sharpness = ROPE_INIT_FUNCTIONS[theirs["rope_type"]](config, "cpu")
    assert sharpness == pytest.approx(1.0)
    torch.testing.assert_close(torch.tensor(frequencies(rotary, 64)), wanted, rtol=1e-5, atol=0)


def test_deepseeks_scores_are_sharpened_as_in_transformers():
    from transformers.models.deepseek_v2.modeling_deepseek_v2 import yarn_apply_mscale

    scaling = {"rope_type": "yarn", "factor": 40.0, "mscale_all_dim": 0.707}
    layer = preset("deepseek").decoder.layers[0]
    with torch.device("meta"):
        attention = LatentAttention(layer.mixer, 8, 1e-6, preset("deepseek").positions.scaling.score_sharpness)
    assert attention.scale == pytest.approx(yarn_apply_mscale(scaling, (128 + 64) ** -0.5), abs=1e-12)


def test_sinusoids_equal_the_textbooks_and_halves_hold_the_same_waves():
    places = torch.arange(50)[None]
    ours, halves = sinusoids(places, 16), sinusoids(places, 16, "halves")
    assert_close(ours[0], sinusoidal(50, 16).double(), atol=1e-5 if sinusoidal(50, 16).dtype != ours.dtype else 1e-10)
    assert_close(halves, torch.cat([ours[..., 0::2], ours[..., 1::2]], dim=-1))


def test_places_count_real_tokens_only():
    real = torch.tensor([[False, False, True, True, True], [True, True, False, False, True]])
    assert places_of(5, 0, real, None).tolist() == [[0, 0, 0, 1, 2], [0, 1, 1, 1, 2]]
    assert places_of(2, 3, real, None).tolist() == [[1, 2], [1, 2]]
    assert places_of(2, 3, None, None).tolist() == [[3, 4]]


# ── Attention ────────────────────────────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize("n_kv_heads", [1, 2, 3])
@torch.no_grad()
def test_grouped_attention_equals_multi_head_with_repeated_heads(n_kv_heads):
    grouped = stirred(GroupedAttention(s.Heads(6, n_kv_heads, 4, bias=True, out_bias=True), 16))
    many = GroupedAttention(s.Heads(6, 6, 4, bias=True, out_bias=True), 16).double()
    for name, weight in grouped.named_parameters():
        if name.startswith(("k_proj", "v_proj")):
            weight = weight.unflatten(0, (n_kv_heads, 4)).repeat_interleave(6 // n_kv_heads, dim=0).flatten(0, 1)
        many.get_parameter(name).copy_(weight)
    x, view = normal(2, 7, 16), View(7, sees="past")
    assert_close(grouped(x, view), many(x, view))


@pytest.mark.parametrize("sees", ["all", "past"])
@pytest.mark.parametrize("window", [1, 2, 4, 9])
@torch.no_grad()
def test_a_window_equals_full_attention_with_that_mask(window, sees):
    attention = stirred(GroupedAttention(s.Heads(4, 2, 4, window=window), 16))
    full = stirred(GroupedAttention(s.Heads(4, 2, 4), 16))
    full.load_state_dict(attention.state_dict())
    x, view = normal(2, 9, 16), View(9, sees=sees)
    visible = window_mask(9, window) & (look_ahead_mask(9) if sees == "past" else torch.tensor(True))
    masked = View(9)
    masked._sights[None] = Sight(visible[None, None])
    assert_close(attention(x, view), full(x, masked))


@pytest.mark.parametrize("core", [FusedCore(), ExplainedCore()], ids=["fused", "explained"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_a_row_that_sees_nothing_gives_zeros_and_finite_gradients(core, dtype):
    q, k, v = (torch.randn(2, 4, 5, 8, dtype=dtype, requires_grad=True) for _ in range(3))
    visible = torch.ones(2, 1, 5, 5, dtype=torch.bool)
    visible[0, :, 2] = visible[1] = False
    mixed = core(q, k, v, Sight(visible), 0.3)
    assert mixed[0, :, 2].eq(0).all() and mixed[1].eq(0).all() and mixed[0, :, 1].ne(0).all()
    mixed.square().sum().backward()
    for one in (q, k, v):
        assert one.grad.isfinite().all() and one.grad[1].eq(0).all() and one.grad[0].ne(0).any()
    assert q.grad[0, :, 2].eq(0).all()


def test_explained_weights_sum_to_one_and_hide_what_is_hidden():
    seen, core = {}, ExplainedCore()
    core.weights.register_forward_hook(lambda *call: seen.update(weights=call[2]))
    core(normal(2, 4, 5, 8), normal(2, 2, 5, 8), normal(2, 2, 5, 8), Sight(causal=True), 0.3)
    assert seen["weights"].shape == (2, 4, 5, 5)
    assert_close(seen["weights"].sum(-1), torch.ones(2, 4, 5).double())
    assert seen["weights"].triu(1).eq(0).all()


@pytest.mark.parametrize("latent", [s.Latent(3, 6, 4, 4, 5), s.Latent(2, 8, 6, 2, 3, q_rank=5)], ids=str)
def test_absorbed_latent_attention_equals_the_unfolded_one(latent):
    attention = stirred(LatentAttention(latent, 16, 1e-6, sharpness=1.3))
    q = normal(2, latent.n_heads, 7, latent.d_nope + latent.d_rope)
    c, k_rope = normal(2, 1, 7, latent.kv_rank), normal(2, 1, 7, latent.d_rope)
    view = View(7, sees="past", real=torch.tensor([[True] * 7, [False] * 2 + [True] * 5]))
    unfolded, absorbed = attention.unfolded(q, c, k_rope, view), attention.absorbed(q, c, k_rope, view)
    assert unfolded.shape == (2, latent.n_heads, 7, latent.d_value)
    assert_close(absorbed, unfolded)
    gradients = [torch.autograd.grad(out.sin().sum(), attention.kv_up.weight)[0] for out in (unfolded, absorbed)]
    assert_close(*gradients)


@torch.no_grad()
def test_latent_attention_caches_the_latent_and_the_shared_key_only():
    model = build(decoder(s.Latent(3, 6, 4, 4, 5)))
    cache = model.new_cache()
    model.decode(random_ids(model.spec, 2, 7), cache=cache)
    assert cache.bytes == 2 * 2 * 7 * (6 + 4) * 8  # layers * rows * tokens * (kv_rank + d_rope) * bytes of a float64


def test_norms_of_queries_and_keys_forget_the_size_of_the_stream():
    attention, view = stirred(GroupedAttention(s.Heads(4, 2, 4, qk_norm=True), 16, eps=0.0)), View(6)
    x = normal(1, 6, 16)
    assert_close(attention.queries(100 * x), attention.queries(x))
    assert_close(attention(100 * x, view), 100 * attention(x, view), atol=1e-8)


# ── Feed-forward ─────────────────────────────────────────────────────────────────────────────────────────────────
def test_activations_equal_the_textbooks():
    x = normal(1_000) * 3
    for name, ours in ACTIVATIONS.items():
        theirs = getattr(textbook, {"relu2": "relu_squared"}.get(name, name))
        assert_close(ours(x), theirs(x))


EXPERTS = {name: one for name, one in FEED_FORWARDS.items() if isinstance(one, s.Experts)}


def answer_of_one(module: ExpertFeedForward, spec: s.Experts, x: torch.Tensor) -> torch.Tensor:
    """What a mixture of experts says about one token, in words: score, choose groups, choose experts, mix."""
    logits = module.router.weight @ x
    scores = (logits.softmax(0) if spec.scoring == "softmax" else logits.sigmoid()).tolist()
    bias = [0.0] * spec.n_experts if module.router.balance_bias is None else module.router.balance_bias.tolist()
    wanted = [score + extra for score, extra in zip(scores, bias, strict=True)]
    size = spec.n_experts // spec.n_groups
    groups = [range(g * size, (g + 1) * size) for g in range(spec.n_groups)]
    best = 2 if spec.balance_bias else 1
    groups.sort(key=lambda group: -sum(sorted((wanted[e] for e in group), reverse=True)[:best]))
    candidates = [e for group in groups[: spec.n_active_groups] for e in group]
    chosen = sorted(candidates, key=lambda e: -wanted[e])[: spec.n_active]
    total = sum(scores[e] for e in chosen) if spec.normalised else 1.0
    out = torch.zeros_like(x) if module.shared is None else module.shared(x)
    for e in chosen:
        act, experts = ACTIVATIONS[spec.each.activation], module.experts
        wide = experts.up_proj[e] @ x
        wide = act(wide) if experts.gate_proj is None else act(experts.gate_proj[e] @ x) * wide
        out = out + scores[e] / total * spec.scale * (experts.down_proj[e] @ wide)
    return out


@pytest.mark.parametrize("spec", EXPERTS.values(), ids=EXPERTS.keys())
@pytest.mark.parametrize("tokens", [1, 40])
@torch.no_grad()
def test_experts_equal_a_loop_over_tokens(spec, tokens):
    module, x = stirred(make_feed_forward(spec, 16)), normal(tokens, 16)
    assert_close(module(x[None])[0], torch.stack([answer_of_one(module, spec, one) for one in x]))


def test_experts_and_their_gradients_equal_the_textbooks():
    ours = stirred(make_feed_forward(s.Experts(5, 2, s.Gated(12), shared=s.Gated(12)), 16))
    theirs = textbook.MixtureOfExperts(16, 12, n_experts=5, active=2, n_shared=1).double()
    state = {f"shared.0.{name}": weight for name, weight in ours.shared.state_dict().items()}
    state |= {
        f"experts.{e}.{name}.weight": weight[e] for name, weight in ours.experts.state_dict().items() for e in range(5)
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


def test_the_balance_loss_is_the_textbooks_summed_over_layers():
    model = build(decoder(ff=s.Experts(5, 2, s.Gated(12))))
    logits = []
    for layer in model.decoder.layers:
        router = layer.ffn.branch.router
        router.register_forward_hook(lambda module, given, _: logits.append(given[0] @ module.weight.T))
    model.decode(random_ids(model.spec, 3, 8))
    wanted = sum(textbook.load_balancing_loss(one, active=2) for one in logits)
    assert_close(model.balance_loss(), wanted, atol=1e-7)  # the textbook's shares are float32
    assert build(decoder()).balance_loss() == 0


def test_a_model_with_experts_can_be_copied_after_a_pass():
    model, ids = build(decoder(ff=s.Experts(5, 2, s.Gated(12)))), random_ids(decoder(), 2, 4)
    out = model.decode(ids)
    twin = copy.deepcopy(model)
    assert_close(twin.decode(ids), out)
    assert twin.balance_loss() == model.balance_loss() and model.balance_loss().requires_grad


# ── Norms ────────────────────────────────────────────────────────────────────────────────────────────────────────
def test_norms_equal_torchs_and_their_formulas():
    x, gain, shift = normal(3, 5, 16) * 2 + 1, normal(16), normal(16)
    layer, rms = make_norm(s.Norm("layer", eps=1e-5), 16).double(), make_norm(s.Norm("rms", eps=1e-6), 16).double()
    with torch.no_grad():
        layer.weight.copy_(gain), layer.bias.copy_(shift), rms.weight.copy_(gain)
    assert_close(layer(x), F.layer_norm(x, (16,), gain, shift, 1e-5))
    assert_close(layer(x), (x - x.mean(-1, True)) / (x.var(-1, correction=0, keepdim=True) + 1e-5).sqrt() * gain + shift)
    assert_close(rms(x), F.rms_norm(x, (16,), gain, 1e-6))
    assert_close(rms(x), x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt() * gain)


def test_batch_norm_equals_torchs_while_training_and_after():
    ours, theirs = TokenBatchNorm(16, 1e-5).double(), nn.BatchNorm1d(16, 1e-5).double()
    for _ in range(3):
        x = normal(4, 5, 16) * 2 + 1
        assert_close(ours(x), theirs(x.flatten(0, 1)).view_as(x))
    assert_close(ours.mean, theirs.running_mean)
    assert_close(ours.variance, theirs.running_var)
    assert_close(ours.eval()(x), theirs.eval()(x.flatten(0, 1)).view_as(x))


@torch.no_grad()
def test_pre_norm_adds_to_the_stream_and_post_norm_normalises_it():
    for place in ("pre", "post"):
        model = build(encoder(norm=s.Norm("layer", place)))
        residual, x = model.encoder.layers[0].ffn, normal(2, 5, 16)
        wanted = x + residual.branch(residual.norm(x)) if place == "pre" else residual.norm(x + residual.branch(x))
        assert_close(residual(x), wanted)


# ── The other mixers, in words ───────────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize("make", [decoder, encoder])
@torch.no_grad()
def test_pooling_is_the_mean_of_the_neighbours_minus_the_token(make):
    model, x = build(make(s.Pooling(4))), normal(1, 6, 16)
    stack = model.decoder or model.encoder
    before, after = (3, 0) if model.decoder else (1, 2)
    means = [x[0, max(0, t - before) : t + after + 1].mean(0) for t in range(6)]
    assert_close(stack.layers[0].attn.branch(x, View(6))[0], torch.stack(means) - x[0])


@pytest.mark.parametrize("make", [decoder, encoder])
@torch.no_grad()
def test_convolution_is_a_weighted_sum_of_the_neighbours(make):
    model, x = build(make(s.Convolution(3))), normal(1, 6, 16)
    mixer = (model.decoder or model.encoder).layers[0].attn.branch
    shift = -2 if model.decoder else -1
    out = torch.stack([mixer.conv.bias + sum(
        mixer.conv.weight[:, :, j] @ x[0, t + j + shift] for j in range(3) if 0 <= t + j + shift < 6
    ) for t in range(6)])
    assert_close(mixer(x, View(6))[0], out)


@torch.no_grad()
def test_an_lstm_in_both_directions_equals_torchs_bidirectional_one():
    model, x = build(encoder(s.Recurrent("lstm"))), normal(2, 6, 16)
    mixer, theirs = model.encoder.layers[0].attn.branch, nn.LSTM(16, 8, batch_first=True, bidirectional=True).double()
    state = dict(mixer.onward.state_dict())
    state |= {f"{name}_reverse": one for name, one in mixer.backward_.state_dict().items()}
    theirs.load_state_dict(state)
    assert_close(mixer(x, View(6)), theirs(x)[0])


# ── First weights ────────────────────────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize("name", ["tiny", "gpt2", "llama"])
def test_a_fresh_model_guesses_almost_evenly(name):
    spec = preset(name)
    spec = replace(spec, vocab_size=1_000) if spec.d_model < 500 else replace(
        spec, vocab_size=1_000, d_model=64, decoder=s.Stack((s.Layer(s.Heads(4, 4, 16), s.Dense(128)),), "past", True))
    from qkv.model.transformer import Transformer

    model, ids = Transformer(spec).eval(), torch.randint(0, 1_000, (2, 12))
    memory = model.encode(ids) if model.encoder else None
    with torch.no_grad():
        loss = model.loss(model.decode(ids, memory), torch.randint(0, 1_000, (2, 12))) / 24
    assert loss == pytest.approx(math.log(1_000), abs=1.0)
