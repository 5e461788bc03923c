"""AttentionMask: which keys a query may attend to, and what is added to the scores.

See docs/explanation/model.md, "Attention mask".
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from torch import Tensor

Kernel = Callable[[Tensor, Tensor, Tensor, Tensor | None, bool], Tensor]  # q, k, v, mask, is_causal


@dataclass(eq=False)
class AttentionMask:
    """The mask of one attention: `allowed` (True = may attend, None = all keys), or `is_causal`.

    ALiBi has a bias, which is added to the scores.
    """

    allowed: Tensor | None = None  # (batch or 1, 1, query, key)
    is_causal: bool = False
    bias: Tensor | None = None  # (batch or 1, heads, query, key)

    @property
    def dense(self) -> "AttentionMask":
        """The mask of all pairs of query and key; another kind of mask computes fewer."""
        return self

    def attend(self, kernel: Kernel, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attention by this kernel, (batch, heads, query, v_head_dim)."""
        return kernel(q, k, v, self.for_kernel, self.is_causal)

    @cached_property
    def for_kernel(self) -> Tensor | None:
        """`allowed`; with a bias, the bias with -inf where a query may not attend."""
        if self.bias is None or self.allowed is None:
            return self.allowed if self.bias is None else self.bias
        return self.bias.masked_fill(~self.allowed, -math.inf)   # (batch or 1, heads, query, key)
