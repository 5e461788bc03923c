"""Request guard: host, origin and key checks, size and concurrency limits, security headers.

Requests for a foreign host name (DNS rebinding) and from other sites (CSRF) are refused.
See docs/guides/inspect.md.
"""

import hmac
from http.cookies import SimpleCookie
from typing import Any
from urllib.parse import parse_qs, urlsplit

from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from qkv.explore.api_error import ApiError
from qkv.explore.serialize import to_json

MAX_CONCURRENT_REQUESTS = 16
MAX_BODY_BYTES = 64 * 1024  # enough for 4,000 characters and a list of sentences
# Read from a body that is too long: browsers drop a response that comes before the body was read.
MAX_DRAINED_BYTES = 8 << 20
COOKIE = "qkv_key"
LOOPBACK = ("127.0.0.1", "localhost", "::1")

HEADERS = {
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


class Guard:
    """ASGI middleware that checks each request."""

    def __init__(self, inner: Any, key: str | None = None):
        self.inner, self.key, self.in_flight = inner, key, 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.inner(scope, receive, send)
            return
        headers = {
            name.decode("latin-1").lower(): value.decode("latin-1")
            for name, value in scope["headers"]
        }
        self.in_flight += 1
        try:
            self.check(scope, headers)
            if self.key and has_key(query_key(scope), self.key):
                await redirect_with_cookie(self.key)(scope, receive, send)
                return
            body = await read_body(receive)
            await self.inner(scope, replay(body, receive), with_headers(send))
        except ApiError as error:
            await error_response(error)(scope, receive, with_headers(send))
        finally:
            self.in_flight -= 1

    def check(self, scope: Scope, headers: dict[str, str]) -> None:
        """Check concurrency, host name, key and method."""
        if self.in_flight > MAX_CONCURRENT_REQUESTS:
            raise ApiError(503, "Too many concurrent requests; try again later.")
        if self.key is None and host_name(headers.get("host", "")) not in LOOPBACK:
            raise ApiError(
                421, "This page is served only under the name of this machine (127.0.0.1)."
            )
        if self.key is not None and not has_key(cookie_key(headers) or query_key(scope), self.key):
            raise ApiError(
                401, "The key is missing or wrong; open the address that the command printed."
            )
        if scope["method"] not in ("GET", "HEAD", "POST"):
            raise ApiError(405, "Only GET and POST are allowed.")
        if scope["method"] == "POST":
            self.check_post(headers)

    def check_post(self, headers: dict[str, str]) -> None:
        """Refuse cross-site requests: a form sends no JSON, and browsers send its origin."""
        origin, site = headers.get("origin"), headers.get("sec-fetch-site", "same-origin")
        cross_origin = origin is not None and urlsplit(origin).netloc != headers.get("host", "")
        if cross_origin or site not in ("same-origin", "none"):
            raise ApiError(403, "Only the page itself may send this request.")
        if headers.get("content-type", "").split(";")[0].strip().lower() != "application/json":
            raise ApiError(415, "Send JSON (content-type application/json).")


def host_name(host: str) -> str:
    """The host without its port: host_name("[::1]:80") == "::1"."""
    try:
        return (urlsplit(f"//{host}").hostname or "").lower()
    except ValueError:
        return ""


def has_key(given: str | None, key: str) -> bool:
    return given is not None and hmac.compare_digest(given.encode(), key.encode())


def query_key(scope: Scope) -> str | None:
    found = parse_qs(scope.get("query_string", b"").decode("latin-1")).get("key")
    return found[0] if found else None


def cookie_key(headers: dict[str, str]) -> str | None:
    try:
        found = SimpleCookie(headers.get("cookie", "")).get(COOKIE)
    except Exception:  # a malformed cookie
        return None
    return found.value if found else None


async def read_body(receive: Receive) -> bytes:
    """The body; one that is too long is drained first, because browsers drop an early response."""
    parts, n_bytes, more = [], 0, True
    while more and n_bytes <= MAX_DRAINED_BYTES:
        message = await receive()
        part = message.get("body", b"")
        n_bytes += len(part)
        if n_bytes <= MAX_BODY_BYTES:
            parts.append(part)
        more = message.get("more_body", False)
    if n_bytes > MAX_BODY_BYTES:
        raise ApiError(
            413,
            "The request is too long; at most {max_kb} KB are allowed.",
            max_kb=MAX_BODY_BYTES // 1024,
        )
    return b"".join(parts)


def replay(body: bytes, receive: Receive) -> Receive:
    """A `receive` that gives the body that was already read, then further messages."""
    first = iter([{"type": "http.request", "body": body, "more_body": False}])

    async def receive_body() -> Message:
        return next(first, None) or await receive()

    return receive_body


def with_headers(send: Send) -> Send:
    """A `send` that adds the security headers."""

    async def send_with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            extra = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
            message = {**message, "headers": [*message.get("headers", []), *extra]}
        await send(message)

    return send_with_headers


def error_response(error: ApiError) -> Response:
    return Response(to_json(error.as_json()), error.status, media_type="application/json")


def redirect_with_cookie(key: str) -> Response:
    """Move the key from the URL into a cookie and redirect to the page."""
    cookie = f"{COOKIE}={key}; HttpOnly; SameSite=Strict; Path=/"
    return Response(status_code=303, headers={"location": "/", "set-cookie": cookie})
