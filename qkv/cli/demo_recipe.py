"""What the recipes of the demos have in common: most of the model, and the optimizer."""

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
OPTIMIZER: dict[str, Any] = {
    "zero_init_residual": True,
    "optimizer": "muon",
    "muon_lr": 0.02,
    "lr": 4e-3,
}
