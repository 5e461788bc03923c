"""Put this folder, tests/web and tests/cli on sys.path, for the modules of the fuzz tests."""

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "web"), str(HERE.parent / "cli")]
