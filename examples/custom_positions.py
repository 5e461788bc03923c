"""A position encoding of your own: train a translator with it, save it, load it, translate.

python examples/custom_positions.py [STEPS]
"""

import sys

import torch
from torch import Tensor

import qkv
from qkv.data.builtin import builtin_pairs
from qkv.model.positions import NoPositions
from qkv.train import TranslateRecipe, run

CUSTOM = ["custom_positions:BinaryPositions"]  # the parts that the model may import


class BinaryPositions(NoPositions):
    """Add the binary digits of each position, as -1 and 1, to the first dimensions."""

    def __init__(self, d_model: int, bits: int = 8):
        super().__init__()
        self.bits = bits

    def forward(self, x: Tensor, position_ids: Tensor) -> Tensor:
        digits = position_ids[..., None] >> torch.arange(self.bits, device=x.device) & 1
        return torch.cat([x[..., : self.bits] + 2 * digits - 1, x[..., self.bits :]], dim=-1)


if __name__ == "__main__":
    positions = {"kind": "custom", "path": CUSTOM[0], "arguments": {"bits": 6}}
    model = {"preset": "seq2seq", "layers": 2, "d_model": 128, "n_heads": 4, "positions": positions}
    recipe = TranslateRecipe(model=model, vocab_size=2_000, steps=int([*sys.argv, 300][1]))
    train, held_out = ([(p.source, p.target) for p in pairs] for pairs in builtin_pairs())
    trained = run(recipe, train, out="runs/custom", custom=CUSTOM)
    loaded = qkv.load("runs/custom", task="translate", custom=CUSTOM)
    for source, target in held_out[:5]:
        print(f"{loaded(source)} = {trained(source)}   (reference: {target})")
