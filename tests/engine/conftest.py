"""Fixtures for engine tests: tiny encoder-decoder models."""

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]  # for helper modules

from tiny_translators import half_trained, make_sources, random_model, step_backend  # noqa: E402, F401
