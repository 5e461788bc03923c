"""Outputs of all commands: devices, inputs, other folders, names, suffixes; before any work."""

import os
import shutil
import stat
from collections.abc import Callable
from pathlib import Path
from threading import Thread

import pytest
import torch
from typer.main import get_command

from qkv.cli.app import app, run
from qkv.errors import QkvError
from qkv.model.presets import encoder_decoder, encoder_only
from qkv.model.transformer import Transformer
from qkv.pipeline import Embedder, Translator
from qkv.text.sentencepiece_format import UNKNOWN, Piece, convert
from qkv.text.sentencepiece_format import Model as SentencePieceModel
from qkv.text.tokenizer import Tokenizer
from qkv.text.train_tokenizer import train_tokenizer

# Each command that writes a file, with models and texts of the folder {data}; the file is last.
FILES = {
    "attention": "attention {data}/translator abc --out",
    "compare": "compare {data}/run-1 {data}/run-2 --out",
    "embed": "embed {data}/embedder {data}/a.txt --out",
    "evaluate": "evaluate {data}/translator --source {data}/a.txt --target {data}/b.txt --out",
    "explore": "explore {data}/embedder --text abc --sentences {data}/a.txt --out",
    "model new": "model new {data}/model.json --out",
    "tokenizer export": "tokenizer export {data}/llama.json --out",
    "tokenizer train": "tokenizer train {data}/a.txt --kind char --out",
}
FOLDERS = {
    "demo": "demo embed --out",
    "export": "export {data}/translator --to ctranslate2 --inputs 0 --out",
    "import": "import {data}/translator --inputs 0 --out",
    "search": "search {data}/embedder {data}/a.txt abc --index",
    "tokenizer merges": "tokenizer merges {data}/embedder --out",
    "study": "study scale --out",
    "train embed": "train embed --pairs {data}/pairs.tsv --out",
    "train generate": "train generate --text {data}/a.txt --out",
    "train translate": "train translate --source {data}/a.txt --target {data}/b.txt --out",
}
INPUTS = {
    "attention": ["translator/model.json", "translator/model.safetensors"],
    "embed": ["a.txt", "embedder/model.json"],
    "evaluate": ["a.txt", "b.txt", "translator/model.safetensors"],
    "explore": ["a.txt", "embedder/tokenizer.json"],
    "model new": ["model.json"],
    "tokenizer export": ["llama.json"],
    "tokenizer train": ["a.txt"],
}
SUFFIXES = {
    "attention": ".png",
    "compare": ".png",
    "embed": ".npy",
    "explore": ".html",
    "tokenizer export": ".model",
}


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> Path:
    """A translator and an embedder, untrained, and small texts."""
    folder = tmp_path_factory.mktemp("models")
    torch.manual_seed(0)
    tokenizer = train_tokenizer("char", ["abc de"], 20)
    spec = encoder_decoder(tokenizer.vocab_size, 16, layers=1, n_heads=2, d_ff=32, dropout=0.0)
    Translator.from_model(Transformer(spec), tokenizer, tokenizer).save(folder / "translator")
    encoder = Transformer(encoder_only(tokenizer.vocab_size, 16, 1, 2, 24))
    Embedder(encoder, tokenizer).save(folder / "embedder")
    run(["model", "new", "tiny", "--out", str(folder / "model.json")])
    for number in (1, 2):
        (folder / f"run-{number}").mkdir()
        (folder / f"run-{number}/train.yaml").write_text(f"seed: {number}\n")
        (folder / f"run-{number}/metrics.jsonl").write_text(
            '{"step": 1, "kind": "train", "loss": 2.0, "lr": 0.1}\n'
        )
    (folder / "a.txt").write_text("abc\nde\n")
    pieces = (Piece("<unk>", 0, UNKNOWN), *map(Piece, "abcde▁"))
    Tokenizer(convert(SentencePieceModel(pieces))).save(folder / "llama.json")
    (folder / "b.txt").write_text("bca\ned\n")
    (folder / "pairs.tsv").write_text("abc\tde\nbca\ted\n")
    return folder


@pytest.fixture
def data(models, tmp_path) -> Path:
    """A copy, which a test may damage."""
    return Path(shutil.copytree(models, tmp_path / "data"))


def command(text: str, data: Path, output: Path | str) -> list[str]:
    return [part.format(data=data) for part in text.split()] + [str(output)]


def error_of(arguments: list[str]) -> str:
    with pytest.raises(QkvError) as error:
        run(arguments)
    return str(error.value)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_the_tests_have_every_command_with_an_output():
    found, waiting = set(), [("", get_command(app))]
    while waiting:
        path, item = waiting.pop()
        waiting += [(f"{path} {name}", sub) for name, sub in getattr(item, "commands", {}).items()]
        if any({"--out", "--output", "--index"} & set(param.opts) for param in item.params):
            found.add(path.strip())
    assert found == FILES.keys() | FOLDERS.keys()


