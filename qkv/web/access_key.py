"""Access key of a page: given in the URL once, then kept in a cookie."""

import hmac
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qs

from starlette.responses import Response
from starlette.types import Scope

COOKIE = "qkv_key"


def is_key(given: str | None, key: str) -> bool:
    """Compare in constant time."""
    return given is not None and hmac.compare_digest(given.encode(), key.encode())


def query_key(scope: Scope) -> str | None:
    found = parse_qs(scope.get("query_string", b"").decode("latin-1")).get("key")
    return found[0] if found else None


def cookie_key(cookies: str) -> str | None:
    try:
        found = SimpleCookie(cookies).get(COOKIE)
    except CookieError:
        return None
    return found.value if found else None


def redirect_with_cookie(key: str) -> Response:
    """Move the key from the URL into a cookie and redirect to the page."""
    cookie = f"{COOKIE}={key}; HttpOnly; SameSite=Strict; Path=/"
    return Response(status_code=303, headers={"location": "/", "set-cookie": cookie})
