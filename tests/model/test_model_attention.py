"""Positions and attention against plain formulas (float64, 1e-10)."""

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from small_models import (
    POSITIONS,
    assert_close,
    both,
    build,
    decoder,
    encoder,
    random_ids,
    randomize,
)

from qkv.model import spec as s
from qkv.model.alibi import slopes
from qkv.model.attention import EagerCore, GroupedQueryAttention, SdpaCore
from qkv.model.attention_context import AttentionContext, AttentionMask, position_ids_of
from qkv.model.band_mask import BandMask
from qkv.model.eager_core import eager_attention
from qkv.model.latent import MultiHeadLatentAttention
from qkv.model.positions import sinusoids
from qkv.model.presets import preset
from qkv.model.rotary import frequencies, make_rotation
from qkv.textbook.attention import scaled_dot_product_attention
from qkv.textbook.masks import causal_mask, window_mask
from qkv.textbook.positions import alibi_bias, sinusoidal

ROTARY = {name: spec for name, spec in POSITIONS.items() if isinstance(spec, s.Rotary)}
ROTARY["rotary"] = s.Rotary()


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64)


# ── Positions ─────────────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize("rotary", ROTARY.values(), ids=ROTARY.keys())
def test_rotary_scores_depend_on_the_distance_only(rotary):
    q, k = normal(1, 1, 1, 8).expand(1, 1, 12, 8), normal(1, 1, 1, 8).expand(1, 1, 12, 8)
    scores = []
    for first in (0, 5, 1_000):
        rotation = make_rotation(
            rotary,
            int(8 * rotary.partial_rotary_factor),
            torch.arange(first, first + 12)[None],
            torch.float64,
        )
        scores.append((rotation(q) @ rotation(k).mT)[0, 0])  # (query, key)
    for later in scores[1:]:
        assert_close(later, scores[0])
    for distance in range(-11, 12):
        diagonal = scores[0].diagonal(distance)
        assert_close(diagonal, diagonal[:1].expand_as(diagonal))
    assert scores[0][0].unique().numel() == 12


@pytest.mark.parametrize("interleaved", [False, True])
def test_rope_rotates_each_pair(interleaved):
    x, position_ids = normal(1, 1, 6, 8), torch.arange(6)[None]
    rotated = make_rotation(s.Rotary(interleaved=interleaved), 8, position_ids, torch.float64)(x)
    for pair in range(4):
        a, b = (pair, pair + 4) if not interleaved else (2 * pair, 2 * pair + 1)
        before, after = (
            torch.complex(x[..., a], x[..., b]),
            torch.complex(rotated[..., a], rotated[..., b]),
        )
        angles = torch.arange(6, dtype=torch.float64) * 10_000 ** (-2 * pair / 8)
        assert_close(after, before * torch.polar(torch.ones_like(angles), angles))


def test_a_partial_rotation_leaves_the_rest_of_the_head():
    x = normal(1, 1, 6, 8)
    rotated = make_rotation(
        s.Rotary(partial_rotary_factor=0.5), 4, torch.arange(6)[None], torch.float64
    )(x)
    assert torch.equal(rotated[..., 4:], x[..., 4:]) and not torch.equal(
        rotated[..., :4], x[..., :4]
    )


