"""Optimisers take the steps their formulas say, and decay pulls at matrices only."""

import copy
from dataclasses import replace

import pytest
import torch

from qkv.model.presets import preset
from qkv.model.transformer import Transformer
from qkv.train.optim import Muon, make_optimizers, orthogonalised, set_share
from qkv.train.recipe import Recipe
from qkv.train.state import flatten_optimizer, restore_optimizer

SHAPE = {
    "layers": 1,
    "d_model": 8,
    "n_heads": 2,
    "d_ff": 12,
    "qk_norm": True,
    "positions": "learned",
    "max_len": 9,
    "tied": False,
}


def small_model():
    torch.manual_seed(1)
    return Transformer(replace(preset("seq2seq", vocab_size=20, **SHAPE), source_vocab_size=15))


def with_gradients(model, seed):
    torch.manual_seed(seed)
    for one in model.parameters():
        one.grad = torch.randn_like(one)
    return model


def is_matrix(name, one):
    return ".layers." in name and one.ndim == 2


def adam_by_hand(weight, grads, recipe, decay):
    """Kingma and Ba's algorithm 1, with AdamW's decay apart from the gradient or Adam's inside it; in double."""
    w, m, v = weight.double(), 0.0, 0.0
    for t, grad in enumerate(grads, start=1):
        g = grad.double()
        if recipe.optimizer == "adam":
            g = g + decay * w
        else:
            w = w - recipe.lr * decay * w
        m = recipe.beta1 * m + (1 - recipe.beta1) * g
        v = recipe.beta2 * v + (1 - recipe.beta2) * g**2
        m_hat, v_hat = m / (1 - recipe.beta1**t), v / (1 - recipe.beta2**t)
        w = w - recipe.lr * m_hat / (v_hat.sqrt() + recipe.eps)
    return w


@pytest.mark.parametrize("kind", ["adam", "adamw"])
@pytest.mark.parametrize("decay", [0.0, 0.3])
def test_three_steps_equal_the_formula_and_decay_pulls_only_at_matrices(kind, decay):
    recipe = Recipe(optimizer=kind, lr=0.01, weight_decay=decay)
    model = small_model()
    before = {name: one.detach().clone() for name, one in model.named_parameters()}
    [optimizer] = make_optimizers(model, recipe)
    grads = {name: [] for name in before}
    for seed in range(3):
        for name, one in with_gradients(model, seed).named_parameters():
            grads[name].append(one.grad.clone())
        optimizer.step()
    for name, one in model.named_parameters():
        expected = adam_by_hand(
            before[name], grads[name], recipe, decay if is_matrix(name, one) else 0.0
        )
        torch.testing.assert_close(one.detach().double(), expected, rtol=0, atol=2e-6, msg=name)


def test_the_matrices_are_those_of_the_layers_and_every_weight_has_one_optimiser():
    model = small_model()
    names = {id(one): name for name, one in model.named_parameters()}
    for kind in ("adamw", "muon"):
        optimizers = make_optimizers(model, Recipe(optimizer=kind, weight_decay=0.1))
        groups = [group for optimizer in optimizers for group in optimizer.param_groups]
        assert sorted(names[id(one)] for group in groups for one in group["params"]) == sorted(
            names.values()
        )
        matrices, others = ([names[id(one)] for one in group["params"]] for group in groups)
        assert groups[0]["weight_decay"] == 0.1 and groups[1]["weight_decay"] == 0.0
        assert "encoder.layers.0.attn.branch.q_proj.weight" in matrices and len(matrices) == 16
        for name in (
            "embed.weight",
            "source_embed.weight",
            "lm_head.weight",
            "decoder.positions.weight",
            "encoder.layers.0.ffn.branch.up_proj.bias",
            "decoder.norm.weight",
        ):
            assert name in others


@pytest.mark.parametrize("shape", [(8, 8), (16, 64), (64, 16), (5, 40)])
def test_orthogonalising_leads_every_singular_value_near_one(shape):
    torch.manual_seed(0)
    for size in (1e-3, 1.0, 1e3):
        values = torch.linalg.svdvals(orthogonalised(size * torch.randn(20, *shape)))
        assert values.min() > 0.3 and values.max() < 1.3
        assert (
            (values > 0.6) & (values < 1.3)
        ).float().mean() > 0.97  # a square matrix may have a value near zero


