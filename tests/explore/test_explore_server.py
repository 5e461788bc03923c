"""The server of the page over HTTP on loopback: responses, limits and refusals."""

import http.client
import json
import socket
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from small_explorers import TEXT, small

from qkv.explore.app import make_app
from qkv.explore.explorer import Explorer
from qkv.messages import both
from qkv.web.limits import Limits
from qkv.web.server import make_server

ROOT = Path(__file__).resolve().parents[2]


class Server:
    """uvicorn in a thread; `ask` sends one request, `headers` replace the defaults."""

    def __init__(self, explorer: Explorer, key: str | None = None, limits: Limits | None = None):
        self.explorer = explorer
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.guard = make_app(explorer, key, limits)
        self.uvicorn = make_server(self.guard)
        self.thread = threading.Thread(
            target=self.uvicorn.run, kwargs={"sockets": [self.listener]}, daemon=True
        )
        self.thread.start()

    def ask(self, method, path, body=None, **headers):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        raw = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        defaults = {"Content-Type": "application/json"} if body is not None else {}
        connection.request(
            method,
            path,
            raw,
            {**defaults, **{name.replace("_", "-"): value for name, value in headers.items()}},
        )
        answer = connection.getresponse()
        content = answer.read()
        connection.close()
        return answer.status, {name.lower(): value for name, value in answer.getheaders()}, content

    def json(self, method, path, body=None, **headers):
        status, _, content = self.ask(method, path, body, **headers)
        return status, json.loads(content)

    def close(self):
        self.uvicorn.should_exit = True
        self.thread.join(10)
        self.listener.close()


@pytest.fixture(scope="module", params=["generator", "translator", "embedder"])
def server(request):
    started = Server(small(request.param))
    yield started
    started.close()


@pytest.fixture(scope="module")
def generator():
    started = Server(small("generator"))
    yield started
    started.close()


def test_a_text_is_opened_and_its_tensors_are_binary(server):
    status, trace = server.json("POST", "/api/pass", {"text": TEXT})
    assert status == 200 and trace["text"] == TEXT
    for step in trace["steps"][::5]:
        for tensor in step["tensors"]:
            status, headers, content = server.ask(
                "GET", f"/api/pass/{trace['id']}/tensor/{tensor['name']}"
            )
            assert status == 200 and headers["x-dtype"] == "float32"
            assert headers["x-shape"] == ",".join(map(str, tensor["shape"]))
            direct = server.explorer.answer(f"pass/{trace['id']}/tensor/{tensor['name']}")
            np.testing.assert_array_equal(
                np.frombuffer(content, "<f4").reshape(tensor["shape"]), direct.float().numpy()
            )
    for kind in trace["attention"]:
        status, headers, content = server.ask(
            "GET", f"/api/pass/{trace['id']}/thumbnails/{kind['name']}/0"
        )
        assert (
            status == 200
            and headers["x-dtype"] == "uint8"
            and len(content) == np.prod(list(map(int, headers["x-shape"].split(","))))
        )


def test_model_metadata_is_in_both_languages(server):
    status, model = server.json("GET", "/api/model")
    assert status == 200 and model["family"] == server.explorer.explored.family
    metadata = {row["key"]: row["value"] for row in model["metadata"]}
    assert metadata["parameters"] == sum(
        weight.numel() for weight in server.explorer.explored.model.parameters()
    )
    assert metadata["d_model"] == 16 and all(row["title"]["zh"] for row in model["metadata"])
    for code in model["code"].values():
        whole = (ROOT / code["file"]).read_text("utf-8")
        assert all(line.strip() in whole for line in code["source"].splitlines())


def test_the_code_of_the_steps_is_that_of_the_textbook(generator):
    code = generator.json("GET", "/api/model")[1]["code"]
    assert code["attention:softmax"]["source"].startswith("def softmax(scores: Tensor")
    forward = code["attention:MultiHeadAttention.forward"]["source"]
    assert " ".join(forward.split()).replace("( ", "(").startswith("def forward(self, x: Tensor")


def test_every_response_has_the_security_headers(generator):
    for method, path, body in (
        ("GET", "/", None),
        ("GET", "/api/model", None),
        ("GET", "/none", None),
        ("POST", "/api/pass", {}),
    ):
        _, headers, _ = generator.ask(method, path, body)
        policy = headers["content-security-policy"]
        assert (
            "script-src 'self';" in policy
            and "default-src 'none'" in policy
            and "unsafe" not in policy
        )
        assert (
            headers["x-content-type-options"] == "nosniff"
            and headers["referrer-policy"] == "no-referrer"
        )


