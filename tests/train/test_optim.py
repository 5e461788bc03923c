"""Optimizers follow their formulas; weight decay applies to matrices only."""

import copy
from dataclasses import replace

import pytest
import torch

from qkv.model.presets import preset
from qkv.model.transformer import Transformer
from qkv.train.optim import Muon, make_optimizers, orthogonalize, set_lr
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
    for weight in model.parameters():
        weight.grad = torch.randn_like(weight)
    return model


def is_matrix(name, weight):
    return ".layers." in name and weight.ndim == 2


def adam_by_hand(weight, grads, recipe, decay):
    """Algorithm 1 of Kingma and Ba in float64; AdamW decouples the decay from the gradient."""
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
def test_three_steps_equal_the_formula_and_decay_applies_to_matrices_only(kind, decay):
    recipe = Recipe(optimizer=kind, lr=0.01, weight_decay=decay)
    model = small_model()
    before = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    [optimizer] = make_optimizers(model, recipe)
    grads = {name: [] for name in before}
    for seed in range(3):
        for name, weight in with_gradients(model, seed).named_parameters():
            grads[name].append(weight.grad.clone())
        optimizer.step()
    for name, weight in model.named_parameters():
        expected = adam_by_hand(
            before[name], grads[name], recipe, decay if is_matrix(name, weight) else 0.0
        )
        torch.testing.assert_close(weight.detach().double(), expected, rtol=0, atol=2e-6, msg=name)


def test_the_matrices_are_those_of_the_layers_and_every_weight_has_one_optimizer():
    model = small_model()
    names = {id(weight): name for name, weight in model.named_parameters()}
    for kind in ("adamw", "muon"):
        optimizers = make_optimizers(model, Recipe(optimizer=kind, weight_decay=0.1))
        groups = [group for optimizer in optimizers for group in optimizer.param_groups]
        assert sorted(
            names[id(weight)] for group in groups for weight in group["params"]
        ) == sorted(names.values())
        matrices, others = ([names[id(weight)] for weight in group["params"]] for group in groups)
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
def test_newton_schulz_iterations_bring_singular_values_near_one(shape):
    torch.manual_seed(0)
    for size in (1e-3, 1.0, 1e3):
        values = torch.linalg.svdvals(orthogonalize(size * torch.randn(20, *shape)))
        assert values.min() > 0.3 and values.max() < 1.3
        assert (
            (values > 0.6) & (values < 1.3)
        ).float().mean() > 0.97  # a square matrix may have a singular value near zero


def test_orthogonalization_keeps_the_singular_vectors():
    torch.manual_seed(0)
    x = torch.randn(12, 30)
    u, _, v = torch.linalg.svd(x, full_matrices=False)
    rotated = (
        u.mT @ orthogonalize(x[None])[0] @ v.mT
    )  # diagonal if the singular vectors are the same
    assert (
        rotated - rotated.diagonal().diag()
    ).abs().max() < 1e-4 and rotated.diagonal().min() > 0.3


def test_a_matrix_of_zeros_stays_zero():
    assert torch.equal(orthogonalize(torch.zeros(2, 3, 4)), torch.zeros(2, 3, 4))


@pytest.mark.parametrize("shape", [(6, 10), (10, 6)])
def test_stacked_matrices_are_orthogonalized_like_each_alone(shape):
    torch.manual_seed(0)
    x = torch.randn(7, *shape)
    alone = torch.cat([orthogonalize(weight[None]) for weight in x])
    torch.testing.assert_close(orthogonalize(x), alone, rtol=0, atol=1e-5)


def muon_by_hand(weight, grads, lr, momentum, decay):
    """Muon as published by Keller Jordan, one matrix at a time."""
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
        [weight.detach().clone() for weight in weights],
        [[torch.randn_like(weight) for weight in weights] for _ in range(4)],
    )
    optimizer = Muon(weights, lr=0.1, momentum=0.9, weight_decay=0.2)
    for now in grads:
        for weight, grad in zip(weights, now, strict=True):
            weight.grad = grad.clone()
        optimizer.step()
    for number, weight in enumerate(weights):
        expected = muon_by_hand(before[number], [now[number] for now in grads], 0.1, 0.9, 0.2)
        torch.testing.assert_close(weight.detach().double(), expected, rtol=0, atol=1e-5)


def test_a_weight_without_gradient_is_unchanged():
    weight, idle = (torch.nn.Parameter(torch.ones(3, 4)) for _ in range(2))
    weight.grad = torch.ones(3, 4)
    Muon([weight, idle], lr=0.1, weight_decay=0.5).step()
    assert torch.equal(idle, torch.ones(3, 4)) and not torch.equal(weight, torch.ones(3, 4))


@pytest.mark.parametrize("kind", ["adam", "adamw", "muon"])
def test_a_restored_optimizer_continues_bit_for_bit(kind):
    recipe = Recipe(optimizer=kind, weight_decay=0.1)
    first = small_model()
    optimizers = make_optimizers(first, recipe)
    for seed in (1, 2):
        with_gradients(first, seed)
        for optimizer in optimizers:
            optimizer.step()
    second = copy.deepcopy(first)
    resumed = make_optimizers(second, recipe)
    for old, new in zip(optimizers, resumed, strict=True):
        restore_optimizer(new, *flatten_optimizer(old))
    for model, group in ((first, optimizers), (second, resumed)):
        with_gradients(model, 3)
        for optimizer in group:
            optimizer.step()
    assert all(
        torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True)
    )


def test_every_learning_rate_is_the_same_fraction_of_its_peak():
    optimizers = make_optimizers(small_model(), Recipe(optimizer="muon", lr=0.004, muon_lr=0.02))
    for factor in (0.5, 1.0, 0.25):
        assert set_lr(optimizers, factor) == pytest.approx(0.004 * factor)
        assert optimizers[0].param_groups[0]["lr"] == pytest.approx(0.02 * factor)
