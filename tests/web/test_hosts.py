"""Host and Origin headers are parsed strictly."""

import pytest

from qkv.web.api_errors import ApiError
from qkv.web.hosts import Host, is_same_origin, parse_host


@pytest.mark.parametrize(
    ("text", "host"),
    [
        ("localhost", Host("localhost", None)),
        ("LOCALHOST:80", Host("localhost", 80)),
        ("127.0.0.1:65535", Host("127.0.0.1", 65535)),
        ("[::1]", Host("::1", None)),
        ("[0:0:0:0:0:0:0:1]:8321", Host("::1", 8321)),
    ],
)
def test_a_host_has_a_name_and_may_have_a_port(text, host):
    assert parse_host(text) == host


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[",
        "[]",
        "[::1",
        "::1",
        "[::g]",
        "[1]",
        "a@localhost",
        "localhost:",
        "localhost:x",
        "localhost:65536",
        "localhost:-1",
        "localhost:٣",
        "localhost/",
        "localhost?x",
        "a b",
        "a,b",
        "localhost\\",
        "locälhost",
        "localhost:80:80",
        " localhost",
        "localhost\n",
        "%6cocalhost",
    ],
)
def test_a_malformed_host_is_none(text):
    assert parse_host(text) is None


def test_origins_are_compared_by_name_and_port():
    assert is_same_origin("http://LOCALHOST:8321", Host("localhost", 8321))
    assert is_same_origin("http://localhost", Host("localhost", 80))
    assert is_same_origin("https://my.host", Host("my.host", None))
    for origin in (
        "http://localhost:1",
        "null",
        "http://evil.example:8321",
        "file://localhost:8321",
    ):
        assert not is_same_origin(origin, Host("localhost", 8321)), origin


@pytest.mark.parametrize(
    "origin", ["", "http://[", "localhost", "http://", "http://a@b", "//a", "http://a/"]
)
def test_a_malformed_origin_is_an_error(origin):
    with pytest.raises(ApiError) as error:
        is_same_origin(origin, Host("localhost", 80))
    assert (error.value.status, error.value.texts.en) == (
        400,
        f"The Origin header is malformed: '{origin}'.",
    )