def test_orthogonalising_keeps_the_directions():
    torch.manual_seed(0)
    x = torch.randn(12, 30)
    u, _, v = torch.linalg.svd(x, full_matrices=False)
    turned = (
        u.mT @ orthogonalised(x[None])[0] @ v.mT
    )  # diagonal if the singular vectors are the same
    assert (turned - turned.diagonal().diag()).abs().max() < 1e-4 and turned.diagonal().min() > 0.3


def test_a_matrix_of_zeros_stays_zero():
    assert torch.equal(orthogonalised(torch.zeros(2, 3, 4)), torch.zeros(2, 3, 4))


@pytest.mark.parametrize("shape", [(6, 10), (10, 6)])
def test_stacked_matrices_are_orthogonalised_as_each_alone(shape):
    torch.manual_seed(0)
    x = torch.randn(7, *shape)
    alone = torch.cat([orthogonalised(one[None]) for one in x])
    torch.testing.assert_close(orthogonalised(x), alone, rtol=0, atol=1e-5)


def muon_by_hand(weight, grads, lr, momentum, decay):
    """As Keller Jordan published it: a quintic Newton-Schulz iteration on the Nesterov momentum, one matrix at a time."""
    w, buffer = weight.double(), torch.zeros_like(weight).double()
    for grad in grads:
        g = grad.double()
        buffer = momentum * buffer + (1 - momentum) * g
        update = (1 - momentum) * g + momentum * buffer
        x = update.T if update.shape[0] > update.shape[1] else update
        x = x / (x.pow(2).sum().sqrt() + 1e-7)
        for _ in range(5):
            a = x @ x.T
            x = 3.4445 * x + (-4.7750 * a + 2.0315 * (a @ a)) @ x
        x = x.T if update.shape[0] > update.shape[1] else x
        w = w * (1 - lr * decay) - lr * max(1, weight.shape[0] / weight.shape[1]) ** 0.5 * x
    return w


def test_muon_takes_the_published_steps():
    torch.manual_seed(3)
    weights = [
        torch.nn.Parameter(torch.randn(shape)) for shape in ((6, 9), (6, 9), (12, 4), (6, 9))
    ]
    before, grads = (
        [one.detach().clone() for one in weights],
        [[torch.randn_like(one) for one in weights] for _ in range(4)],
    )
    optimizer = Muon(weights, lr=0.1, momentum=0.9, weight_decay=0.2)
    for now in grads:
        for weight, grad in zip(weights, now, strict=True):
            weight.grad = grad.clone()
        optimizer.step()
    for number, weight in enumerate(weights):
        expected = muon_by_hand(before[number], [now[number] for now in grads], 0.1, 0.9, 0.2)
        torch.testing.assert_close(weight.detach().double(), expected, rtol=0, atol=1e-5)


def test_a_weight_without_gradient_stays():
    weight, idle = (torch.nn.Parameter(torch.ones(3, 4)) for _ in range(2))
    weight.grad = torch.ones(3, 4)
    Muon([weight, idle], lr=0.1, weight_decay=0.5).step()
    assert torch.equal(idle, torch.ones(3, 4)) and not torch.equal(weight, torch.ones(3, 4))


@pytest.mark.parametrize("kind", ["adam", "adamw", "muon"])
def test_an_optimiser_put_back_from_a_file_goes_on_bit_for_bit(kind):
    recipe = Recipe(optimizer=kind, weight_decay=0.1)
    first = small_model()
    optimizers = make_optimizers(first, recipe)
    for seed in (1, 2):
        with_gradients(first, seed)
        for one in optimizers:
            one.step()
    second = copy.deepcopy(first)
    resumed = make_optimizers(second, recipe)
    for old, new in zip(optimizers, resumed, strict=True):
        restore_optimizer(new, *flatten_optimizer(old))
    for model, some in ((first, optimizers), (second, resumed)):
        with_gradients(model, 3)
        for one in some:
            one.step()
    assert all(
        torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True)
    )


def test_every_learning_rate_is_the_same_share_of_its_own_peak():
    optimizers = make_optimizers(small_model(), Recipe(optimizer="muon", lr=0.004, matrix_lr=0.02))
    for share in (0.5, 1.0, 0.25):
        assert set_share(optimizers, share) == pytest.approx(0.004 * share)
        assert optimizers[0].param_groups[0]["lr"] == pytest.approx(0.02 * share)