def test_only_the_page_and_its_files_are_served(generator):
    status, headers, content = generator.ask("GET", "/")
    assert (
        status == 200
        and headers["content-type"].startswith("text/html")
        and b"page/main.js" in content
    )
    status, headers, _ = generator.ask("GET", "/page/main.js")
    assert status == 200 and headers["content-type"].startswith("text/javascript")
    for path in (
        "/page/../app.py",
        "/page/%2e%2e/app.py",
        "/page/..%2fapp.py",
        "/app.py",
        "/page/",
        "/page/app.py",
        "//etc/passwd",
    ):
        status, _, content = generator.ask("GET", path)
        assert status in (404, 405) and b"def " not in content and "error" in json.loads(content)


def test_a_foreign_host_name_is_refused(generator):
    for host in (
        "evil.example",
        "evil.example:80",
        "127.0.0.1.evil.example",
        "localhost.evil.example",
        "[::2]",
    ):
        status, answer = generator.json("GET", "/api/model", Host=host)
        assert (
            status == 421
            and answer["error"]["en"].endswith(".")
            and answer["error"]["zh"].endswith("。")
        ), host
    for host in ("", "a@b", "user@localhost", "[", "localhost:x", "127.0.0.1:99999"):
        status, answer = generator.json("GET", "/api/model", Host=host)
        assert status == 400 and answer["error"]["en"].startswith("The Host header is"), host
    for host in ("127.0.0.1", "localhost:1234", "[::1]:99", "LOCALHOST"):
        assert generator.ask("GET", "/api/model", Host=host)[0] == 200, host


def test_cross_site_requests_are_refused(generator):
    body = {"text": "hello"}
    assert generator.ask("POST", "/api/pass", body, Origin="http://evil.example")[0] == 403
    assert generator.ask("POST", "/api/pass", body, Sec_Fetch_Site="cross-site")[0] == 403
    assert generator.ask("POST", "/api/pass", body, Content_Type="text/plain")[0] == 415
    assert generator.ask("POST", "/api/pass", body, Origin="null")[0] == 403
    here = f"http://127.0.0.1:{generator.port}"
    assert (
        generator.ask("POST", "/api/pass", body, Origin=here, Sec_Fetch_Site="same-origin")[0]
        == 200
    )


def test_only_get_and_post_are_allowed(generator):
    for method in ("PUT", "DELETE", "PATCH", "OPTIONS"):
        status, answer = generator.json(method, "/api/model")
        assert status == 405 and answer["error"]["zh"]
    assert generator.json("POST", "/", {})[0] in (404, 405)


def test_with_a_key_requests_without_it_are_refused():
    server = Server(small("generator"), key="secret12345")
    try:
        assert server.json("GET", "/api/model")[0] == 401
        assert server.json("GET", "/?key=wrong")[0] == 401
        status, headers, _ = server.ask("GET", "/?key=secret12345")
        assert status == 303 and headers["location"] == "/" and "HttpOnly" in headers["set-cookie"]
        cookie = headers["set-cookie"].split(";")[0]
        assert server.json("GET", "/api/model", Cookie=cookie, Host="my.host:80")[0] == 200
        assert server.json("GET", "/api/model", Cookie="qkv_key=secret12346")[0] == 401
        assert server.json("GET", "/api/model", Cookie="=;;\x01==;")[0] == 401
    finally:
        server.close()


