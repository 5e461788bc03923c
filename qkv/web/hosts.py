"""Host and Origin headers: strict parsing, loopback names, same-origin comparison."""

import re
from ipaddress import AddressValueError, IPv6Address
from typing import NamedTuple

from qkv.web.api_errors import ApiError, shortened

LOOPBACK = ("127.0.0.1", "localhost", "::1")
DEFAULT_PORTS = {"http": 80, "https": 443}
_HOST = re.compile(
    r"(?:\[(?P<ipv6>[0-9a-f:.]{2,45})\]|(?P<name>[a-z0-9_.-]{1,253}))(?::(?P<port>\d{1,5}))?",
    re.ASCII | re.IGNORECASE,
)
_ORIGIN = re.compile(r"(?P<scheme>[a-z][a-z0-9+.-]{0,30})://(?P<host>.+)", re.ASCII | re.IGNORECASE)


class Host(NamedTuple):
    """A host name in lower case, and the port if there is one."""

    name: str
    port: int | None


def parse_host(text: str) -> Host | None:
    """The host of a Host header, None if it is malformed.

    >>> parse_host("[::1]:80")
    Host(name='::1', port=80)
    >>> parse_host("user@localhost")
    """
    match = _HOST.fullmatch(text)
    if match is None or int(match["port"] or 0) > 65535:
        return None
    if match["name"]:
        name = match["name"].lower()
    else:
        try:
            name = IPv6Address(match["ipv6"]).compressed
        except AddressValueError:
            return None
    return Host(name, int(match["port"]) if match["port"] else None)


def required_host(text: str) -> Host:
    """The host of a request; a missing or malformed one is an error."""
    host = parse_host(text)
    if host is None:
        raise ApiError(400, "The Host header is malformed: '{host}'.", host=shortened(text))
    return host


def is_same_origin(origin: str, host: Host) -> bool:
    """Whether an Origin header names the host of the request; a malformed one is an error."""
    if origin == "null":  # a sandboxed frame or a file
        return False
    match = _ORIGIN.fullmatch(origin)
    sender = parse_host(match["host"]) if match else None
    if match is None or sender is None:
        raise ApiError(400, "The Origin header is malformed: '{origin}'.", origin=shortened(origin))
    default_port = DEFAULT_PORTS.get(match["scheme"].lower())
    return default_port is not None and (
        (sender.name, sender.port or default_port) == (host.name, host.port or default_port)
    )
