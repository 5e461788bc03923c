"""Put this folder on sys.path: the tests share small_explorers.py and browser.py."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
