"""Limits of a web server: sizes, counts and deadlines."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """Limits per server; a request that exceeds one gets an error or its connection is closed."""

    max_body_bytes: int = 64 * 1024  # enough for 4,000 characters and a list of sentences
    max_concurrent_requests: int = 16  # being computed; others wait
    queue_seconds: float = 20  # a request that waits longer gets a 503
    max_connections: int = 256  # the oldest connection without a complete request is closed
    header_seconds: float = 15  # from the connection, or the first byte, to the end of the headers
    body_seconds: float = 15  # from the end of the headers to the end of the body
    write_seconds: float = 60  # a client that does not read its response
    linger_seconds: float = 2  # data that is discarded after an error response, to avoid a reset
    keep_alive_seconds: int = 5  # between two requests on a connection
