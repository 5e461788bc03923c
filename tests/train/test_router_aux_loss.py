"""Mixture of experts: the gradient includes the weighted load-balancing loss."""

from dataclasses import replace

import pytest
import torch

from qkv.model import spec as s
from qkv.model.presets import encoder_decoder
from qkv.model.spec_io import to_json
from qkv.train.loop import Trainer
from qkv.train.translation import TranslationTask


@pytest.fixture
def with_experts(tmp_path):
    """The path of a model.json with four experts, weight of them active for each token."""
    plain = encoder_decoder(vocab_size=400, d_model=16, layers=1, n_heads=2, d_ff=32)
    experts = s.MixtureOfExperts(n_experts=4, n_experts_per_token=1, expert=s.Gated(32))

    def replaced(stack: s.Stack) -> s.Stack:
        return replace(
            stack, layers=tuple(replace(layer, feed_forward=experts) for layer in stack.layers)
        )

    spec = replace(
        plain, encoder=replaced(plain.encoder), decoder=replaced(plain.decoder), max_len=64
    )
    (tmp_path / "experts.json").write_text(to_json(spec), encoding="utf-8")
    return str(tmp_path / "experts.json")


def gradients(
    task: TranslationTask, folder, coefficient: float, accumulation: int
) -> tuple[float, dict[str, torch.Tensor]]:
    trainer = Trainer(
        task,
        replace(
            task.recipe, router_aux_loss_coef=coefficient, gradient_accumulation_steps=accumulation
        ),
        folder,
    )
    batches = [task.batch(number) for number in range(accumulation)]
    loss = trainer.gradients(batches, sum(task.sizes(batch)[0] for batch in batches))
    return loss, {name: weight.grad.clone() for name, weight in trainer.model.named_parameters()}


@pytest.mark.parametrize("accumulation", [1, 2])
def test_the_load_balancing_loss_is_added_to_the_gradient_but_not_to_the_reported_loss(
    make_task, with_experts, tmp_path, accumulation
):
    task = make_task(model=with_experts)
    plain, without = gradients(task, tmp_path, 0.0, accumulation)
    reported, both = gradients(task, tmp_path, 0.7, accumulation)
    assert reported == plain
    model = Trainer(task, task.recipe, tmp_path).model.train()
    for number in range(accumulation):
        task.loss(model, task.batch(number))
        (0.7 / accumulation * model.router_aux_loss()).backward()
    wanted = {
        name: without[name] + (0 if weight.grad is None else weight.grad)
        for name, weight in model.named_parameters()
    }
    assert any(
        (both[name] - without[name]).abs().max() > 1e-4
        for name in both
        if name.endswith("router.weight")
    )
    for name, weight in both.items():
        torch.testing.assert_close(weight, wanted[name], rtol=1e-4, atol=1e-6)
