"""Web server: uvicorn with the limits of limits.py."""

import uvicorn

from qkv.web.guard import Guard
from qkv.web.protocol import LimitedProtocol


def make_server(guard: Guard) -> uvicorn.Server:
    """The server of a guarded application; protocol errors are not logged."""
    protocol = type("Protocol", (LimitedProtocol,), {"limits": guard.limits})
    config = uvicorn.Config(
        guard,
        http=protocol,
        ws="none",
        lifespan="off",
        log_level="error",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        backlog=128,  # connections that are accepted at once
        timeout_keep_alive=guard.limits.keep_alive_seconds,
    )
    return uvicorn.Server(config)
