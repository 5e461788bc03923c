"""Error of int8 products that would saturate 16-bit sums, against exact Python integers.

As a script it prints the errors of fbgemm's product with the instructions that the environment
allows, and whether the self-check accepts it: FBGEMM_ENABLE_INSTRUCTIONS=AVX2 python int8_errors.py
"""

import json
import random

import torch

from qkv.engine import int8
from qkv.errors import QkvError

SIGNS = {
    "all +": lambda n: [1] * n,
    "all -": lambda n: [-1] * n,
    "alternating": lambda n: [1, -1] * (n // 2),
    "in pairs": lambda n: [1, 1, -1, -1] * (n // 4),
    "random": lambda n: random.Random(0).choices([1, -1], k=n),
}


def exact_product(x: list[list[int]], weight: list[list[int]]) -> list[list[int]]:
    return [
        [sum(a * b for a, b in zip(row, column, strict=True)) for column in weight] for row in x
    ]


def relative_error(make, rows: int, inputs: int, max_weight: int) -> float:
    """Error relative to the largest output, of weights +-max_weight and activations +-127."""
    weight = [[max_weight * sign for sign in signs(inputs)] for signs in SIGNS.values()]
    x = [[127 * sign for sign in signs(inputs)] for signs in SIGNS.values()] * rows
    exact = torch.tensor(exact_product(x, weight), dtype=torch.float64)
    found = make(torch.tensor(weight, dtype=torch.float32), None)(
        torch.tensor(x, dtype=torch.float32)
    )
    return float((found - exact).abs().max() / exact.abs().max())


def accepted(make) -> bool:
    try:
        int8.check_int8(make)
    except QkvError:
        return False
    return True


def int8_product_8_bits(weight, bias):
    """The product with weights up to 127: exact only with VNNI."""
    before, int8.MAX_FBGEMM_WEIGHT = int8.MAX_FBGEMM_WEIGHT, 127
    try:
        return int8.int8_product(weight, bias)
    finally:
        int8.MAX_FBGEMM_WEIGHT = before


if __name__ == "__main__":
    makers = {"7 bits": int8.int8_product, "8 bits": int8_product_8_bits}
    print(
        json.dumps(
            {
                name: [
                    relative_error(make, 1, 256, 127),
                    relative_error(make, 5, 64, 63),
                    accepted(make),
                ]
                for name, make in makers.items()
            }
        )
    )
