"""Proof that a GGUF file says what our model says: the same random inputs through both.

In: our model and the file. Out: the report of parity.py; the other side is the file, read as llama.cpp reads it.
Told in docs/gguf.md, "The report".
"""

from pathlib import Path

from qkv.checkpoint.durable import fingerprint
from qkv.checkpoint.gguf.reader import read_gguf
from qkv.checkpoint.parity import ROUNDING, Report, compare, our_answer
from qkv.model.transformer import Transformer

COARSE = {
    "float32": ROUNDING,
    "float16": 0.01,
    "int8": 0.05,
}  # of the largest logit: what fewer bits may cost


def check_parity(model: Transformer, path: Path, dtype: str, n_inputs: int) -> Report:
    """With fewer bits texts may differ: then they are not compared, and the difference is the proof."""
    model = model.float()
    largest, tolerance, n_same = compare(
        model.spec, our_answer(model), our_answer(read_gguf(path)), n_inputs
    )
    if dtype != "float32":
        tolerance *= COARSE[dtype] / ROUNDING
        n_same = n_inputs if largest <= tolerance else 0
    name = "the file, read as llama.cpp reads it"
    return Report(
        name,
        largest,
        tolerance,
        n_same,
        n_inputs,
        dtype == "float32",
        {path.name: fingerprint(path)},
    )