# ── Files ─────────────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize("name", FILES)
def test_a_fifo_is_written_to_and_not_replaced(name, data, tmp_path):
    fifo, regular, received = tmp_path / "fifo", tmp_path / f"a{SUFFIXES.get(name, '')}", []
    os.mkfifo(fifo)
    reader = Thread(target=lambda: received.append(fifo.read_bytes()), daemon=True)
    reader.start()
    run(command(FILES[name], data, fifo))
    reader.join(timeout=60)
    assert stat.S_ISFIFO(fifo.stat().st_mode) and len(received[0]) > 5
    if name != "embed":  # a FIFO without .npy gets JSON lines
        run(command(FILES[name], data, regular))
        assert received == [regular.read_bytes()]


@pytest.mark.parametrize("name", FILES)
def test_standard_output_is_written_to(name, data, capfd):
    run(command(FILES[name], data, "/dev/stdout"))
    assert len(os.fsencode(capfd.readouterr().out)) > 5


@pytest.mark.parametrize(
    ("name", "given"), [(name, given) for name, found in INPUTS.items() for given in found]
)
@pytest.mark.parametrize("alias", ["path", "hard link", "symbolic link"])
def test_an_input_is_not_overwritten(name, given, alias, data, tmp_path):
    output = data / given
    if alias != "path":
        output = tmp_path / f"alias{SUFFIXES.get(name, '')}"
        output.hardlink_to(data / given) if alias == "hard link" else output.symlink_to(
            data / given
        )
    before = contents(data)
    line = error_of(command(FILES[name], data, output))
    assert line == f"{output}: an input of this command; choose another path"
    assert contents(data) == before


@pytest.mark.parametrize("name", FILES)
def test_an_output_that_cannot_be_written_is_refused_before_the_model_is_read(name, tmp_path):
    (tmp_path / "file").write_text("")
    suffix = SUFFIXES.get(name, "")
    missing = command(FILES[name], tmp_path / "missing", "")[:-1]
    for output, wrong in {
        tmp_path / f"{'a' * 300}{suffix}": "cannot be written (File name too long)",
        tmp_path / f"none/{'a' * 300}{suffix}": "cannot be written (File name too long)",
        tmp_path / f"{'a/' * 2500}a{suffix}": "cannot be written (File name too long)",
        tmp_path / f"file/a{suffix}": "cannot be written",
        tmp_path: "a folder",
    }.items():
        line = error_of([*missing, str(output)])  # a very long name is cut in the middle
        assert line.startswith(str(output)[:100]) and f": {wrong}" in line
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize(
    ("name", "suffix", "right"),
    [
        ("attention", ".jpg", ".png"),
        ("attention", "", ".png"),
        ("embed", ".txt", ".npy, .jsonl"),
        ("embed", ".np", ".npy, .jsonl"),
    ],
)
def test_an_unknown_suffix_is_refused_before_the_model_is_read(name, suffix, right, tmp_path):
    output = tmp_path / f"a{suffix}"
    line = error_of(command(FILES[name], tmp_path / "missing", output))
    assert line == f"{output}: unknown file type '{suffix}'; use {right}"


# ── Folders ───────────────────────────────────────────────────────────────────────────────────
def make_folder(path: Path) -> None:
    path.mkdir()
    (path / "README.md").write_text("mine")
    (path / "index.json").write_text("{}")


def make_file(path: Path) -> None:
    path.write_text("mine")


@pytest.mark.parametrize("name", FOLDERS)
@pytest.mark.parametrize("make", [make_folder, make_file, os.mkfifo])
def test_an_unrelated_target_is_not_written_into(
    name: str, make: Callable[[Path], None], models, tmp_path
):
    make(tmp_path / "in")
    before = contents(tmp_path)
    line = error_of(command(FOLDERS[name], models, tmp_path / "in"))
    assert line.startswith(f"{tmp_path}/in: ") and "\n" not in line
    assert contents(tmp_path) == before and len(list(tmp_path.iterdir())) == 1


def test_the_message_names_a_file_of_the_folder(models, tmp_path):
    make_folder(tmp_path / "in")
    assert error_of(command(FOLDERS["search"], models, tmp_path / "in")) == (
        f"{tmp_path}/in: contains other files, such as README.md; choose another folder"
    )
    assert error_of(command(FOLDERS["train translate"], models, tmp_path / "in")) == (
        f"{tmp_path}/in: contains files that the run would overwrite (README.md); "
        "choose another --out"
    )


@pytest.mark.parametrize("name", ["export", "import", "search", "demo"])
def test_a_folder_that_cannot_be_made_is_refused_before_the_model_is_read(name, tmp_path):
    (tmp_path / "file").write_text("")
    for output in (tmp_path / ("a" * 300), tmp_path / "file" / "a"):
        line = error_of(command(FOLDERS[name], tmp_path / "missing", output))
        assert line.startswith(f"{output}: cannot be written")


def test_an_interrupted_index_is_built_again(models, tmp_path, monkeypatch, capsys):
    from qkv.pipeline import index

    arguments = command(FOLDERS["search"], models, tmp_path / "in")

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(index, "build", interrupt)
        assert run(arguments) == 130
    assert [path.name for path in (tmp_path / "in").iterdir()] == ["index.json"]
    capsys.readouterr()
    assert run(arguments) == 0
    assert capsys.readouterr().out.startswith("1.0000\t1\tabc\n")
