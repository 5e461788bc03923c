"""Fixtures for the tests of the engine: tiny translators."""

import sys
from pathlib import Path

sys.path[:0] = [
    str(Path(__file__).parent),
    str(Path(__file__).parents[1]),
]  # so that tests import the helpers beside them

from tiny_translators import half_trained, make_sources, random_model, steps_by  # noqa: E402, F401
