"""`qkv embed` as a person or a program uses it."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
import torch

from qkv.checkpoint.loaded_model import PoolingConfig
from qkv.cli.app import run
from qkv.cli.meter import Meter
from qkv.errors import QkvError
from qkv.model.presets import encoder_decoder, encoder_only
from qkv.model.transformer import Transformer
from qkv.pipeline.embedder import Embedder
from qkv.pipeline.translator import Translator
from qkv.text.learn import learn

TEXTS = ["the cat sat on the mat", "狗在跑", "a dog", "the dog sat on the cat"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    torch.manual_seed(0)
    tokenizer = learn("wordpiece", TEXTS, 80)
    place = tmp_path_factory.mktemp("embedder") / "model"
    pooling = PoolingConfig("mean", True, 20)
    Embedder(
        Transformer(encoder_only(tokenizer.vocab_size, 16, 1, 2, 24)), tokenizer, pooling
    ).save(place)
    return place


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "in.txt"
    path.write_bytes("\ufeff".encode() + "\r\n".join(TEXTS).encode())
    return path


def test_a_file_becomes_a_matrix(folder, file, tmp_path, capsys):
    assert run(["embed", str(folder), str(file), "--out", str(tmp_path / "v.npy")]) == 0
    assert np.allclose(np.load(tmp_path / "v.npy"), Embedder.load(folder)(TEXTS), atol=1e-6)
    shown = capsys.readouterr()
    assert shown.out == "" and shown.err == f"{tmp_path}/v.npy: 4 vectors of 16 numbers\n"


def test_a_file_becomes_json_lines_with_the_very_same_numbers(folder, file, tmp_path):
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
    wanted = Embedder.load(folder)(TEXTS, pooling="max", dimensions=5, normalize=False)
    assert [row["text"] for row in rows] == TEXTS
    assert np.allclose([row["vector"] for row in rows], wanted, atol=1e-6)


def test_a_pipe_is_read_once_as_standard_input_is(folder, tmp_path):
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


def test_many_blocks_keep_their_order(folder, tmp_path):
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


def test_standard_input_gives_json_lines_and_a_long_line_a_warning(folder):
    command = [sys.executable, "-m", "qkv", "embed", str(folder), "-"]
    done = subprocess.run(
        command, input="a dog\n" + "cat " * 25_000, capture_output=True, text=True, timeout=120
    )
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert (done.returncode, len(rows), len(rows[0]["vector"])) == (0, 2, 16)
    assert done.stderr == (
        "standard input, line 2: 25,000 tokens, the model reads 18; the rest is cut "
        "(long=split reads it all)\n"
    )


def test_a_long_line_can_be_split(folder, tmp_path, capsys, caplog):
    (tmp_path / "in.txt").write_text("cat " * 25_000, encoding="utf-8")
    run(["embed", str(folder), str(tmp_path / "in.txt"), "--long", "split"])
    assert len(json.loads(capsys.readouterr().out)["vector"]) == 16 and not caplog.records


@pytest.mark.parametrize(
    "content, arguments, line",
    [
        (
            "a dog\n\nthe cat\n",
            [],
            "{file}, line 2: no text in it; an empty sentence has no vector; take the line out",
        ),
        ("", [], "{file}: empty file; give a text file with at least one line"),
        ("a dog\n", ["--pooling", "meen"], "pooling: no pooling 'meen'; did you mean 'mean'?"),
        ("a dog\n", ["--dimensions", "99"], "dimensions: 99 of 16; use 1 to 16"),
        ("a dog\n", ["--long", "spilt"], "long: no way 'spilt'; did you mean 'split'?"),
        ("a dog\n", ["--batch-size", "0"], "batch_size: 0 is too small; use 1 or more"),
        ("a dog\n", ["--device", "abacus"], "device: no 'abacus' here; use cpu"),
        (
            "a dog\n",
            ["--out", "{file}.txt"],
            "{file}.txt: no kind of file for vectors; name it .npy or .jsonl",
        ),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing_behind(
    folder, file, tmp_path, content, arguments, line
):
    file.write_text(content, encoding="utf-8")
    with pytest.raises(QkvError) as error:
        run(
            [
                "embed",
                str(folder),
                str(file),
                "--out",
                str(tmp_path / "v.npy"),
                *[one.format(file=file) for one in arguments],
            ]
        )
    assert str(error.value) == line.format(file=file)
    assert [path.name for path in tmp_path.iterdir()] == ["in.txt"]


def test_a_translator_is_no_embedder(file, tmp_path):
    tokenizer = learn("char", TEXTS, 60)
    Translator.from_model(
        Transformer(encoder_decoder(tokenizer.vocab_size, 16, 1, 2, 16)), tokenizer, tokenizer
    ).save(tmp_path / "other")
    with pytest.raises(QkvError, match="not an embedder; an embedder is an encoder alone"):
        run(["embed", str(tmp_path / "other"), str(file)])


def test_the_meter_tells_count_speed_and_time_left():
    assert Meter(10_000).line(1_000, 4.0) == "1,000 / 10,000 sentences, 250/s, 0:36 left "
    assert Meter(None).line(1_000, 4.0) == "1,000 sentences, 250/s"


PEAK = """
import resource, sys
from qkv.cli.app import run
run(["embed", *sys.argv[1:]])
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
"""


def test_a_file_thirty_times_as_long_needs_no_more_memory(tmp_path):
    tokenizer = learn("wordpiece", ["the cat sat 0123456789"], 60)
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


def test_a_line_without_text_is_told_before_the_work(folder, tmp_path, monkeypatch):
    from qkv.pipeline.embedder import Embedder

    monkeypatch.setattr(Embedder, "embed_lines", lambda *given: pytest.fail("the work was begun"))
    file = tmp_path / "lines.txt"
    file.write_text("a dog\n" * 50 + "\n")
    with pytest.raises(QkvError) as error:
        run(["embed", str(folder), str(file), "--out", str(tmp_path / "v.npy")])
    assert (
        str(error.value)
        == f"{file}, line 51: no text in it; an empty sentence has no vector; take the line out"
    )
