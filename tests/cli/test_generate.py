"""`qkv generate` as a person or a program uses it."""

import json
import os
import pty
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import qkv
from qkv.checkpoint.folder import save_model
from qkv.cli.app import run
from qkv.cli.generate import unescaped
from qkv.errors import QkvError
from qkv.model import spec as s
from qkv.model.presets import decoder_only
from qkv.model.transformer import Transformer
from qkv.text.learn import learn


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Weights drawn at random over the characters of a line: what it writes is nonsense, but always the same."""
    tokenizer = learn("char", ["abcdefgh 今天天气真好\n"], 40)
    torch.manual_seed(1)
    model = Transformer(
        replace(
            decoder_only(tokenizer.vocab_size, 16, 1, s.Heads(2, 2, 8), s.Gated(24)), max_len=32
        )
    )
    save_model(path := tmp_path_factory.mktemp("writer") / "model", model, {"tokenizer": tokenizer})
    return path


@pytest.fixture(scope="module")
def generator(folder):
    return qkv.load(folder)


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "qkv", "generate", *map(str, arguments)]


LITTLE = ["--max-new-tokens", "8", "--seed", "3"]
WISHES = {"max_new_tokens": 8, "seed": 3}


def test_the_published_story_comes_out_of_the_command(shared, capsys):
    published = (shared / "stories260K" / "expected_greedy_200steps.txt").read_text()
    assert (
        run(
            [
                "generate",
                str(shared / "stories260K_hf"),
                "",
                "--temperature",
                "0",
                "--max-new-tokens",
                "200",
            ]
        )
        == 0
    )
    assert capsys.readouterr().out == published + "\n"


@pytest.mark.parametrize("flag", ["--stream", "--no-stream"])
def test_a_prompt_is_shown_with_what_follows_it(folder, generator, capsys, flag):
    run(["generate", str(folder), "今天", *LITTLE, flag])
    assert capsys.readouterr().out == "今天" + generator("今天", **WISHES) + "\n"


def test_every_option_reaches_the_writer(folder, generator, capsys):
    options = {
        "temperature": 0.9,
        "top_k": 12,
        "top_p": 0.95,
        "min_p": 0.01,
        "typical": 0.99,
        "repetition_penalty": 1.2,
    }
    flags = [
        part
        for name, value in options.items()
        for part in (f"--{name.replace('_', '-')}", str(value))
    ]
    run(["generate", str(folder), "abc", *LITTLE, *flags])
    assert capsys.readouterr().out == "abc" + generator("abc", **WISHES, **options) + "\n"


def test_matrices_in_8_bits_write_too(folder, capsys):
    run(["generate", str(folder), "abc", *LITTLE, "--int8"])
    assert (
        capsys.readouterr().out
        == "abc" + qkv.Generator.load(folder, int8=True)("abc", **WISHES) + "\n"
    )


def test_the_lines_of_a_file_are_prompts_with_a_mark_between_their_texts(
    folder, generator, tmp_path, capsys
):
    (tmp_path / "prompts.txt").write_text("abc\n\n天气\n", encoding="utf-8")
    run(["generate", str(folder), "--file", str(tmp_path / "prompts.txt"), *LITTLE, "--n", "2"])
    texts = [
        prompt + text for prompt in ("abc", "", "天气") for text in generator(prompt, n=2, **WISHES)
    ]
    assert capsys.readouterr().out == "\n---\n".join(texts) + "\n"


def test_json_has_everything_for_a_program(folder, generator, capsys):
    run(["generate", str(folder), "今天", *LITTLE, "--json", "--n", "2", "--logprobs", "3"])
    answer = json.loads(capsys.readouterr().out)
    assert answer["prompt"] == "今天" and [one["text"] for one in answer["texts"]] == generator(
        "今天", n=2, **WISHES
    )
    first = answer["texts"][0]
    assert (
        first["seed"] == 3
        and first["why"] in ("length", "end")
        and len(first["tokens"]) == len(first["ids"])
    )
    assert len(first["log_probs"]) == len(first["ids"]) and len(first["best"][0]) == 3


def test_log_probabilities_are_a_table_for_a_person(folder, generator, capsys):
    run(["generate", str(folder), "今天", *LITTLE, "--logprobs", "2"])
    (told,) = generator.generate(["今天"], logprobs=2, **WISHES)[0]
    rows = [
        line.split("\t")
        for line in capsys.readouterr().out.rstrip("\n").split("\n")[-len(told.ids) :]
    ]
    assert [row[0] for row in rows] == told.tokens and all(len(row) == 4 for row in rows)
    assert [float(row[1]) for row in rows] == pytest.approx(told.log_probs, abs=1e-4)


def test_a_stop_can_be_a_line_end(folder, generator, capsys):
    whole = generator("abc", max_new_tokens=400, seed=2)
    assert "\n" in whole
    run(["generate", str(folder), "abc", "--max-new-tokens", "400", "--seed", "2", "--stop", "\\n"])
    assert capsys.readouterr().out == "abc" + whole.split("\n")[0] + "\n"
    assert unescaped(r"\n\t\\n\q") == "\n\t\\n\\q"


def test_a_program_that_waits_for_each_answer_gets_it(folder, generator):
    with subprocess.Popen(
        command(folder, *LITTLE, "--json"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        encoding="utf-8",
    ) as process:
        for prompt in ("abc", "今天"):
            process.stdin.write(f"{prompt}\n")
            process.stdin.flush()
            assert json.loads(process.stdout.readline())["texts"][0]["text"] == generator(
                prompt, **WISHES
            )
        process.stdin.close()
        assert process.wait(timeout=60) == 0


def test_a_person_at_a_terminal_is_asked_and_answered_without_hearing_himself(folder, generator):
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        command(folder, *LITTLE, "--stop", "\\n"),
        stdin=theirs,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
    ) as process:
        os.write(ours, "今天\n".encode())
        assert process.stdout.readline() == generator("今天", stop="\n", **WISHES) + "\n"
        os.write(ours, b"\x04")
        assert process.wait(timeout=60) == 0
        assert process.stderr.read() == "Type a beginning, Ctrl-D to leave.\n> > \n"
    os.close(ours)
    os.close(theirs)


def test_a_terminal_shows_the_text_as_it_is_written(folder, generator):
    """On a terminal the answer streams; what has been shown is the whole text."""
    ours, theirs = pty.openpty()
    done = subprocess.run(command(folder, "今天", *LITTLE), stdout=theirs, timeout=100, check=True)
    os.close(theirs)
    shown = os.read(ours, 10_000).decode().replace("\r\n", "\n")
    os.close(ours)
    assert done.returncode == 0 and shown == "今天" + generator("今天", **WISHES) + "\n"


@pytest.mark.parametrize(
    "arguments, line",
    [
        (["{tmp}/none", "a"], "{tmp}/none: no such folder; check the path"),
        (
            ["{folder}", "a", "--file", "x"],
            "qkv generate: both a prompt and --file; give one of them",
        ),
        (["{folder}", "--file", "{tmp}/none"], "{tmp}/none: no such file; check the path"),
        (
            ["{folder}", "a", "--temperature", "-1"],
            "temperature: -1.0 is impossible; use 0 (greedy) or more",
        ),
        (
            ["{folder}", "a", "--top-k", "0"],
            "top_k: 0 leaves no token; use 1 or more, or leave it out",
        ),
        (["{folder}", "a", "--n", "0"], "n: 0 is too small; use 1 or more"),
        (
            ["{folder}", "a", "--max-new-tokens", "0"],
            "max_new_tokens: 0 is too small; use 1 or more",
        ),
        (
            ["{folder}", "a", "--stop", "Ω"],
            "stop: 'Ω' never comes; this vocabulary cannot write it",
        ),
        (["{folder}", "a", "--stop", ""], "stop: an empty text stops nothing; give some text"),
        (["{folder}", "a" * 33], "prompt: 33 tokens, the model reads 32; shorten it"),
        (["{folder}", "a", "--device", "abacus"], "device: no 'abacus' here; use cpu"),
        (
            ["{folder}", "a", "--engine", "steam"],
            "--engine: no engine 'steam'; choose from torch, ctranslate2",
        ),
        (
            ["{folder}", "a", "--stream", "--json"],
            "--stream: only one plain text can be shown as it comes; leave out --json, --n and --logprobs",
        ),
    ],
)
def test_bad_input_is_one_line(folder, tmp_path, arguments, line):
    def filled(text: str) -> str:
        return text.format(folder=folder, tmp=tmp_path)

    with pytest.raises(QkvError) as error:
        run(["generate", *map(filled, arguments)])
    assert str(error.value) == filled(line)


def test_a_translator_does_not_generate(digits):
    with pytest.raises(QkvError) as error:
        run(["generate", str(digits), "三"])
    assert (
        str(error.value)
        == f"{digits}: not a language model; one has a decoder alone, which sees the past"
    )
