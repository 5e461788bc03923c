"""Saved and loaded optimizers have the same bits and take the same next steps."""

import pytest
import torch
from torch import nn

from qkv.errors import QkvError
from qkv.train.state import flatten_optimizer, newest_state, restore_optimizer, save_state


class Muonlike(torch.optim.Optimizer):
    """Orthogonalized momentum with float64 state, and a number and None in its state."""

    def __init__(self, params, lr=0.02):
        super().__init__(params, {"lr": lr, "rounds": (3.4, -4.8, 2.0)})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            a, b, c = group["rounds"]
            for p in group["params"]:
                state = self.state[p]
                buffer = state.setdefault("momentum", torch.zeros_like(p, dtype=torch.float64))
                state["count"], state["nothing"] = state.get("count", 0) + 1, None
                x = buffer.mul_(0.95).add_(p.grad).float()
                x = x / (x.norm() + 1e-7) if p.ndim == 2 else x
                gram = x @ x.T if p.ndim == 2 else torch.zeros(1)
                x = a * x + (b * gram + c * gram @ gram) @ x if p.ndim == 2 else x
                p.add_(x, alpha=-group["lr"] / state["count"])


MAKERS = {
    "Adam of 2017": lambda groups: torch.optim.Adam(groups, lr=0.1, betas=(0.9, 0.98), eps=1e-9),
    "AdamW fused": lambda groups: torch.optim.AdamW(groups, lr=0.1, fused=True),
    "AdamW amsgrad": lambda groups: torch.optim.AdamW(groups, lr=0.1, amsgrad=True),
    "Adam, lr a tensor": lambda groups: torch.optim.Adam(
        groups, lr=torch.tensor(0.1), foreach=False
    ),
    "SGD": lambda groups: torch.optim.SGD(groups, lr=0.1, momentum=0.9),
    "Adafactor": lambda groups: torch.optim.Adafactor(groups, lr=0.1),
    "Muon": Muonlike,
}


def model_and_optimizer(make, seed=0):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 3))
    matrices, vectors = (
        [p for p in model.parameters() if (p.ndim == 2) == flat] for flat in (True, False)
    )
    return model, make(
        [
            {
                "params": matrices,
                "lr": torch.tensor(0.01) if make is MAKERS["Adam, lr a tensor"] else 0.01,
            },
            {"params": vectors},
        ]
    )


def train_a_step(model, optimizer, seed):
    model.zero_grad()
    x = torch.randn(8, 5, generator=torch.Generator().manual_seed(seed))
    model(x).square().sum().backward()
    optimizer.step()


def bits(values):
    return {
        name: (value.dtype, value.shape, value.contiguous().numpy().tobytes())
        for name, value in values.items()
    }


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_a_restored_optimizer_has_the_same_bits_and_steps(tmp_path, make):
    model, optimizer = model_and_optimizer(make)
    for seed in range(3):
        train_a_step(model, optimizer, seed)
    tensors, metadata = flatten_optimizer(optimizer)
    save_state(
        tmp_path, 3, {"model": model.state_dict(), "optimizer": tensors}, {"optimizer": metadata}
    )
    saved = bits(tensors)

    state = newest_state(tmp_path)
    other, resumed = model_and_optimizer(make, seed=9)
    train_a_step(other, resumed, 77)  # its state must be discarded
    other.load_state_dict(state.tensors["model"])
    restore_optimizer(resumed, state.tensors["optimizer"], state.metadata["optimizer"])
    restored, restored_metadata = flatten_optimizer(resumed)
    assert bits(restored) == saved and restored_metadata == metadata and len(saved) >= 4
    for seed in range(3, 6):
        train_a_step(model, optimizer, seed)
        train_a_step(other, resumed, seed)
    assert bits(other.state_dict()) == bits(model.state_dict())


def test_restoring_the_initial_state_discards_later_steps():
    model, optimizer = model_and_optimizer(MAKERS["AdamW fused"])
    tensors, metadata = flatten_optimizer(optimizer)
    train_a_step(model, optimizer, 0)
    restore_optimizer(optimizer, tensors, metadata)
    assert tensors == {} and len(optimizer.state) == 0


@pytest.mark.parametrize(
    ("kind", "width", "line"),
    [
        ("SGD", 6, "optimizer: saved by AdamW, not SGD; resume with the recipe of the run"),
        (
            "AdamW fused",
            7,
            "optimizer: saved for a model with other parameter shapes; "
            "resume with the model of the run",
        ),
    ],
)
def test_the_state_of_another_optimizer_is_error_and_changes_nothing(kind, width, line):
    model, optimizer = model_and_optimizer(MAKERS["AdamW fused"])
    train_a_step(model, optimizer, 0)
    tensors, metadata = flatten_optimizer(optimizer)
    other = MAKERS[kind](nn.Linear(5, width).parameters())
    with pytest.raises(QkvError) as error:
        restore_optimizer(other, tensors, metadata)
    assert str(error.value) == line and len(other.state) == 0
