"""Put this folder and tests/explore on sys.path, for explorer_process.py and small_explorers.py."""

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "explore")]
