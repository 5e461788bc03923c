"""`qkv explore` and `qkv attention`: what a person types, and what comes back."""

import http.client
import subprocess
import sys
import threading

import pytest
import torch
from PIL import Image

from qkv.checkpoint.folder import save_model
from qkv.cli.app import run
from qkv.errors import QkvError
from qkv.evaluate.figures import attention_picture
from qkv.generate.alignment import cross_weights
from qkv.model.guided import AlignmentHead
from qkv.model.presets import decoder_only, encoder_decoder, encoder_only
from qkv.model.spec import Gated, Heads
from qkv.model.transformer import Transformer
from qkv.pipeline import Translator
from qkv.text.learn import learn


@pytest.fixture
def qkv(capsys):
    """A command in this process: its exit code, what it prints, and its one line of complaint."""

    def call(*arguments):
        try:
            code, line = run(list(map(str, arguments))), ""
        except QkvError as error:
            code, line = 2, f"{error}\n"
        return code, capsys.readouterr().out, line

    return call


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """One model of each family."""
    root = tmp_path_factory.mktemp("models")
    tokens = learn("bytes", ["今天天气真好", "the weather is good"], 300)
    torch.manual_seed(0)
    specs = {
        "translator": encoder_decoder(tokens.vocab_size, 16, 1, 2, 32),
        "embedder": encoder_only(tokens.vocab_size, 16, 1, 2, 32),
        "generator": decoder_only(tokens.vocab_size, 16, 1, Heads(2, 2, 8), Gated(32)),
    }
    for name, spec in specs.items():
        save_model(root / name, Transformer(spec), {"tokenizer": tokens})
    return root


def test_another_host_needs_a_key(qkv, folders):
    code, out, said = qkv("explore", folders / "generator", "--host", "0.0.0.0", "--no-browser")
    assert code == 2 and out == ""
    assert (
        said
        == "--host 0.0.0.0: others could read along; give a --key that they must know, or leave it at 127.0.0.1\n"
    )


def test_a_key_is_long_enough_to_be_one(qkv, folders):
    code, _, said = qkv(
        "explore", folders / "generator", "--host", "0.0.0.0", "--key", "a b", "--no-browser"
    )
    assert (code, said) == (2, "--key: is no key; use 8 or more letters and digits\n")


def test_text_and_out_belong_together(qkv, folders):
    code, _, said = qkv("explore", folders / "generator", "--text", "hello")
    assert (code, said) == (
        2,
        "qkv explore: --text and --out belong together; give both, or neither for the live page\n",
    )


def test_without_the_extra_the_line_says_what_to_install(folders):
    hidden = "import sys; sys.modules['fastapi'] = None; from qkv.cli import main; sys.argv = ['qkv', *sys.argv[1:]]; main()"
    done = subprocess.run(
        [sys.executable, "-c", hidden, "explore", str(folders / "generator"), "--no-browser"],
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert (done.returncode, done.stderr) == (
        2,
        "qkv explore: needs FastAPI and uvicorn; pip install 'qkv[serve]'\n",
    )


def test_a_folder_that_is_none_is_named(qkv, folders):
    code, _, said = qkv("explore", folders / "nothing", "--no-browser")
    assert code == 2 and said.count("\n") == 1 and "no such folder" in said


def test_the_page_is_served_until_it_is_stopped(folders):
    server = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "qkv",
            "explore",
            str(folders / "generator"),
            "--port",
            "0",
            "--no-browser",
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    watch = threading.Timer(60, server.kill)
    watch.start()
    try:
        address = server.stdout.readline().strip()
        assert address.startswith("http://127.0.0.1:")
        talk = http.client.HTTPConnection(address.removeprefix("http://").rstrip("/"), timeout=30)
        talk.request("GET", "/api/model")
        assert b'"generator"' in talk.getresponse().read()
        server.send_signal(2)
        assert server.wait(20) in (0, 130)
        assert "Traceback" not in server.stderr.read()
    finally:
        watch.cancel()
        server.kill()


def test_a_taken_port_is_said_in_one_line(qkv, folders):
    import socket

    with socket.create_server(("127.0.0.1", 0)) as taken:
        code, _, said = qkv(
            "explore", folders / "generator", "--port", taken.getsockname()[1], "--no-browser"
        )
    assert code == 2 and said.count("\n") == 1 and "choose another --port or --host" in said


def test_one_file_holds_two_texts(qkv, folders, tmp_path):
    code, out, said = qkv(
        "explore",
        folders / "translator",
        "--text",
        "今天",
        "--compare",
        "天气",
        "--out",
        tmp_path / "page.html",
    )
    assert code == 0 and out.strip() == str(tmp_path / "page.html"), said
    text = (tmp_path / "page.html").read_text("utf-8")
    assert '"passes":[{"text":"今天"' in text and '{"text":"天气"' in text


def test_sentences_of_a_file_are_compared_with(qkv, folders, tmp_path):
    (tmp_path / "lines.txt").write_text("天气\n\nthe weather\n", "utf-8")
    code, _, said = qkv(
        "explore",
        folders / "embedder",
        "--text",
        "今天",
        "--sentences",
        tmp_path / "lines.txt",
        "--out",
        tmp_path / "page.html",
    )
    assert code == 0, said
    assert '"nearest":[{"text":"今天"' in (tmp_path / "page.html").read_text("utf-8")


@pytest.mark.parametrize("family", ["translator", "generator", "embedder"])
def test_attention_is_drawn_for_every_family(qkv, folders, tmp_path, family):
    code, out, said = qkv(
        "attention", folders / family, "今天 weather", "--out", tmp_path / "picture.png"
    )
    assert code == 0 and out.strip() == str(tmp_path / "picture.png"), said
    with Image.open(tmp_path / "picture.png") as picture:
        assert picture.format == "PNG" and min(picture.size) > 300


def test_attention_is_drawn_of_the_guided_head(qkv, folders, tmp_path):
    text, folder = "今天 weather", tmp_path / "guided"
    translator_ = Translator.load(folders / "translator")
    guided = Translator.from_model(
        translator_.model, translator_.source, translator_.target, alignment=AlignmentHead(0, 1)
    )
    guided.save(folder)
    for name, head in ((folder, guided.alignment), (folders / "translator", None)):
        assert qkv("attention", name, text, "--out", tmp_path / "ours.png")[0] == 0
        source, target = guided.encode_source(text), guided.encode_target(guided(text))
        weights = cross_weights(guided.model, source, target[:-1], head)
        labels = (
            guided.target.tokens_for_people(target[1:]),
            guided.source.tokens_for_people(source),
        )
        attention_picture(weights, *labels, tmp_path / "theirs.png", text)
        assert (tmp_path / "ours.png").read_bytes() == (tmp_path / "theirs.png").read_bytes()


def test_attention_that_is_not_there_gets_the_near_miss(qkv, folders, tmp_path):
    code, _, said = qkv(
        "attention", folders / "generator", "今天", "--kind", "encoder", "--out", tmp_path / "x.png"
    )
    assert (code, said) == (2, "--kind: no 'encoder' attention; did you mean 'decoder'?\n")
    code, _, said = qkv(
        "attention", folders / "generator", "今天", "--layer", "7", "--out", tmp_path / "x.png"
    )
    assert (code, said) == (2, "--layer: no layer 7; choose from 0\n")
