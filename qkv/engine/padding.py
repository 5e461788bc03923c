"""Prompts of different length in one batch.

In: lists of ids. Out: one tensor whose rows all end at the right edge, and which of its ids are real, so that the newest
token of each row stands in the last column. Told in docs/generation.md, "From prompt to text".
"""

import torch
from torch import Tensor


def left_padded(prompts: list[list[int]], device: torch.device) -> tuple[Tensor, Tensor | None]:
    """Ids (rows, longest) that all end at the right edge, and which are real; None where all are: no mask is needed."""
    longest = max(map(len, prompts))
    assert min(map(len, prompts)) >= 1, "a prompt has at least one token"
    ids = torch.tensor([[0] * (longest - len(prompt)) + prompt for prompt in prompts], device=device)
    gaps = torch.tensor([longest - len(prompt) for prompt in prompts], device=device)
    if not gaps.any():
        return ids, None
    return ids, torch.arange(longest, device=device) >= gaps[:, None]
