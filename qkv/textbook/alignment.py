"""Word alignment: the alignment error rate, and the loss that trains one attention head to align.

In: links as pairs (source word, target word); attention weights of one head. Out: one number each.
The plain form of qkv/evaluate/alignment_error.py and of qkv/train/guided_alignment.py.
"""

from collections.abc import Set

import torch
from torch import Tensor

Links = Set[tuple[int, int]]


def alignment_error_rate(predicted: Links, sure: Links, possible: Links) -> float:
    """AER = 1 - (|A & S| + |A & P|) / (|A| + |S|) (Och and Ney, 2003); every sure link is also possible."""
    possible = possible | sure
    return 1 - (len(predicted & sure) + len(predicted & possible)) / (len(predicted) + len(sure))


def guided_alignment_loss(weights: Tensor, gold: Tensor) -> Tensor:
    """- sum over target t and source s of gold[t, s] * log weights[t, s]; a row of `gold` sums to 1, or to 0 where nothing is asked."""
    loss = torch.zeros(())
    for t in range(weights.shape[0]):
        for s in range(weights.shape[1]):
            if gold[t, s] > 0:
                loss = loss - gold[t, s] * weights[t, s].log()
    return loss
