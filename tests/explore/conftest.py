"""The tests of the explorer share their small models; pytest imports files by themselves, so they are put in reach here."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
