"""The loss of a language model with float and with int8 weights.

See docs/explanation/performance.md.
"""

import math

from torch import Tensor
from torch.nn.functional import cross_entropy

from qkv.engine.packed_model import PackedModel
from qkv.model.eval_mode import eval_mode
from qkv.model.transformer import Transformer


def int8_loss(model: Transformer, ids: Tensor) -> tuple[float, float]:
    """Mean negative log-likelihood per token of (rows, length) ids, with float and int8 weights.

    Perplexity is its exponential.
    """
    with eval_mode(model):
        packed, int8 = PackedModel.of(model), PackedModel.of(model, int8=True)
        return mean_loss(packed, ids), mean_loss(int8, ids)


def mean_loss(packed: PackedModel, ids: Tensor) -> float:
    """Mean negative log-likelihood of all tokens but the first of each row."""
    if ids.shape[1] < 2:
        return math.nan
    # One row at a time: the logits of all rows would not fit into memory.
    sums = [
        cross_entropy(packed.all_logits(row[:-1].tolist()).double(), row[1:], reduction="sum")
        for row in ids
    ]
    return sum(map(float, sums)) / (ids.numel() - len(ids))
