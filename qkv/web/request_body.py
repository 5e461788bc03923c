"""Request bodies: read within a size limit and a deadline, or discarded."""

import asyncio
from contextlib import suppress

from starlette.requests import ClientDisconnect
from starlette.types import Message, Receive, Scope

from qkv.web.api_errors import ApiError


class RequestBody:
    """The body of one request; `seconds` is the deadline for all of it."""

    def __init__(self, scope: Scope, receive: Receive, seconds: float):
        self.receive = receive
        # Such a client sends its body after "100 Continue", which the first `receive` sends.
        self.unsent = any(name == b"expect" for name, _ in scope["headers"])
        self.deadline = asyncio.get_running_loop().time() + seconds
        self.complete = False

    async def read(self, max_bytes: int) -> bytes:
        """The body; an error if it is too long or late."""
        content = bytearray()
        try:
            async with asyncio.timeout_at(self.deadline):
                while not self.complete:
                    content += await self.next_part()
                    if len(content) > max_bytes:
                        raise body_too_long(max_bytes)
        except TimeoutError:
            raise ApiError(408, "The request did not arrive in time.") from None
        return bytes(content)

    async def discard(self) -> None:
        """Read the rest until the deadline: closing a socket with unread data resets it."""
        with suppress(TimeoutError):
            async with asyncio.timeout_at(self.deadline):
                while not self.complete and not self.unsent:
                    await self.next_part()

    async def next_part(self) -> bytes:
        self.unsent = False
        message = await self.receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        self.complete = not message.get("more_body", False)
        return bytes(message.get("body", b""))


def body_too_long(max_bytes: int) -> ApiError:
    max_kb = max_bytes // 1024
    return ApiError(413, "The request is too long; at most {max_kb} KB are allowed.", max_kb=max_kb)


def replay(content: bytes, receive: Receive) -> Receive:
    """A `receive` that gives the body that was already read, then further messages."""
    first = iter([{"type": "http.request", "body": content, "more_body": False}])

    async def receive_content() -> Message:
        return next(first, None) or await receive()

    return receive_content
