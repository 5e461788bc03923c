"""`qkv embed`: files, standard input, long lines, memory and errors."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
import torch

from qkv.checkpoint.loaded_model import PoolingConfig
from qkv.cli.app import run
from qkv.cli.meter import ProgressMeter
from qkv.errors import QkvError
from qkv.model.presets import encoder_decoder, encoder_only
from qkv.model.transformer import Transformer
from qkv.pipeline.embedder import Embedder
from qkv.pipeline.translator import Translator
from qkv.text.train_tokenizer import train_tokenizer

TEXTS = ["the cat sat on the mat", "狗在跑", "a dog", "the dog sat on the cat"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    torch.manual_seed(0)
    tokenizer = train_tokenizer("wordpiece", TEXTS, 80)
    path = tmp_path_factory.mktemp("embedder") / "model"
    pooling = PoolingConfig("mean", True, 20)
    Embedder(
        Transformer(encoder_only(tokenizer.vocab_size, 16, 1, 2, 24)), tokenizer, pooling
    ).save(path)
    return path


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "in.txt"
    path.write_bytes("\ufeff".encode() + "\r\n".join(TEXTS).encode())
    return path


def test_a_file_becomes_a_matrix(folder, file, tmp_path, capsys):
    assert run(["embed", str(folder), str(file), "--out", str(tmp_path / "v.npy")]) == 0
    assert np.allclose(np.load(tmp_path / "v.npy"), Embedder.load(folder)(TEXTS), atol=1e-6)
    printed = capsys.readouterr()
    assert printed.out == "" and printed.err == f"{tmp_path}/v.npy: 4 vectors of 16 dimensions\n"


def test_a_file_becomes_json_lines_with_the_same_numbers(folder, file, tmp_path):
    run(
        [
            "embed",
            str(folder),
            str(file),
            "--out",
            str(tmp_path / "v.jsonl"),
            "--dimensions",
            "5",
            "--pooling",
            "max",
            "--no-normalize",
        ]
    )
    rows = [
        json.loads(line) for line in (tmp_path / "v.jsonl").read_text(encoding="utf-8").splitlines()
    ]
    expected = Embedder.load(folder)(TEXTS, pooling="max", dimensions=5, normalize=False)
    assert [row["text"] for row in rows] == TEXTS
    assert np.allclose([row["vector"] for row in rows], expected, atol=1e-6)


def test_a_pipe_is_read_once(folder, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with subprocess.Popen(
        [
            sys.executable,
            "-c",
            f"open({str(tmp_path / 'pipe')!r}, 'w').write({chr(10).join(TEXTS)!r})",
        ]
    ):
        assert (
            run(["embed", str(folder), str(tmp_path / "pipe"), "--out", str(tmp_path / "v.npy")])
            == 0
        )
    assert np.allclose(np.load(tmp_path / "v.npy"), Embedder.load(folder)(TEXTS), atol=1e-6)


def test_vectors_are_in_the_order_of_the_lines(folder, tmp_path):
    lines = [f"the cat sat on mat {n}" for n in range(100)]
    (tmp_path / "in.txt").write_text("\n".join(lines), encoding="utf-8")
    run(
        [
            "embed",
            str(folder),
            str(tmp_path / "in.txt"),
            "--out",
            str(tmp_path / "v.npy"),
            "--batch-size",
            "2",
        ]
    )
    assert np.allclose(np.load(tmp_path / "v.npy"), Embedder.load(folder)(lines), atol=1e-6)


def test_standard_input_gives_json_lines_and_a_long_line_gives_a_warning(folder):
    command = [sys.executable, "-m", "qkv", "embed", str(folder), "-"]
    done = subprocess.run(
        command, input="a dog\n" + "cat " * 25_000, capture_output=True, text=True, timeout=120
    )
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert (done.returncode, len(rows), len(rows[0]["vector"])) == (0, 2, 16)
    assert done.stderr == (
        "standard input, line 2: 25,000 tokens truncated to 18; "
        "use truncation chunk to embed the whole text\n"
    )


def test_a_long_line_can_be_chunked(folder, tmp_path, capsys, caplog):
    (tmp_path / "in.txt").write_text("cat " * 25_000, encoding="utf-8")
    run(["embed", str(folder), str(tmp_path / "in.txt"), "--truncation", "chunk"])
    assert len(json.loads(capsys.readouterr().out)["vector"]) == 16 and not caplog.records


@pytest.mark.parametrize(
    "content, arguments, line",
    [
        (
            "a dog\n\nthe cat\n",
            [],
            "{file}, line 2: empty text; an empty text has no embedding; remove the line",
        ),
        ("", [], "{file}: empty file; give a text file with at least one line"),
        ("a dog\n", ["--pooling", "meen"], "pooling: no pooling 'meen'; did you mean 'mean'?"),
        ("a dog\n", ["--dimensions", "99"], "dimensions: 99 of 16; use 1 to 16"),
        (
            "a dog\n",
            ["--truncation", "chnk"],
            "truncation: no truncation 'chnk'; did you mean 'chunk'?",
        ),
        ("a dog\n", ["--batch-size", "0"], "batch_size: 0 is out of range; use 1 to 65,536"),
        ("a dog\n", ["--device", "abacus"], "device: 'abacus' is not available; use cpu"),
        (
            "a dog\n",
            ["--out", "{file}.txt"],
            "{file}.txt: unknown file type '.txt'; use .npy, .jsonl",
        ),
    ],
)
def test_bad_input_is_one_line_and_writes_nothing(folder, file, tmp_path, content, arguments, line):
    file.write_text(content, encoding="utf-8")
    with pytest.raises(QkvError) as error:
        run(
            [
                "embed",
                str(folder),
                str(file),
                "--out",
                str(tmp_path / "v.npy"),
                *[argument.format(file=file) for argument in arguments],
            ]
        )
    assert str(error.value) == line.format(file=file)
    assert [path.name for path in tmp_path.iterdir()] == ["in.txt"]


def test_a_translator_is_rejected(file, tmp_path):
    tokenizer = train_tokenizer("char", TEXTS, 60)
    Translator.from_model(
        Transformer(encoder_decoder(tokenizer.vocab_size, 16, 1, 2, 16)), tokenizer, tokenizer
    ).save(tmp_path / "other")
    with pytest.raises(QkvError, match="not an embedding model; use an encoder-only model"):
        run(["embed", str(tmp_path / "other"), str(file)])


def test_progress_has_count_throughput_and_remaining_time():
    assert ProgressMeter(10_000).line(1_000, 4.0) == (
        "1,000 / 10,000 sentences, 250 sentences/s, 0:36 left "
    )
    assert ProgressMeter(None).line(1_000, 4.0) == "1,000 sentences, 250 sentences/s"


PEAK = """
import resource, sys
from qkv.cli.app import run
run(["embed", *sys.argv[1:]])
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
"""


def test_memory_does_not_grow_with_the_file(tmp_path):
    tokenizer = train_tokenizer("wordpiece", ["the cat sat 0123456789"], 60)
    Embedder(Transformer(encoder_only(tokenizer.vocab_size, 256, 1, 2, 16)), tokenizer).save(
        tmp_path / "model"
    )
    peaks = []
    for n in (1_000, 30_000):  # the second matrix alone is 30 MB
        (tmp_path / "in.txt").write_text(
            "".join(f"the cat sat {i}\n" for i in range(n)), encoding="utf-8"
        )
        command = [
            sys.executable,
            "-c",
            PEAK,
            str(tmp_path / "model"),
            str(tmp_path / "in.txt"),
            "--out",
            str(tmp_path / "v.npy"),
        ]
        peaks.append(
            int(
                subprocess.run(
                    command, capture_output=True, text=True, check=True, timeout=200
                ).stdout
            )
        )
        assert np.load(tmp_path / "v.npy", mmap_mode="r").shape == (n, 256)
    assert peaks[1] < peaks[0] + 15


def test_an_empty_line_is_rejected_before_embedding(folder, tmp_path, monkeypatch):
    from qkv.pipeline.embedder import Embedder

    monkeypatch.setattr(
        Embedder, "embed_lines", lambda *arguments: pytest.fail("embedding has started")
    )
    file = tmp_path / "lines.txt"
    file.write_text("a dog\n" * 50 + "\n")
    with pytest.raises(QkvError) as error:
        run(["embed", str(folder), str(file), "--out", str(tmp_path / "v.npy")])
    assert (
        str(error.value)
        == f"{file}, line 51: empty text; an empty text has no embedding; remove the line"
    )
