"""HTTP requests to the explorer: those of tests/web/request_fuzz.py, to a server process."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

from explorer_process import ExplorerProcess
from fuzz_readers import Target
from request_fuzz import random_request
from test_request_fuzz import open_pass, send

MAX_KB = 1_000_000  # resident memory of the server


@contextmanager
def request_targets(folder: Path) -> Iterator[list[Target]]:
    """A server; each input is a request, in a file."""
    folder.mkdir()
    path = folder / "request"
    with ExplorerProcess() as server:

        def read() -> None:
            content = path.read_bytes()
            assert 500 not in send(server, content), "500 Internal Server Error"
            assert server.log() == "", server.log()[-500:]
            assert server.memory_kb() < MAX_KB, f"{server.memory_kb()} KB of memory"

        yield [Target(path, open_pass(server).encode(), read)]


def mutate_request(rng: Random, pass_id: bytes) -> bytes:
    return random_request(rng, pass_id.decode())
