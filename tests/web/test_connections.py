"""Idle, slow and malformed connections to a server process; others still get their answers."""

import json
import socket
import struct
from contextlib import ExitStack

import pytest
from explorer_process import ExplorerProcess, read_all

from qkv.web.responses import SECURITY_HEADERS

HOST = b"Host: 127.0.0.1\r\n"
JSON = HOST + b"Content-Type: application/json\r\n"
HALF_HEADERS = b"GET /api/model HTTP/1.1\r\nHost: 127."
HALF_BODY = b"POST /api/pass HTTP/1.1\r\n" + JSON + b"Content-Length: 99\r\n\r\n{"
HALF_CHUNK = b"POST /api/pass HTTP/1.1\r\n" + JSON + b"Transfer-Encoding: chunked\r\n\r\nff\r\n{"
NEVER_READ = b"GET /page/words.js HTTP/1.1\r\n" + HOST + b"\r\n"


@pytest.fixture(scope="module")
def server():
    with ExplorerProcess() as started:
        yield started
        assert started.log() == ""


@pytest.fixture(scope="module")
def impatient_server():
    """Short deadlines."""
    with ExplorerProcess(header_seconds=0.5, body_seconds=0.5, write_seconds=0.5) as started:
        yield started
        assert started.log() == ""


def check_error(response: bytes, status: int) -> dict[str, str]:
    """The message of an error response, which has all headers."""
    head, _, content = response.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 %d " % status), response[:200]
    headers = dict(line.split(": ", 1) for line in head.decode().lower().splitlines()[1:])
    assert headers["content-type"].startswith("application/json")
    for name, value in SECURITY_HEADERS.items():
        assert headers[name] == value.lower()
    return json.loads(content)["error"]


def test_200_idle_and_slow_connections_do_not_keep_others_out(server):
    with ExitStack() as stack:
        for sent in (b"", HALF_HEADERS, HALF_BODY, HALF_CHUNK, NEVER_READ):
            for _ in range(40):
                stack.enter_context(server.connect(sent))
        assert server.ask()[0] == 200
        assert (
            server.ask("POST", "/api/pass", b'{"text": "a"}', Content_Type="application/json")[0]
            == 200
        )
        assert server.open_files() > 200  # they are still open


def test_more_connections_than_the_limit_close_the_oldest(server):
    with ExitStack() as stack:
        connections = [stack.enter_context(server.connect(HALF_HEADERS)) for _ in range(600)]
        assert server.ask()[0] == 200
        assert server.open_files() < 400
        assert read_all(connections[0]) == b""  # closed


@pytest.mark.parametrize("sent", [HALF_HEADERS, HALF_BODY, HALF_CHUNK])
def test_a_request_that_does_not_arrive_in_time_gets_a_408(impatient_server, sent):
    with impatient_server.connect(sent) as connection:
        message = check_error(read_all(connection), 408)
    assert message == {"en": "The request did not arrive in time.", "zh": "请求未能及时到达。"}


def test_a_silent_connection_is_closed(impatient_server):
    with impatient_server.connect() as connection:
        assert read_all(connection) == b""


def test_further_bytes_do_not_extend_the_deadline(impatient_server):
    with impatient_server.connect(b"GET / HTTP/1.1\r\n") as connection:
        connection.settimeout(0.1)
        for _ in range(600):  # bounded: 60 s
            try:
                response = connection.recv(65536)
                break
            except TimeoutError:
                connection.sendall(b"X-A: b\r\n")
        check_error(response + read_all(connection), 408)


@pytest.mark.parametrize("n_bytes", [70_000, 1_000_000, 50_000_000])
@pytest.mark.parametrize("connection", ["close", "keep-alive"])
def test_a_body_that_is_too_long_gets_a_413_without_a_reset(server, n_bytes, connection):
    head = b"POST /api/pass HTTP/1.1\r\n" + JSON + b"Connection: %s\r\n" % connection.encode()
    with server.connect(head + b"Content-Length: %d\r\n\r\n" % n_bytes) as sender:
        sender.sendall(bytes(n_bytes))
        sender.shutdown(socket.SHUT_WR) if connection == "keep-alive" else None
        error = check_error(read_all(sender), 413)
    assert error["en"] == "The request is too long; at most 64 KB are allowed."


def test_a_client_that_waits_for_100_continue_gets_its_413_at_once(server):
    head = b"POST /api/pass HTTP/1.1\r\n" + JSON + b"Expect: 100-continue\r\n"
    with server.connect(head + b"Content-Length: 99999999\r\n\r\n") as connection:
        check_error(read_all(connection), 413)


@pytest.mark.parametrize(
    "request_line",
    [
        b"GET",
        b"GET /",
        b"\x00\xff",
        b"GET / HTTP/x",
        b"GET /\x80 HTTP/1.1",
        b"\r\n\r\n\x16\x03\x01",
    ],
)
def test_malformed_http_gets_a_400_with_all_headers(server, request_line):
    with server.connect(request_line + b"\r\n" + HOST + b"\r\n" + bytes(100_000)) as connection:
        error = check_error(read_all(connection), 400)
    assert error == {"en": "The request is not valid HTTP.", "zh": "请求不是有效的 HTTP。"}


def test_a_malformed_chunk_gets_a_400(server):
    head = b"POST /api/pass HTTP/1.1\r\n" + JSON + b"Transfer-Encoding: chunked\r\n\r\n"
    with server.connect(head + b"zz\r\n") as connection:
        check_error(read_all(connection), 400)


@pytest.mark.parametrize(
    ("header", "status"),
    [
        (b"Origin: http://[", 400),
        (b"Origin: null", 403),
        (b"Origin: http://127.0.0.1:1", 403),
        (b"Host: 127.0.0.1", 400),  # a second one
        (b"Sec-Fetch-Site: none\r\nSec-Fetch-Site: cross-site", 400),
        (b"Sec-Fetch-Site: cross-site", 403),
        (b"Sec-Fetch-Site: same-site", 403),
        (
            b"Sec-Fetch-Site: cross-site\r\nSec-Fetch-Mode: navigate\r\nSec-Fetch-Dest: document",
            403,
        ),
    ],
)
def test_requests_of_other_sites_are_refused_with_all_headers(server, header, status):
    head = b"GET /api/model HTTP/1.1\r\nConnection: close\r\n" + HOST + header + b"\r\n\r\n"
    with server.connect(head) as connection:
        check_error(read_all(connection), status)


def test_a_link_of_another_site_opens_the_page_but_no_frame(server):
    link = {"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "navigate"}
    assert server.ask("GET", "/", **link, Sec_Fetch_Dest="document")[0] == 200
    assert server.ask("GET", "/", **link, Sec_Fetch_Dest="iframe")[0] == 403


def test_connections_that_are_reset_leave_nothing_behind(server):
    before = server.open_files()
    for sent in (b"", HALF_HEADERS, HALF_BODY, HALF_CHUNK, NEVER_READ) * 10:
        connection = server.connect(sent)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.close()
    for _ in range(200):
        server.ask()
        if server.open_files() <= before:
            break
    assert server.open_files() <= before


def test_a_stopped_server_does_not_wait_for_slow_clients():
    with ExplorerProcess() as server, ExitStack() as stack:
        for sent in (b"", HALF_HEADERS, HALF_BODY, NEVER_READ):
            stack.enter_context(server.connect(sent))
        assert server.ask()[0] == 200
        server.process.terminate()
        server.process.wait(10)  # body_seconds is 15
        assert server.log() == ""
