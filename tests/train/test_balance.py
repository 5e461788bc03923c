"""A model with experts learns to ask all of them: its gradient is that of the loss and of `balance` times the balance loss."""

from dataclasses import replace

import pytest
import torch

from qkv.model import spec as s
from qkv.model.door import to_json
from qkv.model.presets import encoder_decoder
from qkv.train.loop import Trainer
from qkv.train.translation import Translation


@pytest.fixture
def with_experts(tmp_path):
    """The path of a model.json whose feed-forwards are four experts, of which each token asks one."""
    plain = encoder_decoder(vocab_size=400, d_model=16, layers=1, n_heads=2, d_ff=32)
    experts = s.Experts(n_experts=4, n_active=1, each=s.Gated(32))

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
    task: Translation, folder, balance: float, accumulate: int
) -> tuple[float, dict[str, torch.Tensor]]:
    trainer = Trainer(task, replace(task.recipe, balance=balance, accumulate=accumulate), folder)
    batches = [task.batch(number) for number in range(accumulate)]
    loss = trainer.gradients(batches, sum(task.sizes(batch)[0] for batch in batches))
    return loss, {name: one.grad.clone() for name, one in trainer.model.named_parameters()}


@pytest.mark.parametrize("accumulate", [1, 2])
def test_the_balance_loss_is_added_to_the_gradient_and_not_to_what_is_told(
    make_task, with_experts, tmp_path, accumulate
):
    task = make_task(model=with_experts)
    plain, without = gradients(task, tmp_path, 0.0, accumulate)
    told, both = gradients(task, tmp_path, 0.7, accumulate)
    assert told == plain
    model = Trainer(task, task.recipe, tmp_path).model.train()
    for number in range(accumulate):
        task.loss(model, task.batch(number))
        (0.7 / accumulate * model.balance_loss()).backward()
    wanted = {
        name: without[name] + (0 if one.grad is None else one.grad)
        for name, one in model.named_parameters()
    }
    assert any(
        (both[name] - without[name]).abs().max() > 1e-4
        for name in both
        if name.endswith("router.weight")
    )
    for name, one in both.items():
        torch.testing.assert_close(one, wanted[name], rtol=1e-4, atol=1e-6)
