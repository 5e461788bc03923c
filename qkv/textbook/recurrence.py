"""LSTM and GRU: one step of a recurrence, whose state replaces all earlier tokens.

The fast version is in qkv/model/mixers.py. See docs/explanation/model.md, "Other token mixers".
"""

import torch
from torch import Tensor


def lstm_step(
    x: Tensor, state: tuple[Tensor, Tensor], from_x: Tensor, from_h: Tensor, bias: Tensor
) -> tuple[Tensor, Tensor]:
    """The state (h, c) after the token x (batch, d): c forgets by f and adds i g, h = o tanh(c).

    The rows of from_x (4 width, d), from_h (4 width, width) and bias are the input gate i, the
    forget gate f, the new content g and the output gate o, as in torch.
    """
    h, c = state
    i, f, g, o = (x @ from_x.T + h @ from_h.T + bias).chunk(4, dim=-1)      # (batch, width) each
    c = f.sigmoid() * c + i.sigmoid() * g.tanh()
    return o.sigmoid() * c.tanh(), c


def gru_step(
    x: Tensor, h: Tensor, from_x: Tensor, from_h: Tensor, biases: tuple[Tensor, Tensor]
) -> Tensor:
    """The state h after the token x (batch, d): (1 - z) n + z h, with n from x and r h.

    The rows of from_x (3 width, d) and from_h (3 width, width) are the reset gate r, the update
    gate z and the new content n; each product has its own bias.
    """
    x_r, x_z, x_n = (x @ from_x.T + biases[0]).chunk(3, dim=-1)             # (batch, width) each
    h_r, h_z, h_n = (h @ from_h.T + biases[1]).chunk(3, dim=-1)
    r, z = (x_r + h_r).sigmoid(), (x_z + h_z).sigmoid()
    n = torch.tanh(x_n + r * h_n)
    return (1 - z) * n + z * h                              # (batch, width)
