"""The textbook's attention and masks against torch, and invariants for every input."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from qkv.textbook.attention import (
    MultiHeadAttention,
    SingleHeadAttention,
    scaled_dot_product_attention,
    softmax,
)
from qkv.textbook.masks import causal_mask, combined_mask, padding_mask, window_mask
from qkv.textbook.positions import rotate_halves, rotate_pairs


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(1)


def qkv(*shape: int) -> list[torch.Tensor]:
    return [torch.randn(*shape, dtype=torch.float64, requires_grad=True) for _ in range(3)]


def assert_close(ours, theirs, atol=1e-12):
    torch.testing.assert_close(ours, theirs, rtol=0, atol=atol)


def test_softmax_equals_torch_where_exponentials_overflow():
    scores = torch.randn(5, 7, dtype=torch.float64) * 1e4
    assert_close(softmax(scores), torch.softmax(scores, dim=-1))


def test_attention_equals_torch_with_and_without_a_mask():
    q, k, v = qkv(2, 3, 6, 8)
    for mask in (None, causal_mask(6), window_mask(6, 2)):
        ours, _ = scaled_dot_product_attention(q, k, v, mask)
        assert_close(ours, F.scaled_dot_product_attention(q, k, v, mask))


def test_gradients_of_attention_equal_torch():
    q, k, v = qkv(2, 3, 6, 8)
    ours = torch.autograd.grad(
        scaled_dot_product_attention(q, k, v, causal_mask(6))[0].sin().sum(), [q, k, v]
    )
    fused = F.scaled_dot_product_attention(q, k, v, causal_mask(6))
    for a, b in zip(ours, torch.autograd.grad(fused.sin().sum(), [q, k, v]), strict=True):
        assert_close(a, b)


def test_rows_of_weights_sum_to_one_and_are_zero_where_masked():
    q, k, v = qkv(2, 3, 6, 8)
    _, weights = scaled_dot_product_attention(q, k, v, causal_mask(6))
    assert_close(weights.sum(dim=-1), torch.ones(2, 3, 6, dtype=torch.float64))
    assert (weights.masked_select(~causal_mask(6)) == 0).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_fully_masked_row_gives_zeros_and_finite_gradients(dtype):
    q, k, v = (x.detach().to(dtype).requires_grad_() for x in qkv(1, 1, 4, 8))
    mask = torch.tensor([[True, False, False, True], [False] * 4, [True] * 4, [False] * 4])
    mixed, weights = scaled_dot_product_attention(q, k, v, mask)
    assert (mixed[0, 0, [1, 3]] == 0).all() and (weights[0, 0, [1, 3]] == 0).all()
    for gradient in torch.autograd.grad(mixed.square().sum(), [q, k, v]):
        assert gradient.isfinite().all()


def test_a_single_head_is_softmax_of_xx_transposed_when_all_maps_are_the_identity():
    attention, x = (
        SingleHeadAttention(4, bias=False).double(),
        torch.randn(1, 5, 4, dtype=torch.float64),
    )
    for linear in (attention.q_proj, attention.k_proj, attention.v_proj):
        nn.init.eye_(linear.weight)
    assert_close(attention(x), torch.softmax(x @ x.mT / 2, dim=-1) @ x)


def torch_attention(ours: MultiHeadAttention, d_model: int, n_heads: int) -> nn.MultiheadAttention:
    theirs = nn.MultiheadAttention(d_model, n_heads, batch_first=True).double()
    three = (ours.q_proj, ours.k_proj, ours.v_proj)
    theirs.load_state_dict(
        {
            "in_proj_weight": torch.cat([linear.weight for linear in three]),
            "in_proj_bias": torch.cat([linear.bias for linear in three]),
            "out_proj.weight": ours.o_proj.weight,
            "out_proj.bias": ours.o_proj.bias,
        }
    )
    return theirs


def test_multi_head_attention_equals_torch_for_self_and_cross_attention():
    ours = MultiHeadAttention(12, 3).double()
    theirs = torch_attention(ours, 12, 3)
    x, memory = (
        torch.randn(2, 5, 12, dtype=torch.float64),
        torch.randn(2, 7, 12, dtype=torch.float64),
    )
    attention_mask = torch.arange(7)[None] < torch.tensor([[7], [4]])
    assert_close(ours(x, None, causal_mask(5)), theirs(x, x, x, attn_mask=~causal_mask(5))[0])
    crossed, _ = theirs(x, memory, memory, key_padding_mask=~attention_mask)
    assert_close(ours(x, memory, attention_mask[:, None, None]), crossed)


@pytest.mark.parametrize("n_kv_heads", [1, 2, 4])
def test_grouped_query_attention_is_multi_head_attention_with_repeated_heads(n_kv_heads):
    grouped, full = (
        MultiHeadAttention(16, 4, n_kv_heads).double(),
        MultiHeadAttention(16, 4).double(),
    )
    full.load_state_dict(
        grouped.state_dict()
        | {
            f"{name}.{part}": torch.cat(
                [
                    head
                    for head in getattr(getattr(grouped, name), part).chunk(n_kv_heads)
                    for _ in range(4 // n_kv_heads)
                ]
            )
            for name in ("k_proj", "v_proj")
            for part in ("weight", "bias")
        }
    )
    x = torch.randn(2, 5, 16, dtype=torch.float64)
    assert_close(grouped(x), full(x))


def test_attention_without_positions_is_permutation_equivariant():
    attention, x = MultiHeadAttention(16, 4).double(), torch.randn(1, 6, 16, dtype=torch.float64)
    order = torch.randperm(6)
    assert_close(attention(x[:, order]), attention(x)[:, order])


@pytest.mark.parametrize("rotate", [rotate_pairs, rotate_halves])
def test_attention_with_rope_depends_on_the_order(rotate):
    attention, x = (
        MultiHeadAttention(16, 4, rotate=rotate).double(),
        torch.randn(1, 6, 16, dtype=torch.float64),
    )
    assert (attention(x.flip(1)) - attention(x).flip(1)).abs().max() > 1e-3


def test_the_combined_mask_is_causal_without_padding():
    ids = torch.tensor([[4, 5, 6, 0], [7, 0, 0, 0]])
    assert combined_mask(ids).equal(causal_mask(4)[None, None] & padding_mask(ids != 0))
    assert combined_mask(ids)[1, 0].sum().item() == 4  # four queries, one token


def test_a_wide_window_masks_nothing_and_the_narrowest_all_but_the_token():
    assert window_mask(5, 5).all()
    assert window_mask(5, 1).equal(torch.eye(5, dtype=torch.bool))
    causal = window_mask(5, 3) & causal_mask(5)
    assert causal.sum(dim=1).tolist() == [1, 2, 3, 3, 3]
