"""Parity report of a GGUF export: the model against the file, read as llama.cpp reads it.

See docs/guides/import-export.md, "Parity report".
"""

from dataclasses import replace
from pathlib import Path

from qkv.checkpoint.durable import fingerprint
from qkv.checkpoint.gguf.reader import read_gguf
from qkv.checkpoint.parity import RELATIVE_TOLERANCE, ParityReport, compare, native_forward
from qkv.model.transformer import Transformer

# Relative to the largest logit.
TOLERANCES = {"float16": 0.01, "int8": 0.05}


def check_parity(model: Transformer, path: Path, dtype: str, n_inputs: int) -> ParityReport:
    """Compare model and file; greedy texts only in float32: quantization may change them."""
    name, files = "the file, read as llama.cpp reads it", {path.name: fingerprint(path)}
    report = compare(model.float(), name, native_forward(read_gguf(path)), n_inputs, files)
    if dtype == "float32":
        return report
    tolerance = report.tolerance * (TOLERANCES[dtype] / RELATIVE_TOLERANCE)
    n_same = n_inputs if report.max_difference <= tolerance else 0
    return replace(report, tolerance=tolerance, n_same=n_same, greedy=False)
