"""`qkv search`: output, index, standard input and errors."""

import json
import os
import subprocess
import sys

import pytest
import torch

from qkv.cli.app import run
from qkv.errors import QkvError
from qkv.model.presets import encoder_only
from qkv.model.transformer import Transformer
from qkv.pipeline.embedder import Embedder
from qkv.text.train_tokenizer import train_tokenizer

SENTENCES = ["the cat sat on the mat", "狗在跑", "a dog ran home", "the cow ate grass"]


def make_model(path, seed):
    torch.manual_seed(seed)
    tokenizer = train_tokenizer("wordpiece", SENTENCES, 90)
    Embedder(Transformer(encoder_only(tokenizer.vocab_size, 16, 1, 2, 24)), tokenizer).save(path)
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_model(tmp_path_factory.mktemp("search") / "model", 0)


@pytest.fixture
def file(tmp_path):
    (tmp_path / "in.txt").write_text("\n".join(SENTENCES), encoding="utf-8")
    return tmp_path / "in.txt"


def test_results_are_sorted_by_cosine_with_line_and_text(folder, file, capsys):
    assert run(["search", str(folder), str(file), "狗在跑", "-k", "3"]) == 0
    rows = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    assert len(rows) == 3 and rows[0] == ["1.0000", "2", "狗在跑"]
    assert [float(row[0]) for row in rows] == sorted((float(row[0]) for row in rows), reverse=True)


def test_json_has_line_score_and_text(folder, file, tmp_path, capsys):
    run(
        [
            "search",
            str(folder),
            str(file),
            "a dog ran home",
            "--json",
            "--index",
            str(tmp_path / "index"),
            "--dimensions",
            "8",
        ]
    )
    answer = json.loads(capsys.readouterr().out)
    assert answer["query"] == "a dog ran home" and len(answer["hits"]) == 4
    assert answer["hits"][0] == {
        "line": 3,
        "score": pytest.approx(1.0, abs=1e-6),
        "text": "a dog ran home",
    }
    assert {path.name for path in (tmp_path / "index").iterdir()} == {"index.json", "vectors.npy"}


def test_the_index_is_rebuilt_when_the_file_changes(folder, file, capsys):
    run(["search", str(folder), str(file), "the cow", "-k", "1"])
    file.write_text("the cow\n", encoding="utf-8")
    capsys.readouterr()
    run(["search", str(folder), str(file), "the cow", "-k", "1"])
    assert capsys.readouterr().out == "1.0000\t1\tthe cow\n"


def test_queries_come_from_standard_input_or_a_terminal(folder, file, type_at_terminal):
    command = [sys.executable, "-m", "qkv", "search", str(folder), str(file), "-k", "1"]
    done = subprocess.run(
        command, input="狗在跑\na dog ran home\n", capture_output=True, text=True, timeout=120
    )
    assert done.stdout == "1.0000\t2\t狗在跑\n1.0000\t3\ta dog ran home\n" and done.returncode == 0
    answer, errors = type_at_terminal(command, "狗在跑")
    assert answer == "1.0000\t2\t狗在跑\n"
    assert errors == "Type a query; Ctrl-D to exit.\n> > \n"


def test_an_index_of_another_model_is_one_line(folder, file, tmp_path, capsys):
    run(["search", str(folder), str(file), "the cow"])
    other = make_model(tmp_path / "other", 1)
    with pytest.raises(QkvError) as error:
        run(["search", str(other), str(file), "the cow"])
    assert (
        str(error.value) == f"{file}.index: holds vectors of another model; "
        f"use --rebuild, or --index with another folder"
    )
    assert run(["search", str(other), str(file), "the cow", "--rebuild"]) == 0


@pytest.mark.parametrize(
    "arguments, line",
    [
        (["{tmp}/none", "cow"], "{tmp}/none: no such file; check the path"),
        (
            ["{tmp}/pipe", "cow"],
            "{tmp}/pipe: a pipe, which can be read only once; write it to a file first",
        ),
        (["{file}", "  "], "line 1: empty text; an empty text has no embedding; remove the line"),
        (["{file}", "cow", "-k", "0"], "-k: 0 is out of range; use 1 to 1,000,000"),
    ],
)
def test_bad_input_is_one_line(folder, file, tmp_path, arguments, line):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(QkvError) as error:
        run(
            [
                "search",
                str(folder),
                *[argument.format(tmp=tmp_path, file=file) for argument in arguments],
            ]
        )
    assert str(error.value) == line.format(tmp=tmp_path)


def test_an_empty_line_is_no_query(folder, file):
    command = [sys.executable, "-m", "qkv", "search", str(folder), str(file), "-k", "1"]
    done = subprocess.run(command, input=b"the cat\n\nthe dog\n", capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr.decode()
    assert len(done.stdout.splitlines()) == 2