@pytest.mark.parametrize(
    ("rotary", "theirs"),
    [
        (
            s.Rotary(theta=500_000.0, scaling=s.LlamaScaling(8.0, 1.0, 4.0, 8_192)),
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
def test_scaled_frequencies_equal_those_of_transformers(rotary, theirs):
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    config = LlamaConfig(
        hidden_size=256,
        num_attention_heads=4,
        max_position_embeddings=163_840,
        rope_parameters=theirs,
    )
    wanted, attention_factor = ROPE_INIT_FUNCTIONS[theirs["rope_type"]](config, "cpu")
    assert attention_factor == pytest.approx(1.0)
    torch.testing.assert_close(torch.tensor(frequencies(rotary, 64)), wanted, rtol=1e-5, atol=0)


def test_deepseeks_score_scale_equals_that_of_transformers():
    from transformers.models.deepseek_v2.modeling_deepseek_v2 import yarn_apply_mscale

    scaling = {"rope_type": "yarn", "factor": 40.0, "mscale_all_dim": 0.707}
    layer = preset("deepseek").decoder.layers[0]
    with torch.device("meta"):
        attention = MultiHeadLatentAttention(
            layer.mixer, 8, 1e-6, preset("deepseek").positions.scaling.mscale
        )
    assert attention.scale == pytest.approx(
        yarn_apply_mscale(scaling, (128 + 64) ** -0.5), abs=1e-12
    )


def test_sinusoids_equal_the_textbook_and_halves_are_a_permutation():
    position_ids = torch.arange(50)[None]
    ours, halves = sinusoids(position_ids, 16), sinusoids(position_ids, 16, "halves")
    assert_close(
        ours[0],
        sinusoidal(50, 16).double(),
        atol=1e-5 if sinusoidal(50, 16).dtype != ours.dtype else 1e-10,
    )
    assert_close(halves, torch.cat([ours[..., 0::2], ours[..., 1::2]], dim=-1))


@torch.no_grad()
def test_learned_positions_start_at_the_first_row_of_the_spec():
    model, x = build(decoder(positions=s.Learned(first=2))), normal(1, 5, 16)
    table = model.decoder.positions
    assert table.weight.shape == (24 + 2, 16)
    assert_close(table(x, torch.arange(3, 8)[None])[0], x[0] + table.weight[5:10])


@torch.no_grad()
def test_a_token_type_is_a_vector_added_to_the_embedding():
    model, ids, inputs = build(encoder(token_types=2)), torch.tensor([[3, 4, 5]]), []
    model.encoder.register_forward_hook(lambda module, args, out: inputs.append(args[0]))
    model.encode(ids)
    model.encode(ids, types=torch.tensor([[0, 0, 1]]))
    words, types = model.embed.weight, model.type_embed.weight
    assert_close(inputs[0][0], words[3:6] + types[0])
    assert_close(inputs[1][0], words[3:6] + types[[0, 0, 1]])


def test_position_ids_do_not_count_padding():
    attention_mask = torch.tensor(
        [[False, False, True, True, True], [True, True, False, False, True]]
    )
    assert position_ids_of(5, 0, attention_mask, None).tolist() == [
        [0, 0, 0, 1, 2],
        [0, 1, 1, 1, 2],
    ]
    assert position_ids_of(2, 3, attention_mask, None).tolist() == [[1, 2], [1, 2]]
    assert position_ids_of(2, 3, None, None).tolist() == [[3, 4]]


@pytest.mark.parametrize("core", [SdpaCore(), EagerCore()], ids=["sdpa", "eager"])
@pytest.mark.parametrize("n_heads", [1, 3, 4, 6])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("window", [None, 4])
def test_alibi_equals_the_textbook(core, n_heads, causal, window):
    q, k, v = (normal(2, n_heads, 9, 8).requires_grad_() for _ in range(3))
    context = AttentionContext(9, causal=causal, alibi=torch.float64)
    allowed = causal_mask(9) if causal else torch.ones(9, 9, dtype=torch.bool)
    allowed = allowed & window_mask(9, window or 9)
    bias = alibi_bias(n_heads, 9)
    ours = core(q, k, v, context.mask(window, n_heads), 8**-0.5)
    theirs, _ = scaled_dot_product_attention(q, k, v, allowed, bias)
    assert_close(ours, theirs)
    for a, b in zip(
        torch.autograd.grad(ours.sin().sum(), [q, k, v]),
        torch.autograd.grad(theirs.sin().sum(), [q, k, v]),
        strict=True,
    ):
        assert_close(a, b)


def test_alibi_scores_depend_on_the_distance_only_and_padding_is_not_counted():
    attention_mask = torch.tensor([[False, True, True, False, True]])
    context = AttentionContext(5, attention_mask=attention_mask, alibi=torch.float64)
    bias = context.mask(n_heads=2).bias[0]  # (head, query, key), slopes 1/16 and 1/256
    assert_close(bias[:, 4, [1, 2, 4]], torch.tensor([[-2, -1, 0]] * 2) / slope_column(2))
    later = AttentionContext(1, 4, True, attention_mask, alibi=torch.float64)
    assert torch.equal(later.mask(n_heads=2).bias[0], bias[:, 4:])


def slope_column(n_heads: int) -> torch.Tensor:
    return 1 / torch.tensor(slopes(n_heads), dtype=torch.float64)[:, None]


# ── Attention ─────────────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize("n_kv_heads", [1, 2, 3])
@torch.no_grad()
def test_grouped_query_attention_equals_multi_head_with_repeated_heads(n_kv_heads):
    grouped = randomize(
        GroupedQueryAttention(s.Attention(6, n_kv_heads, 4, bias=True, out_bias=True), 16)
    )
    multi_head = GroupedQueryAttention(s.Attention(6, 6, 4, bias=True, out_bias=True), 16).double()
    for name, weight in grouped.named_parameters():
        if name.startswith(("k_proj", "v_proj")):
            weight = (
                weight.unflatten(0, (n_kv_heads, 4))
                .repeat_interleave(6 // n_kv_heads, dim=0)
                .flatten(0, 1)
            )
        multi_head.get_parameter(name).copy_(weight)
    x, context = normal(2, 7, 16), AttentionContext(7, causal=True)
    assert_close(grouped(x, context), multi_head(x, context))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("window", [1, 2, 4, 9])
@torch.no_grad()
def test_a_window_equals_full_attention_with_that_mask(window, causal):
    attention = randomize(GroupedQueryAttention(s.Attention(4, 2, 4, window=window), 16))
    full = randomize(GroupedQueryAttention(s.Attention(4, 2, 4), 16))
    full.load_state_dict(attention.state_dict())
    x, context = normal(2, 9, 16), AttentionContext(9, causal=causal)
    allowed = window_mask(9, window) & (causal_mask(9) if causal else torch.tensor(True))
    masked = AttentionContext(9)
    masked._masks[None, 1] = AttentionMask(allowed[None, None])
    assert_close(attention(x, context), full(x, masked))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("alibi", [None, torch.float64])
@pytest.mark.parametrize("padding", [None, "left", "right", "middle"])
@pytest.mark.parametrize("length", [13, 16, 23])
def test_a_banded_window_and_its_gradients_equal_the_textbook(causal, alibi, padding, length):
    """Blocks of 4 queries; the textbook masks the scores of all pairs, without the padding."""
    q = normal(2, 6, length, 8).requires_grad_()
    k, v = (normal(2, 3, length, 8).requires_grad_() for _ in range(2))
    columns = {"left": slice(3), "right": slice(length - 3, length), "middle": slice(5, 8)}
    tokens = torch.ones(2, length, dtype=torch.bool)
    if padding is not None:
        tokens[0, columns[padding]] = False
    context = AttentionContext(length, 0, causal, tokens if padding else None, alibi=alibi)
    mask = context.mask(4, 6)
    assert isinstance(mask, BandMask)
    ours = SdpaCore()(q, k, v, mask, 8**-0.5)
    for row in range(2):
        alone = tokens[row]
        n = int(alone.sum())
        allowed = window_mask(n, 4) & (causal_mask(n) if causal else torch.tensor(True))
        keys, values = (x[row, :, alone].repeat_interleave(2, 0) for x in (k, v))
        bias = None if alibi is None else alibi_bias(6, n)
        theirs, _ = scaled_dot_product_attention(q[row, :, alone], keys, values, allowed, bias)
        assert_close(ours[row, :, alone], theirs)
        for a, b in zip(
            torch.autograd.grad(ours[row, :, alone].sin().sum(), [q, k, v], retain_graph=True),
            torch.autograd.grad(theirs.sin().sum(), [q, k, v], retain_graph=True),
            strict=True,
        ):
            assert_close(a, b)


@pytest.mark.parametrize("window", [1, 2, 5, 8])
@pytest.mark.parametrize("cuts", [[40], [3, 30, 1, 1, 5], [1] * 40, [17, 1, 22]], ids=str)
@torch.no_grad()
def test_a_window_with_its_cache_equals_the_dense_mask(window, cuts):
    model = build(decoder(s.Attention(4, 2, 4, window=window), max_len=40))
    ids, cache = random_ids(model.spec, 2, 40), model.new_cache()
    steps = [model.decode(piece, cache=cache) for piece in ids.split(cuts, dim=1)]
    with eager_attention(model):
        assert_close(torch.cat(steps, dim=1), model.decode(ids))


@pytest.mark.parametrize("core", [SdpaCore(), EagerCore()], ids=["sdpa", "eager"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_a_fully_masked_row_gives_zeros_and_finite_gradients(core, dtype):
    q, k, v = (torch.randn(2, 4, 5, 8, dtype=dtype, requires_grad=True) for _ in range(3))
    allowed = torch.ones(2, 1, 5, 5, dtype=torch.bool)
    allowed[0, :, 2] = allowed[1] = False
    mixed = core(q, k, v, AttentionMask(allowed), 0.3)
    assert mixed[0, :, 2].eq(0).all() and mixed[1].eq(0).all() and mixed[0, :, 1].ne(0).all()
    mixed.square().sum().backward()
    for tensor in (q, k, v):
        assert tensor.grad.isfinite().all()
        assert tensor.grad[1].eq(0).all() and tensor.grad[0].ne(0).any()
    assert q.grad[0, :, 2].eq(0).all()


@pytest.mark.parametrize("make_core", [SdpaCore, EagerCore])
@pytest.mark.parametrize("causal", [False, True])
def test_attention_dropout_and_its_gradients_equal_the_textbook(make_core, causal):
    q, k, v = (normal(2, 4, 7, 8).requires_grad_() for _ in range(3))
    mask = AttentionMask(causal_mask(7)[None, None] if causal else None)
    core, results = make_core(dropout=0.3), []
    for attend in (
        lambda: core(q, k, v, mask, 8**-0.5),
        lambda: scaled_dot_product_attention(
            q, k, v, causal_mask(7) if causal else None, dropout=0.3
        )[0],
    ):
        torch.manual_seed(5)
        out = attend()
        results.append([out, *torch.autograd.grad(out.sin().sum(), [q, k, v])])
    for ours, theirs in zip(*results, strict=True):
        assert_close(ours, theirs)
    assert not torch.equal(core(q, k, v, mask, 8**-0.5), results[0][0])  # another draw
    whole = make_core()(q, k, v, mask, 8**-0.5)
    assert torch.equal(core.eval()(q, k, v, mask, 8**-0.5), whole)
    mean = torch.stack([core.train()(q, k, v, mask, 8**-0.5) for _ in range(2_000)]).mean(0)
    assert (mean - whole).abs().max() < 0.1


def test_attention_dropout_follows_torchs_seed_and_is_off_in_evaluation():
    heads = s.Attention(4, 2, 4, dropout=0.5)
    model, ids = build(both(heads)), random_ids(both(), 2, 6)
    cross = replace(model.spec.decoder.layers[0], cross=replace(heads, n_kv_heads=4))
    spec = replace(model.spec, decoder=replace(model.spec.decoder, layers=(cross,)))
    model = build(spec)

    def run(seed):
        torch.manual_seed(seed)
        return model.decode(ids, model.encode(ids % 19))

    assert torch.equal(run(1), run(2))
    model.train()
    assert torch.equal(run(1), run(1)) and not torch.allclose(run(1), run(2))
    for attention in (model.decoder.layers[0].attn, model.decoder.layers[0].cross):
        assert attention.branch.core.dropout == 0.5


def test_eager_weights_sum_to_one_and_are_zero_where_masked():
    recorded, core = {}, EagerCore()
    core.weights.register_forward_hook(lambda *call: recorded.update(weights=call[2]))
    core(
        normal(2, 4, 5, 8),
        normal(2, 2, 5, 8),
        normal(2, 2, 5, 8),
        AttentionMask(is_causal=True),
        0.3,
    )
    assert recorded["weights"].shape == (2, 4, 5, 5)
    assert_close(recorded["weights"].sum(-1), torch.ones(2, 4, 5).double())
    assert recorded["weights"].triu(1).eq(0).all()


@pytest.mark.parametrize(
    "latent",
    [s.LatentAttention(3, 6, 4, 4, 5), s.LatentAttention(2, 8, 6, 2, 3, q_lora_rank=5)],
    ids=str,
)
def test_absorbed_latent_attention_equals_the_expanded_form(latent):
    attention = randomize(MultiHeadLatentAttention(latent, 16, 1e-6, mscale=1.3))
    q = normal(2, latent.n_heads, 7, latent.qk_nope_head_dim + latent.qk_rope_head_dim)
    c, k_rope = normal(2, 1, 7, latent.kv_lora_rank), normal(2, 1, 7, latent.qk_rope_head_dim)
    context = AttentionContext(
        7, causal=True, attention_mask=torch.tensor([[True] * 7, [False] * 2 + [True] * 5])
    )
    expanded, absorbed = (
        attention.expanded(q, c, k_rope, context),
        attention.absorbed(q, c, k_rope, context),
    )
    assert expanded.shape == (2, latent.n_heads, 7, latent.v_head_dim)
    assert_close(absorbed, expanded)
    gradients = [
        torch.autograd.grad(out.sin().sum(), attention.kv_up.weight)[0]
        for out in (expanded, absorbed)
    ]
    assert_close(*gradients)


@torch.no_grad()
def test_latent_attention_is_its_formula_head_by_head():
    attention, x = (
        randomize(MultiHeadLatentAttention(s.LatentAttention(2, 6, 4, 2, 5), 16, 1e-6)),
        normal(1, 7, 16),
    )
    rotation = make_rotation(s.Rotary(), 2, torch.arange(7)[None], torch.float64)
    down = x[0] @ attention.kv_down.weight.T
    c = F.rms_norm(down[:, :6], (6,), attention.kv_norm.weight, 1e-6)
    k_rope, heads = rotation(down[None, None, :, 6:])[0, 0], []
    for head in range(2):
        q = x[0] @ attention.q_proj.weight[6 * head : 6 * head + 6].T
        q = torch.cat([q[:, :4], rotation(q[None, None, :, 4:])[0, 0]], dim=-1)
        k_nope, v = (c @ attention.kv_up.weight[9 * head : 9 * head + 9].T).split([4, 5], dim=-1)
        scores = q @ torch.cat([k_nope, k_rope], dim=-1).T / math.sqrt(6)
        heads.append(scores.masked_fill(~causal_mask(7), -math.inf).softmax(-1) @ v)
    wanted = torch.cat(heads, dim=-1) @ attention.o_proj.weight.T
    assert_close(attention(x, AttentionContext(7, causal=True, rotate=rotation))[0], wanted)


@torch.no_grad()
def test_latent_attention_caches_the_latent_and_the_shared_key_only():
    model = build(decoder(s.LatentAttention(3, 6, 4, 4, 5)))
    cache = model.new_cache()
    model.decode(random_ids(model.spec, 2, 7), cache=cache)
    # layers * rows * tokens * (kv_lora_rank + qk_rope_head_dim) * bytes of a float64
    assert cache.bytes == 2 * 2 * 7 * (6 + 4) * 8


def test_qk_norm_makes_scores_independent_of_the_size_of_the_input():
    attention, context = (
        randomize(GroupedQueryAttention(s.Attention(4, 2, 4, qk_norm=True), 16, eps=0.0)),
        AttentionContext(6),
    )
    x = normal(1, 6, 16)
    assert_close(attention.queries(100 * x), attention.queries(x))
    assert_close(attention(100 * x, context), 100 * attention(x, context), atol=1e-8)
