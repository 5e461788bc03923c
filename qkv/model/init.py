"""Weight initialization.

See docs/explanation/model.md, "Weight initialization".
"""

import torch
from torch import nn

from qkv.model.block import PostNormOnly, PreNormOnly
from qkv.model.spec import Spec


def initialize(model: nn.Module, spec: Spec) -> None:
    """Xavier-uniform matrices, normal tables, zero biases; norm gains stay 1 (torch's default).

    Tables have std d_model^-0.5 if embeddings are scaled by sqrt(d_model), else 0.02. Custom parts
    initialize their weights themselves.
    """
    custom = [module for module in model.modules() if hasattr(module, "custom_part")]
    own = {weight for module in custom for weight in module.parameters()}
    for name, weight in model.named_parameters():
        if weight in own:
            continue
        if name.endswith(("embed.weight", "positions.weight")) or name == "lm_head.weight":
            nn.init.normal_(weight, std=spec.d_model**-0.5 if spec.scaled_embedding else 0.02)
        elif weight.ndim == 2 and "norm" not in name:
            nn.init.xavier_uniform_(weight)
        elif weight.ndim == 3 and "experts" in name:
            for matrix in weight:
                nn.init.xavier_uniform_(matrix)
        elif name.endswith("bias") and "norm" not in name:
            nn.init.zeros_(weight)


def zero_init_residual(model: nn.Module) -> None:
    """Set the output projection of every residual branch to zero: each branch adds 0 at first.

    Not in layers without residual connections, which would stop the signal and all gradients.
    """
    outputs = ("o_proj.weight", "down_proj.weight", "down_proj")
    alone = [part for part in model.modules() if isinstance(part, PreNormOnly | PostNormOnly)]
    kept = {weight for part in alone for weight in part.parameters()}
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith(outputs) and ".branch." in name and weight not in kept:
                weight.zero_()
