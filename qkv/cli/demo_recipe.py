"""What the recipes of the demos have in common: most of the model, optimizer and schedule."""

from typing import Any

MODEL: dict[str, Any] = {
    "d_model": 128,
    "n_heads": 4,
    "d_ff": 512,
    "dropout": 0.05,
    "positions": "rotary",
    "activation": "relu2",
    "bias": False,
    "qk_norm": True,
}


def optimizer(warmup_steps: int, save_every: int) -> dict[str, Any]:
    """The options of the optimizer and of its schedule."""
    return {
        "zero_init_residual": True,
        "optimizer": "muon",
        "muon_lr": 0.02,
        "lr": 4e-3,
        "warmup_steps": warmup_steps,
        "decay_fraction": 0.7,
        "save_every": save_every,
        "validate_every": save_every,
    }
