"""Put this folder on sys.path: the tests share small_explorers.py and browser.py."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="module")
def browser():
    from browser import chromium

    with chromium() as launched:
        yield launched
