"""A convolution before the layers that attend, as one product: for new tokens, or for whole rows at once.

In: (rows * new, d_model), and the tokens before them. Out: the same, one block further; equal to the block's own (proven in
tests/engine/test_prompt_stepper.py). Told in docs/performance.md, "Decoding".
"""

from torch import Tensor

from qkv.engine.packed_layer import FastBlock
from qkv.engine.packed_weights import Make, product
from qkv.model import spec as s
from qkv.model.block import Block
from qkv.model.mixers import ConvolutionMixer


class FastConvolution(FastBlock):
    """y_t = sum over the last `width` places of W_j x_(t+j): their vectors side by side, times all W_j in one matrix."""

    def __init__(self, block: Block, norm: s.Norm, make: Make = product):
        super().__init__(block, norm, make)
        mixer = block.attn.branch
        assert isinstance(mixer, ConvolutionMixer) and mixer.conv.bias is not None
        weight = mixer.conv.weight.detach().transpose(1, 2)                         # (outputs, width, d_model)
        weight = weight if self.gains[0] is None else weight * self.gains[0]
        self.width, self.mix = weight.shape[1], make(weight.flatten(1), mixer.conv.bias.detach())

    def store(self, rows: int, room: int, like: Tensor) -> Tensor:
        """What the convolution reads of each cell, and nothing before the first: (rows, width - 1 + room, d_model)."""
        return like.new_zeros(rows, self.width - 1 + room, like.shape[1])

    def __call__(self, x: Tensor, store: Tensor, first: int, real: Tensor | None = None) -> Tensor:
        """The new tokens of each row, of which the first gets this cell; `real` (rows, new), None: there is no padding."""
        return self.add(-1, self.add(0, x, self.gather, store, first, real), self.think)

    def gather(self, x: Tensor, store: Tensor, first: int, real: Tensor | None) -> Tensor:
        """What each token gets from itself and those before it."""
        new = x.unflatten(0, (len(store), -1))                                      # (rows, new, d_model)
        end = first + self.width - 1 + new.shape[1]
        store[:, first + self.width - 1 : end] = new if real is None else new * real[..., None]
        near = store[:, first:end].unfold(1, self.width, 1)                         # (rows, new, d_model, width)
        return self.mix(near.transpose(2, 3).reshape(len(x), -1))
