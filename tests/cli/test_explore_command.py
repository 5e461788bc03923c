"""`qkv explore` and `qkv attention`: output, server, figures and errors."""

import http.client
import subprocess
import sys
import threading

import pytest
import torch
from PIL import Image

from qkv.checkpoint.folder import load_model, save_model
from qkv.cli.app import run
from qkv.errors import QkvError
from qkv.evaluate import figures
from qkv.evaluate.figures import attention_heatmap
from qkv.explore.record import record
from qkv.generate.alignment import cross_weights
from qkv.model.guided import AlignmentHead
from qkv.model.presets import decoder_only, encoder_decoder, encoder_only
from qkv.model.spec import Attention, Gated
from qkv.model.transformer import Transformer
from qkv.pipeline import Translator
from qkv.text.train_tokenizer import train_tokenizer


@pytest.fixture
def qkv(capsys):
    """Run a command in this process; returns exit code, output and error line."""

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
    tokens = train_tokenizer("byte_bpe", ["今天天气真好", "the weather is good"], 300)
    torch.manual_seed(0)
    specs = {
        "translator": encoder_decoder(tokens.vocab_size, 16, 1, 2, 32),
        "embedder": encoder_only(tokens.vocab_size, 16, 1, 2, 32),
        "generator": decoder_only(tokens.vocab_size, 16, 1, Attention(2, 2, 8), Gated(32)),
    }
    for name, spec in specs.items():
        save_model(root / name, Transformer(spec), {"tokenizer": tokens})
    return root


def test_another_host_needs_a_key(qkv, folders):
    code, out, error = qkv("explore", folders / "generator", "--host", "0.0.0.0", "--no-browser")
    assert code == 2 and out == ""
    assert (
        error == "--host 0.0.0.0: the page would be open to other machines; "
        "give a --key, or use 127.0.0.1\n"
    )


def test_a_short_key_is_rejected(qkv, folders):
    code, _, error = qkv(
        "explore", folders / "generator", "--host", "0.0.0.0", "--key", "a b", "--no-browser"
    )
    assert (code, error) == (2, "--key: invalid key; use at least 8 letters and digits\n")


def test_text_and_out_must_be_given_together(qkv, folders):
    code, _, error = qkv("explore", folders / "generator", "--text", "hello")
    assert (code, error) == (
        2,
        "qkv explore: --text and --out must be given together; "
        "give both, or neither to serve the page\n",
    )


