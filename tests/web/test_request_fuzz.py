"""Random requests to a server process: no reply of 500, no traceback, no growing memory."""

import random
import re
import socket
from collections import Counter

import pytest
from explorer_process import ExplorerProcess
from request_fuzz import random_request

WARM_UP = 1_000  # requests after which memory is measured first
MAX_GROWTH_KB = 30_000


def open_pass(server: ExplorerProcess) -> str:
    body, headers = b'{"text": "lower"}', {"Content_Type": "application/json"}
    content = server.ask("POST", "/api/pass", body, **headers)[2]
    return re.search(rb'"id": ?"([0-9a-f]{12})"', content)[1].decode()


def send(server: ExplorerProcess, request: bytes) -> list[int]:
    """The statuses of the responses, after the client's half of the connection is closed."""
    with server.connect() as connection:
        try:
            connection.sendall(request)
            connection.settimeout(0.05)
            received = read_some(connection)
        except OSError:  # the server closed the connection
            return []
    return [int(status) for status in re.findall(rb"(?:^|\n|\})HTTP/1\.1 (\d{3}) ", received)]


def read_some(connection: socket.socket) -> bytes:
    parts = []
    try:
        while part := connection.recv(1 << 20):
            parts.append(part)
    except TimeoutError:  # an incomplete request, or a connection that is kept alive
        pass
    return b"".join(parts)


def fuzz(n_requests: int, seed: int, **options) -> Counter:
    """Send the requests and check the server; returns how often each status occurred."""
    rng, statuses = random.Random(seed), Counter()
    with ExplorerProcess(**options) as server:
        pass_id = open_pass(server) if "key" not in options else "0" * 12
        for index in range(n_requests):
            if index == WARM_UP:
                memory = server.memory_kb()
            if index % 500 == 0 and "key" not in options:
                pass_id = open_pass(server)
            statuses.update(send(server, random_request(rng, pass_id)))
        assert server.memory_kb() - memory < MAX_GROWTH_KB
        assert server.log() == ""
    assert statuses[500] == 0 and sum(statuses.values()) > n_requests / 3, statuses
    return statuses


def test_random_requests_get_no_500_and_no_traceback():
    statuses = fuzz(3_000, seed=1)
    assert {200, 400, 403, 404, 405, 413, 415, 422} <= set(statuses), statuses


def test_random_requests_without_the_key_are_refused():
    statuses = fuzz(1_200, seed=2, key="secret12345")
    assert set(statuses) <= {100, 400, 401, 408}


@pytest.mark.slow
def test_100_000_random_requests_get_no_500_and_no_traceback():
    print(sorted(fuzz(100_000, seed=3).items()))
