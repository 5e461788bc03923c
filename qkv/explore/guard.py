"""What stands before the page: who may ask, how much at once, and what every answer tells the browser.

In: requests. Out: those that may pass; the others get one sentence. The server listens on this machine only; names that
lead here from elsewhere (DNS rebinding) and forms of other sites are refused. Told in docs/explore.md, "Safety".
"""

import hmac
import json
from collections.abc import Awaitable, Callable, MutableMapping
from http.cookies import SimpleCookie
from typing import Any
from urllib.parse import parse_qs, urlsplit

from qkv.explore.problem import Problem

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

MOST_AT_ONCE = 16  # requests in flight
MOST_BYTES = 64 * 1024  # of a body: 4,000 characters and a list of sentences fit
DRAINED = (
    8 << 20
)  # of a body that is too long so much is read, so that the browser gets to hear the answer
COOKIE = "qkv_key"
LOOPBACK = ("127.0.0.1", "localhost", "::1")

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
}


class Guard:
    """An ASGI application around another one."""

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
                await welcome(self.key, send)
                return
            body = await whole_body(receive)
            await self.inner(scope, again(body, receive), with_headers(send))
        except Problem as problem:
            await refuse(problem, with_headers(send))
        finally:
            self.in_flight -= 1

    def check(self, scope: Scope, headers: dict[str, str]) -> None:
        """Who asks, from where, and whether there is room."""
        if self.in_flight > MOST_AT_ONCE:
            raise Problem(503, "Too many questions at once; try again in a moment.")
        if self.key is None and host_name(headers.get("host", "")) not in LOOPBACK:
            raise Problem(421, "This page answers only to the name of this machine (127.0.0.1).")
        if self.key is not None and not has_key(cookie_key(headers) or query_key(scope), self.key):
            raise Problem(
                401, "The key is missing or wrong: open the address that the command printed."
            )
        if scope["method"] not in ("GET", "HEAD", "POST"):
            raise Problem(405, "Only GET and POST are answered.")
        if scope["method"] == "POST":
            self.check_post(headers)

    def check_post(self, headers: dict[str, str]) -> None:
        """A form of another site sends no JSON, and says where it comes from."""
        origin, site = headers.get("origin"), headers.get("sec-fetch-site", "same-origin")
        elsewhere = origin is not None and urlsplit(origin).netloc != headers.get("host", "")
        if elsewhere or site not in ("same-origin", "none"):
            raise Problem(403, "Only the page itself may ask this.")
        if headers.get("content-type", "").split(";")[0].strip().lower() != "application/json":
            raise Problem(415, "Send JSON (content-type application/json).")


def host_name(host: str) -> str:
    """The name without its port: host_name("[::1]:80") == "::1"."""
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
    except Exception:  # a cookie that is none
        return None
    return found.value if found else None


async def whole_body(receive: Receive) -> bytes:
    """The body, if it is short enough; a long one is read on for a while, for an answer sent too early is lost."""
    parts, count, more = [], 0, True
    while more and count <= DRAINED:
        message = await receive()
        part = message.get("body", b"")
        count += len(part)
        if count <= MOST_BYTES:
            parts.append(part)
        more = message.get("more_body", False)
    if count > MOST_BYTES:
        raise Problem(
            413,
            "This is too long: at most {most_bytes} KB are read.",
            most_bytes=MOST_BYTES // 1024,
        )
    return b"".join(parts)


def again(body: bytes, receive: Receive) -> Receive:
    """The body that was read already, then whatever comes."""
    given = False

    async def give() -> MutableMapping[str, Any]:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return give


def with_headers(send: Send) -> Send:
    """Every answer carries the headers that keep the browser strict."""

    async def strict(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            extra = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
            message = {**message, "headers": [*message.get("headers", []), *extra]}
        await send(message)

    return strict


async def refuse(problem: Problem, send: Send) -> None:
    body = json.dumps(problem.as_json(), ensure_ascii=False).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": problem.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def welcome(key: str, send: Send) -> None:
    """The key moves from the address, which others may see, into a cookie that only this site reads."""
    cookie = f"{COOKIE}={key}; HttpOnly; SameSite=Strict; Path=/"
    headers = [(b"location", b"/"), (b"set-cookie", cookie.encode()), (b"content-length", b"0")]
    await send({"type": "http.response.start", "status": 303, "headers": headers})
    await send({"type": "http.response.body", "body": b""})