TAGS = [
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "</script><b>",
    "<!-- -->",
    "{{7*7}}",
    "javascript:alert(1)",
    "'; DROP TABLE x; --",
    "&lt;b&gt;",
    "<svg/onload=alert(1)>",
    "]]>",
]
SIGNS = [
    "\x00",
    "\x01\x02\x7f",
    "\u202e live",
    "\u200f\u200e\u2066x\u2069",
    "\ufeff",
    "\u2028\u2029",
    "a\u0301" * 50,
    "\ud800",
    "\udfff x",
    "\ufffd",
    "\U0010ffff",
    "👩‍👩‍👧‍👦",
    "\r\n\t",
    " ",
    "",
    "\u3000" * 10,
    "ﷺ" * 20,
    "x" * 4000,
    "x" * 4001,
    "我" * 4000,
    "1e309",
    "<bos><eos><pad>",
    "[CLS]",
    "<|endoftext|>",
    "\x1b[31mred",
]
HOSTILE_TEXTS = [{"text": text} for text in TAGS + SIGNS] + [
    {"text": "x" * 1_000_000},
    {"text": "🙂" * 100_000},
]
HOSTILE_BODIES = [
    {},
    [],
    None,
    3,
    "text",
    {"text": None},
    {"text": 5},
    {"text": ["a"]},
    {"text": {"a": 1}},
    {"text": "a", "edits": "b"},
    {"text": "a", "edits": [1]},
    {"text": "a", "edits": ["x" * 10_000]},
    {"text": "a", "edits": ["head:decoder.0.attn.0"] * 300},
    {"text": "a", "edits": ["swap:target.-1.5"]},
    {"text": "a", "edits": ["swap:target.0.99999999"]},
    {"text": "a", "edits": [None]},
    {"text": "a", "edits": ["head:decoder.0.attn.\ud800"]},
    {"text": "a", "target": 5},
    {"text": "a", "target": "x" * 5000},
    {"text": "a", "edits": {"a": 1}},
    {"text": True},
    {"text": "a", "more": "b" * 1000},
    {"text": "a", "edits": [["a"]]},
]
HOSTILE_BYTES = [
    b"",
    b"{",
    b"\xff\xfe",
    b"[" * 50_000,
    b'{"text": NaN}',
    b'{"text": "a"',
    b"null",
    b"\x00" * 100,
    b'{"text": "\\ud800"}',
    b"1" * 5_000,
    b'{"text": "a"}' * 2,
    b'{"text": "a", "text": 5}',
    b'{"\\u0000": 1}',
    b"Infinity",
]
HOSTILE_NAMES = [
    "pass/../../etc/passwd",
    "pass/%00",
    "pass/zzzzzzzzzzzz",
    "pass/000000000000",
    "tensor/x",
    "",
    "model/",
    "neighbors/target/-1",
    "neighbors/target/99999999",
    "neighbors/nowhere/1",
    "neighbors/target/1?k=0",
    "neighbors/target/1?k=1e9",
    "neighbors/target/1?k=-5",
    "neighbors/target/٣",
    "positions/x",
    "%F0%9F",
    "%ff%fe",
    "<script>",
    "a" * 5_000,
    "neighbors/target/" + "9" * 500,
    "model?" + "a=b&" * 500,
]
HOSTILE_REQUESTS = [
    "top/-1",
    "top/999",
    "top/1.5",
    "top/0?k=201",
    "top/0?k=abc",
    "top/0?k=%00",
    "logit_lens/99999",
    "logits/999999",
    "logits/0?edits=x",
    "logits/0?edits=" + "head:decoder.0.attn.0," * 300,
    "beam?size=0",
    "beam?size=9",
    "beam?alpha=nan",
    "beam?alpha=-1",
    "beam?alpha=inf",
    "generate?tokens=0",
    "generate?tokens=99999999999999999999",
    "tensor/nothing",
    "tensor/decoder.layers.0.attn.branch.q_proj?rows=5:2",
    "tensor/decoder.layers.0.attn.branch.q_proj?rows=-1:2",
    "tensor/decoder.layers.0.attn.branch.q_proj?rows=a",
    "tensor/decoder.layers.0.attn.branch.core.scores?index=99",
    "tensor/ids?index=-1",
    "attention/decoder/99",
    "attention/decoder/0/99",
    "attention/nowhere/0",
    "projection/nowhere",
    "change?edits=<script>",
    "change?edits=head:decoder.0.attn.99",
    "tensor/decoder.layers.0.attn.branch.q_proj?index=99999999999",
    "rollout/cross",
    "words/decoder/0/mean0",
    "tensor/__class__",
    "thumbnails/decoder/-0",
]


def check_error(content):
    error = json.loads(content)["error"]
    assert set(error) == {"en", "zh"} and all(
        0 < len(text) < 400 and "\n" not in text for text in error.values()
    )
    assert "Traceback" not in error["en"]


def test_hostile_texts_are_text_or_one_error(server):
    for body in HOSTILE_TEXTS:
        status, headers, content = server.ask("POST", "/api/pass", body)
        assert headers["content-type"].startswith("application/json")
        if status == 200:
            json.loads(content)["text"].encode()  # fails for a lone surrogate
        else:
            assert 400 <= status < 500, (status, str(body)[:50])
            check_error(content)
    assert server.ask("POST", "/api/pass", {"text": "still here"})[0] == 200


