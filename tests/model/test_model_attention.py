"""Positions and attention against a plainer way to the same numbers (float64, 1e-10)."""

import math

import pytest
import torch
import torch.nn.functional as F
from small_models import POSITIONS, assert_close, build, decoder, encoder, random_ids, stirred

from qkv.model import spec as s
from qkv.model.attention import ExplainedCore, FusedCore, GroupedAttention
from qkv.model.latent import LatentAttention
from qkv.model.positions import sinusoids
from qkv.model.presets import preset
from qkv.model.turn import frequencies, make_turn
from qkv.model.view import Sight, View, places_of
from qkv.textbook.masks import look_ahead_mask, window_mask
from qkv.textbook.positions import sinusoidal

ROTARY = {name: one for name, one in POSITIONS.items() if isinstance(one, s.Rotary)} | {
    "rotary": s.Rotary()
}


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64)


# ── Positions ────────────────────────────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize("rotary", ROTARY.values(), ids=ROTARY.keys())
def test_rotary_scores_depend_on_the_distance_only(rotary):
    q, k = normal(1, 1, 1, 8).expand(1, 1, 12, 8), normal(1, 1, 1, 8).expand(1, 1, 12, 8)
    scores = []
    for first in (0, 5, 1_000):
        turn = make_turn(
            rotary, int(8 * rotary.share), torch.arange(first, first + 12)[None], torch.float64
        )
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
        before, after = (
            torch.complex(x[..., a], x[..., b]),
            torch.complex(turned[..., a], turned[..., b]),
        )
        angles = torch.arange(6, dtype=torch.float64) * 10_000 ** (-2 * pair / 8)
        assert_close(after, before * torch.polar(torch.ones_like(angles), angles))


def test_a_partial_turn_leaves_the_rest_of_the_head():
    x = normal(1, 1, 6, 8)
    turned = make_turn(s.Rotary(share=0.5), 4, torch.arange(6)[None], torch.float64)(x)
    assert torch.equal(turned[..., 4:], x[..., 4:]) and not torch.equal(turned[..., :4], x[..., :4])


@pytest.mark.parametrize(
    ("rotary", "theirs"),
    [
        (
            s.Rotary(base=500_000.0, scaling=s.LlamaScaling(8.0, 1.0, 4.0, 8_192)),
            {
                "rope_type": "llama3",
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 8_192,
                "rope_theta": 500_000.0,
            },
        ),
        (
            s.Rotary(scaling=s.LinearScaling(4.0)),
            {"rope_type": "linear", "factor": 4.0, "rope_theta": 10_000.0},
        ),
        (
            s.Rotary(scaling=s.YarnScaling(40.0, 4_096)),
            {
                "rope_type": "yarn",
                "factor": 40.0,
                "original_max_position_embeddings": 4_096,
                "beta_fast": 32,
                "beta_slow": 1,
                "rope_theta": 10_000.0,
                "mscale": 0.707,
                "mscale_all_dim": 0.707,
            },
        ),
    ],
    ids=["llama3", "linear", "yarn"],
)
def test_slowed_frequencies_equal_those_of_transformers(rotary, theirs):
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    config = LlamaConfig(
        hidden_size=256,
        num_attention_heads=4,
        max_position_embeddings=163_840,
        rope_parameters=theirs,
    )
    wanted, sharpness = ROPE_INIT_FUNCTIONS[theirs["rope_type"]](config, "cpu")
    assert sharpness == pytest.approx(1.0)
    torch.testing.assert_close(torch.tensor(frequencies(rotary, 64)), wanted, rtol=1e-5, atol=0)


def test_deepseeks_scores_are_sharpened_as_in_transformers():
    from transformers.models.deepseek_v2.modeling_deepseek_v2 import yarn_apply_mscale

    scaling = {"rope_type": "yarn", "factor": 40.0, "mscale_all_dim": 0.707}
    layer = preset("deepseek").decoder.layers[0]
    with torch.device("meta"):
        attention = LatentAttention(
            layer.mixer, 8, 1e-6, preset("deepseek").positions.scaling.score_sharpness
        )
    assert attention.scale == pytest.approx(
        yarn_apply_mscale(scaling, (128 + 64) ** -0.5), abs=1e-12
    )


def test_sinusoids_equal_the_textbooks_and_halves_hold_the_same_waves():
    places = torch.arange(50)[None]
    ours, halves = sinusoids(places, 16), sinusoids(places, 16, "halves")
    assert_close(
        ours[0],
        sinusoidal(50, 16).double(),
        atol=1e-5 if sinusoidal(50, 16).dtype != ours.dtype else 1e-10,
    )
    assert_close(halves, torch.cat([ours[..., 0::2], ours[..., 1::2]], dim=-1))


