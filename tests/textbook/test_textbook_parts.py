"""The textbook's norms, activations, feed-forwards and positions against torch."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from qkv.textbook import feed_forward
from qkv.textbook.feed_forward import (
    FeedForward,
    GatedFeedForward,
    MixtureOfExperts,
    load_balancing_loss,
)
from qkv.textbook.norms import BatchNorm, LayerNorm, RMSNorm
from qkv.textbook.positions import (
    LearnedPositions,
    alibi_bias,
    alibi_slopes,
    pairs_to_halves,
    rotate_halves,
    rotate_pairs,
    shift_matrix,
    sinusoidal,
)


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(2)


def randn(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def assert_close(ours, theirs, atol=1e-12):
    torch.testing.assert_close(ours, theirs, rtol=0, atol=atol)


@pytest.mark.parametrize(("ours", "theirs"), [(LayerNorm, nn.LayerNorm), (RMSNorm, nn.RMSNorm)])
def test_norms_and_their_gradients_equal_torch(ours, theirs):
    ours, theirs = ours(8, eps=1e-4).double(), theirs(8, eps=1e-4).double()
    for parameter in ours.parameters():
        nn.init.normal_(parameter)
    theirs.load_state_dict(ours.state_dict())
    x = (randn(3, 5, 8) * 4 + 1).requires_grad_()
    assert_close(ours(x), theirs(x))
    assert_close(
        torch.autograd.grad(ours(x).sin().sum(), x)[0],
        torch.autograd.grad(theirs(x).sin().sum(), x)[0],
    )


def test_batch_norm_equals_torch_without_padding_in_training_and_evaluation():
    ours, theirs = BatchNorm(6).double(), nn.BatchNorm1d(6).double()
    mask = torch.arange(5)[None] < torch.tensor([[5], [3], [1]])
    for _ in range(3):
        x = randn(3, 5, 6) * 3 + 2
        assert_close(ours(x, mask)[mask], theirs(x[mask]))
    assert_close(ours.mean, theirs.running_mean)
    assert_close(ours.variance, theirs.running_var)
    assert_close(ours.eval()(x)[mask], theirs.eval()(x[mask]))


def test_layer_norm_normalizes_rows_and_batch_norm_columns():
    x = randn(32, 512) * 5 + 3
    by_row, by_column = LayerNorm(512, eps=0).double()(x), BatchNorm(512, eps=0).double()(x)
    for y, axis in ((by_row, 1), (by_column, 0)):
        assert_close(y.mean(dim=axis), torch.zeros(y.shape[1 - axis], dtype=torch.float64))
        assert_close(
            y.var(dim=axis, correction=0), torch.ones(y.shape[1 - axis], dtype=torch.float64)
        )


@pytest.mark.parametrize(
    ("name", "theirs"),
    [
        ("relu", F.relu),
        ("gelu", F.gelu),
        ("silu", F.silu),
        ("gelu_tanh", lambda x: F.gelu(x, approximate="tanh")),
        ("relu_squared", lambda x: F.relu(x).square()),
    ],
)
def test_activations_equal_torch(name, theirs):
    x = torch.cat(
        [randn(1000) * 3, torch.tensor([0.0, -50.0, 50.0, -200.0, 200.0], dtype=torch.float64)]
    )
    assert_close(getattr(feed_forward, name)(x), theirs(x))


def test_feed_forwards_equal_their_formulas():
    x, dense, gated = randn(2, 3, 4), FeedForward(4, 9).double(), GatedFeedForward(4, 9).double()
    (w1, b1), (w2, b2) = dense.up_proj.parameters(), dense.down_proj.parameters()
    assert_close(dense(x), torch.relu(x @ w1.T + b1) @ w2.T + b2)
    gate, up, down = gated.gate_proj.weight, gated.up_proj.weight, gated.down_proj.weight
    assert_close(gated(x), (F.silu(x @ gate.T) * (x @ up.T)) @ down.T)


def test_top_1_is_the_best_expert_and_top_n_is_weighted_by_the_router():
    x, top_1, top_n = (
        randn(3, 4),
        MixtureOfExperts(4, 6, 3, 1).double(),
        MixtureOfExperts(4, 6, 3, 3, 1).double(),
    )
    best = top_1.router(x).argmax(dim=-1).tolist()
    assert_close(
        top_1(x), torch.stack([top_1.experts[e](token) for e, token in zip(best, x, strict=True)])
    )
    weights = torch.softmax(top_n.router(x), dim=-1)
    outputs = torch.stack([expert(x) for expert in top_n.experts], dim=-1)
    assert_close(top_n(x), (outputs * weights[:, None]).sum(dim=-1) + top_n.shared[0](x))


def test_experts_equal_mixtral():
    from transformers import MixtralConfig
    from transformers.models.mixtral.modeling_mixtral import MixtralSparseMoeBlock

    theirs = MixtralSparseMoeBlock(
        MixtralConfig(
            hidden_size=8,
            intermediate_size=12,
            num_local_experts=4,
            num_experts_per_tok=2,
            experts_implementation="eager",
        )
    ).double()
    for parameter in theirs.parameters():
        nn.init.normal_(parameter)
    ours, names = MixtureOfExperts(8, 12, 4, 2).double(), theirs.state_dict()
    ours.router.weight.data = names["gate.weight"]
    for e, expert in enumerate(ours.experts):
        expert.gate_proj.weight.data, expert.up_proj.weight.data = names["experts.gate_up_proj"][
            e
        ].chunk(2)
        expert.down_proj.weight.data = names["experts.down_proj"][e]
    x = randn(2, 5, 8)
    output = theirs(x)
    # transformers computes routing weights in float32, hence the tolerance.
    torch.testing.assert_close(
        ours(x), output[0] if isinstance(output, tuple) else output, rtol=1e-5, atol=1e-5
    )


def test_load_balancing_loss_is_one_for_equal_use_and_n_for_one_expert():
    even = torch.eye(4, dtype=torch.float64).repeat(3, 1) * 50
    assert load_balancing_loss(even, 1).item() == pytest.approx(1)
    one_expert = torch.tensor([[50.0, 0, 0, 0]], dtype=torch.float64).repeat(12, 1)
    assert load_balancing_loss(one_expert, 1).item() == pytest.approx(4)


def test_load_balancing_loss_and_its_gradient_equal_mixtral():
    from transformers.models.mixtral.modeling_mixtral import load_balancing_loss_func

    router = randn(12, 4).requires_grad_()
    ours, theirs = (
        load_balancing_loss(router, 2),
        load_balancing_loss_func((router,), num_experts=4, top_k=2),
    )
    torch.testing.assert_close(
        ours.float(), theirs.float(), rtol=0, atol=1e-6
    )  # theirs is float32 inside
    gradients = [torch.autograd.grad(loss, router)[0] for loss in (ours, theirs)]
    torch.testing.assert_close(*gradients, rtol=0, atol=1e-6)


def test_sinusoidal_positions_equal_the_papers_formula():
    table = sinusoidal(9, 6)
    for pos in range(9):
        for i in range(3):
            angle = pos / 10000 ** (2 * i / 6)
            assert table[pos, 2 * i].item() == pytest.approx(math.sin(angle), abs=1e-15)
            assert table[pos, 2 * i + 1].item() == pytest.approx(math.cos(angle), abs=1e-15)


def test_the_shift_matrix_shifts_every_sinusoidal_position():
    table = sinusoidal(40, 16)
    for distance in (1, 3, 17):
        assert_close(table[:-distance] @ shift_matrix(distance, 16).T, table[distance:])


def test_sinusoidal_dot_products_depend_on_the_distance_only():
    products = sinusoidal(30, 16) @ sinusoidal(30, 16).T
    for distance in range(30):
        diagonal = products.diagonal(distance)
        assert_close(diagonal, diagonal[:1].expand_as(diagonal))


def test_learned_positions_are_the_first_rows_of_a_table():
    positions = LearnedPositions(10, 4)
    assert positions(3).equal(positions.weight[:3])


@pytest.mark.parametrize("rotate", [rotate_pairs, rotate_halves])
def test_rope_scores_depend_on_the_distance_only(rotate):
    q, k = randn(1, 8), randn(1, 8)

    def score(m: int, n: int) -> torch.Tensor:
        return (rotate(q, torch.tensor([m])) * rotate(k, torch.tensor([n]))).sum()

    for distance in (0, 1, 7):
        assert_close(score(5 + distance, 5), score(1000 + distance, 1000))
    assert (score(5, 5) - score(6, 5)).abs() > 1e-6


@pytest.mark.parametrize("rotate", [rotate_pairs, rotate_halves])
def test_rotation_keeps_norms_and_is_the_identity_at_position_zero(rotate):
    x = randn(2, 3, 7, 8)
    assert_close(rotate(x).norm(dim=-1), x.norm(dim=-1))
    assert_close(rotate(x)[..., 0, :], x[..., 0, :])


def test_rotating_pairs_is_complex_multiplication():
    x = randn(7, 8)
    angles = torch.outer(
        torch.arange(7, dtype=torch.float64), 10000 ** (-torch.arange(4, dtype=torch.float64) / 4)
    )
    rotated = torch.view_as_complex(x.reshape(7, 4, 2)) * torch.polar(
        torch.ones_like(angles), angles
    )
    assert_close(rotate_pairs(x), torch.view_as_real(rotated).flatten(1))


def test_rotate_halves_is_rotate_pairs_in_another_order():
    x, order = randn(2, 3, 7, 8), pairs_to_halves(8)
    assert_close(rotate_halves(x[..., order]), rotate_pairs(x)[..., order])


def test_alibi_is_the_example_of_its_paper():
    """Figure 3 of Press et al. 2022: 0, -1, -2, ... times the slope; 8 heads: 1/2, 1/4 .. 1/256."""
    assert alibi_slopes(8).tolist() == [2.0**-i for i in range(1, 9)]
    assert alibi_bias(8, 5)[0, 4].tolist() == [-2.0, -1.5, -1.0, -0.5, 0.0]
    # 12 heads: those of 8 and every other one of 16, as in the paper's code
    assert alibi_slopes(12).tolist()[:8] == alibi_slopes(8).tolist()
    wanted = torch.tensor([2.0**-i for i in (0.5, 1.5, 2.5, 3.5)], dtype=torch.float64)
    assert_close(alibi_slopes(12)[8:], wanted)
