"""Parity report of a GGUF export: the model against the file, read as llama.cpp reads it.

See docs/gguf.md, "Parity report".
"""

from pathlib import Path

from qkv.checkpoint.durable import fingerprint
from qkv.checkpoint.gguf.reader import read_gguf
from qkv.checkpoint.parity import RELATIVE_TOLERANCE, ParityReport, compare, native_forward
from qkv.model.transformer import Transformer

# Relative to the largest logit.
TOLERANCES = {"float32": RELATIVE_TOLERANCE, "float16": 0.01, "int8": 0.05}


def check_parity(model: Transformer, path: Path, dtype: str, n_inputs: int) -> ParityReport:
    """Compare model and file; greedy texts only in float32: quantization may change them."""
    model = model.float()
    max_difference, tolerance, n_same = compare(
        model.spec, native_forward(model), native_forward(read_gguf(path)), n_inputs
    )
    if dtype != "float32":
        tolerance *= TOLERANCES[dtype] / RELATIVE_TOLERANCE
        n_same = n_inputs if max_difference <= tolerance else 0
    name = "the file, read as llama.cpp reads it"
    return ParityReport(
        name,
        max_difference,
        tolerance,
        n_same,
        n_inputs,
        dtype == "float32",
        {path.name: fingerprint(path)},
    )
