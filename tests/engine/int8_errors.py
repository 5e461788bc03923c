"""Error of an int8 product whose 16-bit sums would saturate, against the exact product in Python's integers.

As a script it prints the errors of torch's product on the CPU that the environment allows, then whether the self-check
accepts it: FBGEMM_ENABLE_INSTRUCTIONS=AVX2 python int8_errors.py
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


def largest_error(make, rows: int, inputs: int, largest: int) -> float:
    """Of weights `largest` in size and activations 127 or -127 (the ends of 8 bits), in shares of the largest exact output."""
    weight = [[largest * sign for sign in signs(inputs)] for signs in SIGNS.values()]
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


def eight_bits(weight, bias):
    """The product with weights to 127, as it was before: exact with VNNI only."""
    before, int8.LARGEST_WEIGHT = int8.LARGEST_WEIGHT, 127
    try:
        return int8.int8_product(weight, bias)
    finally:
        int8.LARGEST_WEIGHT = before


if __name__ == "__main__":
    makers = {"7 bits": int8.int8_product, "8 bits": eight_bits}
    print(
        json.dumps(
            {
                name: [
                    largest_error(make, 1, 256, 127),
                    largest_error(make, 5, 64, 63),
                    accepted(make),
                ]
                for name, make in makers.items()
            }
        )
    )