def test_hostile_bodies_get_one_error(server):
    for path in ("/api/pass", "/api/sentences", "/api/tokens", "/api/nowhere"):
        for body in [*HOSTILE_BODIES, *HOSTILE_BYTES]:
            status, _, content = server.ask("POST", path, body)
            assert status == 200 or 400 <= status < 500, (path, str(body)[:50], status)
            if status != 200:
                check_error(content)


def test_hostile_names_and_requests_get_one_error(server):
    trace = server.json("POST", "/api/pass", {"text": TEXT})[1]
    names = [*HOSTILE_NAMES, *(f"pass/{trace['id']}/{name}" for name in HOSTILE_REQUESTS)]
    for name in names:
        status, _, content = server.ask(
            "GET", "/api/" + name.replace("<", "%3C").replace("٣", "%D9%A3")
        )
        assert 400 <= status < 500 or (status == 200 and name.startswith("model?")), (name, status)
        if status != 200:
            check_error(content)


def test_there_are_more_than_a_hundred_hostile_inputs():
    assert (
        sum(
            map(
                len, (HOSTILE_TEXTS, HOSTILE_BODIES, HOSTILE_BYTES, HOSTILE_NAMES, HOSTILE_REQUESTS)
            )
        )
        > 100
    )


def test_a_million_characters_are_refused_with_one_error(generator):
    status, answer = generator.json("POST", "/api/pass", {"text": "x" * 1_000_000})
    assert (status, answer["error"]["en"]) == (
        413,
        "The request is too long; at most 64 KB are allowed.",
    )
    status, answer = generator.json("POST", "/api/pass", {"text": "x" * 5_000})
    assert (status, answer["error"]["en"]) == (
        413,
        "The text has 5,000 characters; at most 4,000 are allowed.",
    )
    status, answer = generator.json("POST", "/api/pass", {"text": "x y" * 100})
    assert status == 413 and answer["error"]["en"].endswith("tokens; at most 64 can be shown.")


def test_too_many_concurrent_requests_wait_and_then_get_a_503():
    limits = Limits(max_concurrent_requests=2, queue_seconds=0.5)
    server, statuses = Server(small("generator"), limits=limits), []

    def request():
        statuses.append(server.ask("GET", "/api/model")[0])

    threads = [threading.Thread(target=request) for _ in range(2)]
    try:
        with server.explorer.lock:  # both are being computed
            for thread in threads:
                thread.start()
            end = time.monotonic() + 60
            while not server.guard.slots.locked():
                assert time.monotonic() < end
                time.sleep(0.01)
            assert server.json("GET", "/api/model") == (
                503,
                {"error": both("Too many concurrent requests; try again later.")._asdict()},
            )
        for thread in threads:
            thread.join(60)
        assert statuses == [200, 200] and server.ask("GET", "/api/model")[0] == 200
    finally:
        server.close()


def test_concurrent_requests_get_the_same_answers_as_single_ones(generator):
    texts = [f"今天 lower {n}" for n in range(4)]
    single = {text: generator.json("POST", "/api/pass", {"text": text})[1] for text in texts}
    edits = ["head:decoder.0.attn.1", "layer:decoder.1", "positions:decoder", ""]
    found = {}

    def request(text, edit):
        id = single[text]["id"]
        _, _, content = generator.ask(
            "GET", f"/api/pass/{id}/logits/1" + (f"?edits={edit}" if edit else "")
        )
        found[text, edit] = np.frombuffer(content, "<f4")

    threads = [
        threading.Thread(target=request, args=(text, edit)) for text in texts for edit in edits[:3]
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for (text, edit), ours in found.items():
        theirs = generator.explorer.answer(f"pass/{single[text]['id']}/logits/1", {"edits": edit})
        np.testing.assert_allclose(ours, theirs.float().numpy(), rtol=1e-6)
    assert len(found) == 12 and torch.is_grad_enabled()


def test_typed_tokens_and_sentences_are_encoded(server):
    side = "source" if server.explorer.explored.family != "generator" else "target"
    status, answer = server.json("POST", "/api/tokens", {"text": "lower", "side": side})
    tokens = server.explorer.explored.tokenizers[side]
    assert status == 200 and [token["id"] for token in answer["tokens"]] == tokens.encode("lower")
    status, answer = server.json("POST", "/api/sentences", {"sentences": ["a", "b"]})
    assert (status, answer.get("count")) == (
        (200, 2) if server.explorer.explored.family == "embedder" else (404, None)
    )
    assert server.json("POST", "/api/sentences", {"sentences": ["a"] * 65})[0] == 413