def test_without_fastapi_the_error_says_what_to_install(folders):
    code = (
        "import sys; sys.modules['fastapi'] = None; from qkv.cli import main; "
        "sys.argv = ['qkv', *sys.argv[1:]]; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "explore", str(folders / "generator"), "--no-browser"],
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert (done.returncode, done.stderr) == (
        2,
        "qkv explore: requires FastAPI and uvicorn; pip install 'qkv[serve]'\n",
    )


def test_a_missing_folder_is_named(qkv, folders):
    code, _, error = qkv("explore", folders / "nothing", "--no-browser")
    assert code == 2 and error.count("\n") == 1 and "no such folder" in error


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
    timer = threading.Timer(60, server.kill)
    timer.start()
    try:
        address = server.stdout.readline().strip()
        assert address.startswith("http://127.0.0.1:")
        connection = http.client.HTTPConnection(
            address.removeprefix("http://").rstrip("/"), timeout=30
        )
        connection.request("GET", "/api/model")
        assert b'"generator"' in connection.getresponse().read()
        server.send_signal(2)
        assert server.wait(20) in (0, 130)
        assert "Traceback" not in server.stderr.read()
    finally:
        timer.cancel()
        server.kill()


def test_a_port_in_use_is_one_line(qkv, folders):
    import socket

    with socket.create_server(("127.0.0.1", 0)) as taken:
        code, _, error = qkv(
            "explore", folders / "generator", "--port", taken.getsockname()[1], "--no-browser"
        )
    assert code == 2 and error.count("\n") == 1 and "choose another --port or --host" in error


def test_one_html_file_has_two_texts(qkv, folders, tmp_path):
    code, out, error = qkv(
        "explore",
        folders / "translator",
        "--text",
        "今天",
        "--compare",
        "天气",
        "--out",
        tmp_path / "page.html",
    )
    assert code == 0 and out.strip() == str(tmp_path / "page.html"), error
    text = (tmp_path / "page.html").read_text("utf-8")
    assert '"passes":[{"text":"今天"' in text and '{"text":"天气"' in text


def test_nearest_neighbors_come_from_the_sentences_file(qkv, folders, tmp_path):
    (tmp_path / "lines.txt").write_text("天气\n\nthe weather\n", "utf-8")
    code, _, error = qkv(
        "explore",
        folders / "embedder",
        "--text",
        "今天",
        "--sentences",
        tmp_path / "lines.txt",
        "--out",
        tmp_path / "page.html",
    )
    assert code == 0, error
    assert '"nearest":[{"text":"今天"' in (tmp_path / "page.html").read_text("utf-8")


@pytest.mark.parametrize("family", ["translator", "generator", "embedder"])
def test_attention_is_drawn_for_every_architecture(qkv, folders, tmp_path, family):
    code, out, error = qkv(
        "attention", folders / family, "今天 weather", "--out", tmp_path / "figure.png"
    )
    assert code == 0 and out.strip() == str(tmp_path / "figure.png"), error
    with Image.open(tmp_path / "figure.png") as image:
        assert image.format == "PNG" and min(image.size) > 300


def test_the_guided_head_is_drawn(qkv, folders, tmp_path):
    text, folder = "今天 weather", tmp_path / "guided"
    plain = Translator.load(folders / "translator")
    guided = Translator.from_model(
        plain.model, plain.source, plain.target, alignment=AlignmentHead(0, 1)
    )
    guided.save(folder)
    for name, head, about in (
        (folder, guided.alignment, "layer 0, head 1"),
        (folders / "translator", None, "layer 0, mean of the heads"),
    ):
        assert qkv("attention", name, text, "--out", tmp_path / "command.png")[0] == 0
        source, target = guided.encode_source(text), guided.encode_target(guided(text))
        weights = cross_weights(guided.model, source, target[:-1], head)
        labels = guided.target.display_tokens(target[1:]), guided.source.display_tokens(source)
        title = f"{text}\nCross-attention, {about}"
        attention_heatmap(weights, *labels, tmp_path / "expected.png", title)
        assert (tmp_path / "command.png").read_bytes() == (tmp_path / "expected.png").read_bytes()


def test_an_unknown_kind_or_layer_gives_the_near_miss(qkv, folders, tmp_path):
    code, _, error = qkv(
        "attention", folders / "generator", "今天", "--kind", "encoder", "--out", tmp_path / "x.png"
    )
    assert (code, error) == (2, "--kind: no 'encoder' attention; did you mean 'decoder'?\n")
    code, _, error = qkv(
        "attention", folders / "generator", "今天", "--layer", "7", "--out", tmp_path / "x.png"
    )
    assert (code, error) == (2, "--layer: no layer 7; choose from 0\n")


def test_one_head_of_a_translator_is_its_cross_attention(qkv, folders, tmp_path):
    picture = tmp_path / "x.png"
    code, _, error = qkv(
        "attention", folders / "translator", "今天", "--head", "1", "--out", picture
    )
    assert code == 0, error
    with Image.open(picture) as image:
        assert image.text["Title"] == "今天\nCross-attention, layer 0, head 1"


@pytest.mark.parametrize("head", ["-1", "2", "1000000"])
def test_an_unknown_head_gives_the_valid_range(qkv, folders, tmp_path, head):
    code, _, error = qkv(
        "attention", folders / "generator", "今天", "--head", head, "--out", tmp_path / "x.png"
    )
    assert (code, error) == (2, f"--head: no head {head}; use 0 to 1\n")
    assert not (tmp_path / "x.png").exists()


@pytest.fixture
def drawn(monkeypatch):
    """The figures that a command has saved."""
    saved, save = [], figures.save
    monkeypatch.setattr(
        figures, "save", lambda figure, path: saved.append(figure) or save(figure, path)
    )
    return saved


@pytest.mark.parametrize("head", [None, 1])
def test_two_texts_are_drawn_side_by_side_with_one_color_scale(qkv, folders, tmp_path, drawn, head):
    texts, picture = ("今天 weather", "good"), tmp_path / "x.png"
    options = () if head is None else ("--head", head)
    code, out, error = qkv(
        "attention", folders / "generator", texts[0], "--against", texts[1], "--out", picture,
        *options,
    )  # fmt: skip
    assert (code, out) == (0, f"{picture}\n"), error
    with Image.open(picture) as image:
        assert image.text["Title"] == "Decoder self-attention, layer 0"
    panels = [axes for axes in drawn[0].axes if axes.images]
    heads = [head] if head is not None else [0, 1]
    assert len(panels) == 2 * len(heads)
    loaded = load_model(folders / "generator")
    path, limits = "decoder.layers.0.attn.branch.core.weights", set()
    for column, text in enumerate(texts):
        tokenizer = loaded.tokenizers["tokenizer"]
        ids = tokenizer.encode(text)
        with torch.no_grad(), record(loaded.model.eval(), path) as steps:
            loaded.model.decode(torch.tensor([ids]))
        for row, number in enumerate(heads):
            panel = panels[2 * row + column]
            (shown,) = panel.images
            limits.add(shown.get_clim())
            torch.testing.assert_close(torch.tensor(shown.get_array()), steps[path][0, number])
            assert panel.get_xlabel() == f"head {number}"
            assert len(panel.get_xticklabels()) == len(ids)
    assert [panel.get_title() for panel in panels[:2]] == list(texts) and len(limits) == 1


def test_the_cross_attention_of_two_texts_is_drawn(qkv, folders, tmp_path, drawn):
    code, _, error = qkv(
        "attention",
        folders / "translator",
        "今天",
        "--against",
        "天气",
        "--out",
        tmp_path / "x.png",
    )
    assert code == 0, error
    translator = Translator.load(folders / "translator")
    for panel, text in zip(drawn[0].axes, ("今天", "天气"), strict=False):
        source, target = translator.encode_source(text), translator.encode_target(translator(text))
        weights = cross_weights(translator.model, source, target[:-1])
        torch.testing.assert_close(torch.tensor(panel.images[0].get_array()), weights)


def test_a_second_text_that_is_too_long_is_one_line(qkv, folders, tmp_path):
    code, _, error = qkv(
        "attention", folders / "generator", "good", "--against", "x" * 600,
        "--out", tmp_path / "x.png",
    )  # fmt: skip
    line = "qkv attention: The text has 600 tokens; at most 512 can be shown\n"
    assert (code, error) == (2, line)
    assert not (tmp_path / "x.png").exists()
