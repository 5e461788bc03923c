"""Word alignment: the alignment error rate, and the guided-alignment loss of one attention head.

The fast versions are qkv/evaluate/alignment_error.py and qkv/train/guided_alignment.py.
"""

from collections.abc import Set

import torch
from torch import Tensor

Links = Set[tuple[int, int]]  # pairs (source word, target word)


def alignment_error_rate(predicted: Links, sure_links: Links, possible_links: Links) -> float:
    """AER = 1 - (|A & S| + |A & P|) / (|A| + |S|) (Och and Ney, 2003); S is a subset of P."""
    possible_links = possible_links | sure_links
    matches = len(predicted & sure_links) + len(predicted & possible_links)
    return 1 - matches / (len(predicted) + len(sure_links))


def guided_alignment_loss(weights: Tensor, gold: Tensor) -> Tensor:
    """- sum over target t and source s of gold[t, s] * log weights[t, s].

    A row of `gold` sums to 1, or to 0 for a target word without links.
    """
    loss = torch.zeros(())
    for t in range(weights.shape[0]):
        for s in range(weights.shape[1]):
            if gold[t, s] > 0:
                loss = loss - gold[t, s] * weights[t, s].log()
    return loss
