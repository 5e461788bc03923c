"""Random requests, seeded: valid ones, mutated ones, and arbitrary bytes."""

import json
import random

METHODS = ["GET", "POST", "HEAD", "PUT", "OPTIONS", "get", "G\x00T", "", "CONNECT", "PRI"]
VERSIONS = ["HTTP/1.1", "HTTP/1.1", "HTTP/1.1", "HTTP/1.0", "HTTP/2.0", "HTTP/1.", "", "http/1.1"]
PATHS = [
    *("/", "/page/main.js", "/page/..%2fapp.py", "/api/model", "/api/pass", "/api/tokens"),
    *("/api/positions", "/api/neighbors/target/3?k=5", "/api/sentences", "*", "//", "http://a/"),
    *("/api/pass/{id}", "/api/pass/{id}/top/0", "/api/pass/{id}/logit_lens/1?k=2"),
    *(
        "/api/pass/{id}/tensor/decoder.layers.0.attn.branch.q_proj?rows=0:1",
        "/api/pass/{id}/attention/decoder/0/mean",
    ),
    *("/api/pass/{id}/change?edits=head:decoder.0.attn.1", "/api/pass/{id}/projection/target"),
    *("/api/pass/{id}/thumbnails/decoder/0", "/api/pass/{id}/beam?size=2", "/api/pass/zzz"),
]
PARTS = [
    "%00",
    "%ff",
    "%",
    "?",
    "&&==",
    "#",
    "..",
    "/",
    "9" * 30,
    "-1",
    "\x7f",
    "é",
    " ",
    "a" * 3000,
]
HEADERS = [
    *("Host: 127.0.0.1", "Host: [", "Host: user@localhost", "Host:", "Host: [::1]:80", "Host: a b"),
    *("Origin: http://[", "Origin: null", "Origin: http://127.0.0.1", "Origin: \xff", "Origin:"),
    *("Sec-Fetch-Site: cross-site", "Sec-Fetch-Site: none", "Sec-Fetch-Site: \x00"),
    *("Content-Type: application/json", "Content-Type: text/plain", "Content-Type: ;;;"),
    *(
        "Content-Length: 5",
        "Content-Length: -1",
        "Content-Length: x",
        "Content-Length: " + "9" * 30,
    ),
    *("Transfer-Encoding: chunked", "Transfer-Encoding: gzip", "Expect: 100-continue", "Expect: x"),
    *("Cookie: qkv_key=a;;=;\x01", "Connection: Upgrade\r\nUpgrade: websocket", "Upgrade: h2c"),
    *("Connection: close", "Range: bytes=0-", "X-Forwarded-For: [", "X-Forwarded-Proto: ws"),
    *(": no name", "no colon", "A" * 20_000 + ": b", " folded: x", "X: " + "\xe9" * 50),
]
VALUES = [None, True, 1, -1e308, "", "a", "lower 😀", "\ud800", "\x00", "x" * 70, [], ["a"], {}]
EDITS = ["head:decoder.0.attn.1", "layer:decoder.1", "positions:decoder", "swap:target.0.5", "x:"]


def random_body(rng: random.Random) -> bytes:
    """JSON of the API with random values, broken JSON, or bytes."""
    kind = rng.random()
    if kind < 0.1:
        return rng.randbytes(rng.randrange(200))
    if kind < 0.15:
        return rng.choice([b"[" * 20_000, b"1" * 5_000, b"NaN", b'{"a":' * 5_000, b"x" * 70_000])
    fields = rng.sample(["text", "target", "edits", "sentences", "side", "more"], 3)
    body = {name: rng.choice(VALUES) for name in fields}
    if rng.random() < 0.5:
        body["edits"] = rng.sample(EDITS, 1)
    content = json.dumps(body).encode()
    return content[: rng.randrange(len(content))] if kind < 0.25 else content


def random_request(rng: random.Random, pass_id: str) -> bytes:
    """One request; about half of them are valid HTTP for the right host."""
    path = rng.choice(PATHS).replace("{id}", pass_id)
    if rng.random() < 0.3:
        cut = rng.randrange(len(path) + 1)
        path = path[:cut] + rng.choice(PARTS) + path[cut:]
    well_formed = rng.random() < 0.6
    method = rng.choice(["GET", "POST"]) if well_formed else rng.choice(METHODS)
    version = "HTTP/1.1" if well_formed else rng.choice(VERSIONS)
    lines = [f"{method} {path} {version}"]
    body = random_body(rng) if method == "POST" or rng.random() < 0.1 else b""
    if well_formed or rng.random() < 0.7:
        content_type = rng.choice(["application/json"] * 9 + ["text/plain"])
        lines += ["Host: 127.0.0.1", f"Content-Type: {content_type}"]
        lines += [f"Content-Length: {len(body)}"] if body else []
    lines += ["Connection: close"] if rng.random() < 0.9 else []
    lines += rng.sample(HEADERS, rng.choice([0, 0, 1, 2, 5]))
    request = "\r\n".join(lines).encode("latin-1", "replace") + b"\r\n\r\n" + body
    if rng.random() < 0.1:  # replace, cut or repeat
        cut = rng.randrange(len(request))
        request = rng.choice([request[:cut], request[:cut] + rng.randbytes(3), request * 2])
    return request
