"""HTTP/1.1 connections of uvicorn with deadlines, a limit on their number, and JSON errors."""

import asyncio
from typing import cast

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from qkv.web.api_errors import ApiError
from qkv.web.limits import Limits
from qkv.web.responses import error_response, raw_security_headers


class LimitedProtocol(H11Protocol):
    """One connection; a client that is silent or slow is disconnected."""

    limits = Limits()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.opened, self.refused = self.loop.time(), False
        self.header_timer: asyncio.TimerHandle | None = None
        self.write_timer: asyncio.TimerHandle | None = None
        self.close_oldest()
        self.update_header_deadline()

    def data_received(self, data: bytes) -> None:
        if self.refused:  # discarded: closing a socket with unread data resets it
            return
        super().data_received(data)
        self.update_header_deadline()

    def connection_lost(self, exc: Exception | None) -> None:
        for timer in (self.header_timer, self.write_timer):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    # ---- deadlines

    def update_header_deadline(self) -> None:
        """Start the deadline where headers are expected; further bytes do not move it."""
        awaits_headers = self.conn.their_state is h11.IDLE and not self.refused
        if awaits_headers and self.header_timer is None:
            seconds = self.limits.header_seconds
            self.header_timer = self.loop.call_later(seconds, self.on_header_deadline)
        elif not awaits_headers and self.header_timer is not None:
            self.header_timer.cancel()
            self.header_timer = None

    def on_header_deadline(self) -> None:
        if self.conn.trailing_data[0]:
            self.refuse(ApiError(408, "The request did not arrive in time."))
        else:
            self.transport.abort()

    def timeout_keep_alive_handler(self) -> None:
        self.transport.close()

    def pause_writing(self) -> None:
        super().pause_writing()
        self.write_timer = self.loop.call_later(self.limits.write_seconds, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self.write_timer is not None:
            self.write_timer.cancel()

    # ---- number of connections

    def close_oldest(self) -> None:
        """Close the oldest connection without a complete request if there are too many."""
        if len(self.connections) <= self.limits.max_connections:
            return
        connections = cast(set[LimitedProtocol], self.connections)
        others = (other for other in connections if other is not self and not other.is_computing())
        oldest = min(others, key=lambda other: other.opened, default=self)
        oldest.transport.abort()
        self.connections.discard(oldest)

    def is_computing(self) -> bool:
        """Whether the request is complete and its response is not."""
        received = self.conn.their_state not in (h11.IDLE, h11.SEND_BODY, h11.ERROR)
        return received and self.cycle is not None and not self.cycle.response_complete

    def shutdown(self) -> None:
        """Finish the response that is being computed; close all other connections."""
        if self.is_computing():
            super().shutdown()
        else:
            self.transport.abort()

    # ---- errors

    def send_400_response(self, msg: str) -> None:
        self.refuse(ApiError(400, "The request is not valid HTTP."))

    def refuse(self, error: ApiError) -> None:
        """Send an error, unless a response has started, and close the connection."""
        self.refused = True
        self._unset_keepalive_if_required()
        if self.cycle is not None:  # the application must send nothing more
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            self.write_error(error)
        self.transport.write_eof()
        self.loop.call_later(self.limits.linger_seconds, self.transport.abort)

    def write_error(self, error: ApiError) -> None:
        response = error_response(error, close=True)
        headers = [*response.raw_headers, *raw_security_headers()]
        answers_head = self.conn.our_state is h11.SEND_RESPONSE and self.scope["method"] == "HEAD"
        events: list[h11.Event] = [
            h11.Response(status_code=error.status, headers=headers),
            h11.Data(data=b"" if answers_head else bytes(response.body)),
            h11.EndOfMessage(),
        ]
        self.transport.write(b"".join(self.conn.send(event) or b"" for event in events))
