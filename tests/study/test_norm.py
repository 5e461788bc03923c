"""The study of norms: gradient norms against autograd, and what is equal."""

from pathlib import Path

import pytest
import torch

from qkv.plan.cost import parameters
from qkv.study.language_model import VOCAB_SIZE, gradient_norms, new_model
from qkv.study.norm import QUESTION, name_of, settings_of, spec_of
from qkv.study.question import Trial

TRIAL = Trial({}, 0, 0, Path(), lambda step: None)
IDS = torch.randint(0, VOCAB_SIZE, (8, 33), generator=torch.Generator().manual_seed(0))


def loss_of(model):
    return model.loss(model.decode(IDS[:, :-1]), IDS[:, 1:]) / IDS[:, 1:].numel()


def test_gradient_norms_are_those_of_autograd_by_layer():
    model = new_model(spec_of(settings_of("post", False, 3)), TRIAL)
    norms = gradient_norms(model, loss_of(model))
    assert all(weight.grad is None for weight in model.parameters())
    for layer, norm in zip(model.decoder.layers, norms, strict=True):
        gradients = torch.autograd.grad(loss_of(model), list(layer.parameters()))
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        assert norm == pytest.approx(flat.norm().item(), rel=1e-4)


def test_at_the_start_post_norm_has_the_larger_gradients_near_the_output():
    """Xiong et al. 2020, theorem 1: the gradient of the last layer, post-norm against pre-norm."""
    last = {}
    for placement in ("pre", "post"):
        model = new_model(spec_of(settings_of(placement, False, 12)), TRIAL)
        last[placement] = gradient_norms(model, loss_of(model))[-1]
    assert last["post"] > 2 * last["pre"]


def test_models_of_the_same_depth_have_the_same_size():
    conditions = QUESTION.experiments["placement"].conditions
    assert len(conditions) == 12
    for layers in (2, 6, 12):
        sizes = {
            (placement, warm_up): sum(
                parameters(
                    spec_of(conditions[name_of(placement, warm_up, layers)].settings)
                ).values()
            )
            for placement in ("pre", "post")
            for warm_up in (True, False)
        }
        # a pre-norm model has a final norm: a gain and a bias
        assert set(sizes.values()) == {min(sizes.values()), min(sizes.values()) + 2 * 64}
