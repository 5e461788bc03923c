"""First weights: random, and of a size that keeps the stream's size through all layers.

In: a freshly built model. Out: the same, filled. Told in docs/model.md, "First weights".
"""

import torch
from torch import nn

from qkv.model.spec import Spec


def initialise(model: nn.Module, spec: Spec) -> None:
    """Matrices: Xavier's uniform; tables: normal of unit size after scaling; biases 0, gains 1 (torch's own)."""
    for name, weight in model.named_parameters():
        if name.endswith(("embed.weight", "positions.weight")) or name == "lm_head.weight":
            nn.init.normal_(weight, std=spec.d_model**-0.5 if spec.scaled_embedding else 0.02)
        elif weight.ndim == 2 and "norm" not in name:
            nn.init.xavier_uniform_(weight)
        elif weight.ndim == 3 and "experts" in name:
            for one in weight:
                nn.init.xavier_uniform_(one)
        elif name.endswith("bias") and "norm" not in name:
            nn.init.zeros_(weight)


def calm_start(model: nn.Module) -> None:
    """Every branch begins by adding nothing: the maps that write to the stream are zero."""
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith(("o_proj.weight", "down_proj.weight", "down_proj")) and ".branch." in name:
                weight.zero_()
