"""Fixtures for decoding tests: tiny encoder-decoder models."""

# ruff: noqa: E402, F401

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]  # for helper modules

from tiny_translators import (
    half_trained,
    half_trained_in_dtype,
    make_sources,
    random_model,
    step_backend,
)
