"""`qkv translate`: arguments, files, standard input, terminals and errors."""

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from qkv.cli.app import run
from qkv.errors import QkvError


def qkv(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "qkv", *map(str, arguments)]


def test_a_text_is_translated(digits, capsys):
    assert run(["translate", str(digits), "三一。"]) == 0
    assert capsys.readouterr().out == "three one.\n"


def test_int8_gives_the_same_translation(digits, capsys):
    run(["translate", str(digits), "三", "--int8"])
    int8 = capsys.readouterr().out
    run(["translate", str(digits), "三"])
    assert int8 == capsys.readouterr().out


def test_a_file_is_translated_line_by_line(digits, tmp_path, capsys):
    file = tmp_path / "in.txt"
    file.write_bytes("\ufeff三一。\r\n\r\n四。".encode())
    run(["translate", str(digits), "--file", str(file), "--beam-size", "1"])
    assert capsys.readouterr().out == "three one.\n\nfour.\n"


def test_n_best_and_alignment_are_columns(digits, capsys):
    run(["translate", str(digits), "三一。", "--n-best", "2", "--alignment"])
    first, second = (line.split("\t") for line in capsys.readouterr().out.splitlines())
    assert (
        first[0] == second[0] == "1"
        and float(first[1]) > float(second[1])
        and first[2] == "three one."
    )
    assert [pair.split("(")[0] for pair in first[3].split()[:2]] == ["三→three", "一→one"]


def test_json_has_scores_tokens_and_alignment(digits, capsys):
    run(["translate", str(digits), "三一。", "--json", "--alignment", "--n-best", "2"])
    answer = json.loads(capsys.readouterr().out)
    best = answer["translations"][0]
    assert answer["source"] == "三一。" and len(answer["translations"]) == 2
    assert (
        best["text"] == "three one."
        and best["score"] < 0
        and best["tokens"] == ["three", "one", "."]
    )
    assert best["alignment"][0]["source"] == "三" and best["alignment"][0]["target"] == "three"


def test_each_line_of_an_open_pipe_is_answered_at_once(digits):
    """Standard input stays open: a line is sent after the answer to the previous one."""
    with subprocess.Popen(
        qkv("translate", digits),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        encoding="utf-8",
    ) as process:
        for line, answer in (("三一。", "three one."), ("", ""), ("四。", "four.")):
            process.stdin.write(f"{line}\n")
            process.stdin.flush()
            assert process.stdout.readline() == f"{answer}\n"
        process.stdin.close()
        assert process.wait(timeout=30) == 0


def test_a_terminal_gets_a_prompt_and_answers(digits, type_at_terminal):
    answer, errors = type_at_terminal(qkv("translate", digits), "三一。")
    assert answer == "three one.\n"
    assert errors == "Type a sentence; Ctrl-D to exit.\n> > \n"


def test_an_error_is_one_line_and_exit_code_2(digits):
    done = subprocess.run(
        qkv("translate", digits, "三", "--n-best", "9"), capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "n_best: 9 is larger than beam_size 4; raise beam_size or lower n_best\n"


@pytest.mark.parametrize(
    "arguments, line",
    [
        (["{tmp}/none", "三"], "{tmp}/none: no such folder; check the path"),
        (["{tmp}", "三"], "{tmp}: no model.json; is this a model folder?"),
        (
            ["{digits}", "三", "--file", "x"],
            "qkv translate: both a text and --file; give one of them",
        ),
        (["{digits}", "--file", "{tmp}/none"], "{tmp}/none: no such file; check the path"),
        (
            ["{digits}", "三", "--length-penalty", "-1"],
            "length_penalty: -1 is out of range; use 0 to 20; the 2017 paper uses 0.6",
        ),
        (["{digits}", "三", "--beam-size", "0"], "beam_size: 0 is out of range; use 1 to 1,024"),
        (
            ["{digits}", "三", "--max-target-len", "0"],
            "max_target_len: 0 is out of range; use 1 to 1,048,576",
        ),
        (["{digits}", "三", "--batch-size", "0"], "batch_size: 0 is out of range; use 1 to 65,536"),
        (["{digits}", "三", "--device", "abacus"], "device: 'abacus' is not available; use cpu"),
        (
            ["{digits}", "三", "--engine", "ctranslate2", "--int8"],
            "--int8: the data type of a CTranslate2 model is fixed at export; export with --int8",
        ),
    ],
)
def test_bad_input_is_one_line(digits, tmp_path: Path, arguments, line):
    def filled(text: str) -> str:
        return text.format(digits=digits, tmp=tmp_path)

    with pytest.raises(QkvError) as error:
        run(["translate", *map(filled, arguments)])
    assert str(error.value) == filled(line)


@pytest.mark.parametrize(
    "content, line",
    [
        (b"", "standard input: empty file; give a text file with at least one line"),
        (
            b"\xff\xfe\n",
            "standard input, line 1, byte 1: 0xff is not UTF-8; convert the file to UTF-8",
        ),
    ],
)
def test_standard_input_that_is_not_text_is_one_line(digits, content, line):
    done = subprocess.run(qkv("translate", digits), input=content, capture_output=True, timeout=60)
    assert (done.returncode, done.stderr.decode()) == (2, f"{line}\n")


def test_standard_input_that_cannot_be_read_is_one_line_and_ends(digits):
    """`nohup` opens standard input for writing only."""
    closed = os.open(os.devnull, os.O_WRONLY)
    try:
        done = subprocess.run(
            qkv("translate", digits), stdin=closed, capture_output=True, timeout=60
        )
    finally:
        os.close(closed)
    assert (
        done.returncode == 2
        and done.stderr.decode() == "standard input: cannot be read; Bad file descriptor\n"
    )


def test_invalid_utf8_in_an_argument_is_refused(digits):
    done = subprocess.run(
        [*map(os.fsencode, qkv("translate", digits)), b"\xe4\xb8\x89\xe9", b"--json"],
        capture_output=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr.decode().startswith("qkv: the argument '三\\udce9' is not UTF-8; ")


def test_invalid_utf8_typed_at_a_terminal_is_replaced(digits):
    leader, follower = pty.openpty()
    process = subprocess.Popen(
        qkv("translate", digits), stdin=follower, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    os.write(leader, b"\xe4\xb8\n" + "三一。\n".encode() + b"\x04")
    out, error = process.communicate(timeout=60)
    os.close(leader)
    os.close(follower)
    assert process.returncode == 0, error.decode()
    assert out.decode().splitlines()[-1] == "three one."


def test_every_n_best_line_has_three_columns(digits, tmp_path, capsys):
    (tmp_path / "in.txt").write_text("三\n\n四\n", encoding="utf-8")
    run(["translate", str(digits), "--file", str(tmp_path / "in.txt"), "--n-best", "2"])
    rows = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    assert all(len(row) == 3 for row in rows) and [row[0] for row in rows] == [
        "1",
        "1",
        "2",
        "3",
        "3",
    ]


def test_a_line_of_ten_megabytes_is_refused_with_the_limit(digits, tmp_path, capsys):
    (tmp_path / "in.txt").write_text("三一。" * 1_165_000, encoding="utf-8")
    with pytest.raises(QkvError) as error:
        run(["translate", str(digits), "--file", str(tmp_path / "in.txt")])
    assert str(error.value) == (
        "texts[0]: 3,495,000 characters; split it into lines of at most 1,048,576"
    )
    assert capsys.readouterr().out == ""
