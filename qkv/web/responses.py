"""Error responses and the security headers of every response."""

import json

from starlette.responses import Response
from starlette.types import Message, Send

from qkv.web.api_errors import ApiError

SECURITY_HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
}


def error_response(error: ApiError, close: bool = False) -> Response:
    """The error as JSON; `close` ends the connection after it."""
    content = json.dumps(error.as_json(), ensure_ascii=False)
    headers = {"connection": "close"} if close else {}
    return Response(content, error.status, headers, "application/json")


def raw_security_headers() -> list[tuple[bytes, bytes]]:
    return [(name.encode(), value.encode()) for name, value in SECURITY_HEADERS.items()]


def with_security_headers(send: Send) -> Send:
    """A `send` that adds the security headers."""

    async def send_with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = [*message.get("headers", []), *raw_security_headers()]
            message = {**message, "headers": headers}
        await send(message)

    return send_with_headers