@torch.no_grad()
def test_learned_positions_start_counting_where_they_say():
    model, x = build(decoder(positions=s.Learned(first=2))), normal(1, 5, 16)
    table = model.decoder.positions
    assert table.weight.shape == (24 + 2, 16)
    assert_close(table(x, torch.arange(3, 8)[None])[0], x[0] + table.weight[5:10])


@torch.no_grad()
def test_a_token_type_is_a_vector_added_to_the_embedding():
    model, ids, seen = build(encoder(token_types=2)), torch.tensor([[3, 4, 5]]), []
    model.encoder.register_forward_hook(lambda module, given, out: seen.append(given[0]))
    model.encode(ids)
    model.encode(ids, types=torch.tensor([[0, 0, 1]]))
    words, types = model.embed.weight, model.type_embed.weight
    assert_close(seen[0][0], words[3:6] + types[0])
    assert_close(seen[1][0], words[3:6] + types[[0, 0, 1]])


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
            weight = (
                weight.unflatten(0, (n_kv_heads, 4))
                .repeat_interleave(6 // n_kv_heads, dim=0)
                .flatten(0, 1)
            )
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
    visible = window_mask(9, window) & (
        look_ahead_mask(9) if sees == "past" else torch.tensor(True)
    )
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


@pytest.mark.parametrize(
    "latent", [s.Latent(3, 6, 4, 4, 5), s.Latent(2, 8, 6, 2, 3, q_rank=5)], ids=str
)
def test_absorbed_latent_attention_equals_the_unfolded_one(latent):
    attention = stirred(LatentAttention(latent, 16, 1e-6, sharpness=1.3))
    q = normal(2, latent.n_heads, 7, latent.d_nope + latent.d_rope)
    c, k_rope = normal(2, 1, 7, latent.kv_rank), normal(2, 1, 7, latent.d_rope)
    view = View(7, sees="past", real=torch.tensor([[True] * 7, [False] * 2 + [True] * 5]))
    unfolded, absorbed = (
        attention.unfolded(q, c, k_rope, view),
        attention.absorbed(q, c, k_rope, view),
    )
    assert unfolded.shape == (2, latent.n_heads, 7, latent.d_value)
    assert_close(absorbed, unfolded)
    gradients = [
        torch.autograd.grad(out.sin().sum(), attention.kv_up.weight)[0]
        for out in (unfolded, absorbed)
    ]
    assert_close(*gradients)


@torch.no_grad()
def test_latent_attention_is_its_formula_head_by_head():
    attention, x = stirred(LatentAttention(s.Latent(2, 6, 4, 2, 5), 16, 1e-6)), normal(1, 7, 16)
    turn = make_turn(s.Rotary(), 2, torch.arange(7)[None], torch.float64)
    down = x[0] @ attention.kv_down.weight.T
    c = F.rms_norm(down[:, :6], (6,), attention.kv_norm.weight, 1e-6)
    k_rope, heads = turn(down[None, None, :, 6:])[0, 0], []
    for head in range(2):
        q = x[0] @ attention.q_proj.weight[6 * head : 6 * head + 6].T
        q = torch.cat([q[:, :4], turn(q[None, None, :, 4:])[0, 0]], dim=-1)
        k_nope, v = (c @ attention.kv_up.weight[9 * head : 9 * head + 9].T).split([4, 5], dim=-1)
        scores = q @ torch.cat([k_nope, k_rope], dim=-1).T / math.sqrt(6)
        heads.append(scores.masked_fill(~look_ahead_mask(7), -math.inf).softmax(-1) @ v)
    wanted = torch.cat(heads, dim=-1) @ attention.o_proj.weight.T
    assert_close(attention(x, View(7, sees="past", turn=turn))[0], wanted)


@torch.no_grad()
def test_latent_attention_caches_the_latent_and_the_shared_key_only():
    model = build(decoder(s.Latent(3, 6, 4, 4, 5)))
    cache = model.new_cache()
    model.decode(random_ids(model.spec, 2, 7), cache=cache)
    assert (
        cache.bytes == 2 * 2 * 7 * (6 + 4) * 8
    )  # layers * rows * tokens * (kv_rank + d_rope) * bytes of a float64


def test_norms_of_queries_and_keys_forget_the_size_of_the_stream():
    attention, view = (
        stirred(GroupedAttention(s.Heads(4, 2, 4, qk_norm=True), 16, eps=0.0)),
        View(6),
    )
    x = normal(1, 6, 16)
    assert_close(attention.queries(100 * x), attention.queries(x))
    assert_close(attention(100 * x, view), 100 * attention(x, view), atol=1e-8)
