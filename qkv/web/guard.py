"""Request guard: host, origin and key checks, size and concurrency limits, security headers.

Requests for a foreign host name (DNS rebinding) and from other sites (CSRF) are refused.
See docs/guides/inspect.md.
"""

import asyncio
from contextlib import ExitStack, suppress
from typing import Any

from starlette.requests import ClientDisconnect
from starlette.types import Message, Receive, Scope, Send

from qkv.web.access_key import cookie_key, is_key, query_key, redirect_with_cookie
from qkv.web.api_errors import ApiError
from qkv.web.hosts import LOOPBACK, Host, is_same_origin, required_host
from qkv.web.limits import Limits
from qkv.web.request_body import RequestBody, body_too_long, replay
from qkv.web.responses import error_response, with_security_headers

METHODS = ("GET", "HEAD", "POST")
# Headers that the checks rely on: a second value could hide the first.
SINGLE_HEADERS = {"host", "origin", "content-type", "content-length", "sec-fetch-site"}

Headers = dict[str, str]


class Guard:
    """ASGI middleware that checks each request; with `key`, requests must carry it."""

    def __init__(self, inner: Any, key: str | None = None, limits: Limits | None = None):
        self.inner, self.key, self.limits = inner, key, limits or Limits()
        self.slots = asyncio.Semaphore(self.limits.max_concurrent_requests)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            assert scope["type"] == "lifespan", "web sockets are off in server.py"
            await self.inner(scope, receive, send)
            return
        send = with_security_headers(send)
        body = RequestBody(scope, receive, self.limits.body_seconds)
        try:
            await self.respond(scope, body, send)
        except ApiError as error:
            with suppress(ClientDisconnect):
                await body.discard()
                await error_response(error, close=not body.complete)(scope, receive, send)
        except ClientDisconnect:
            return

    async def respond(self, scope: Scope, body: RequestBody, send: Send) -> None:
        """Check the request, read its body and pass it on."""
        headers = read_headers(scope)
        self.check(scope, headers)
        content = await body.read(self.limits.max_body_bytes)
        receive = replay(content, body.receive)
        if self.key and scope["method"] == "GET" and is_key(query_key(scope), self.key):
            await redirect_with_cookie(self.key)(scope, receive, send)
            return
        await self.compute(scope, receive, send)

    async def compute(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the application; a request counts until its response starts, not while it is sent."""
        try:
            async with asyncio.timeout(self.limits.queue_seconds):
                await self.slots.acquire()
        except TimeoutError:
            raise ApiError(503, "Too many concurrent requests; try again later.") from None

        async def send_and_release(message: Message) -> None:
            slot.close()
            await send(message)

        with ExitStack() as slot:
            slot.callback(self.slots.release)
            await self.inner(scope, receive, send_and_release)

    def check(self, scope: Scope, headers: Headers) -> None:
        """Check host name, key, method, origin and declared size."""
        host = required_host(headers.get("host", ""))
        if self.key is None and host.name not in LOOPBACK:
            raise ApiError(
                421, "This page is served only under the name of this machine (127.0.0.1)."
            )
        if self.key is not None and not has_key(scope, headers, self.key):
            raise ApiError(
                401, "The key is missing or wrong; open the address that the command printed."
            )
        if scope["method"] not in METHODS:
            raise ApiError(405, "Only GET and POST are allowed.")
        check_sender(scope, headers, host)
        if scope["method"] == "POST":
            check_content_type(headers)
        if int(headers.get("content-length", "0")) > self.limits.max_body_bytes:
            raise body_too_long(self.limits.max_body_bytes)


def read_headers(scope: Scope) -> Headers:
    """The headers by name; an error if one that is checked occurs twice."""
    headers: Headers = {}
    for raw_name, value in scope["headers"]:
        name = raw_name.decode("latin-1").lower()
        if name in headers and name in SINGLE_HEADERS:
            raise ApiError(400, "The header {name} occurs twice.", name=name)
        headers[name] = value.decode("latin-1")
    return headers


def has_key(scope: Scope, headers: Headers, key: str) -> bool:
    """Whether the cookie or the URL has the key."""
    return is_key(cookie_key(headers.get("cookie", "")), key) or is_key(query_key(scope), key)


def check_sender(scope: Scope, headers: Headers, host: Host) -> None:
    """Refuse requests of other sites; browsers say where a request comes from."""
    origin, site = headers.get("origin"), headers.get("sec-fetch-site", "none")
    cross_origin = origin is not None and not is_same_origin(origin, host)
    cross_site = site not in ("same-origin", "none") and not follows_link(scope, headers)
    if cross_origin or cross_site:
        raise ApiError(403, "Only the page itself may send this request.")


def follows_link(scope: Scope, headers: Headers) -> bool:
    """Whether a user follows a link to the page: the sender cannot read the response."""
    mode, destination = headers.get("sec-fetch-mode"), headers.get("sec-fetch-dest")
    opens_page = scope["method"] == "GET" and scope["path"] == "/"
    return opens_page and mode == "navigate" and destination == "document"


def check_content_type(headers: Headers) -> None:
    """A form of another site cannot send JSON."""
    if headers.get("content-type", "").split(";")[0].strip().lower() != "application/json":
        raise ApiError(415, "Send JSON (content-type application/json).")
