"""`qkv generate`: arguments, files, standard input, terminals and errors."""

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
from qkv.text.train_tokenizer import train_tokenizer


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A character model with random weights; its output is deterministic."""
    tokenizer = train_tokenizer("char", ["abcdefgh 今天天气真好\n"], 40)
    torch.manual_seed(1)
    model = Transformer(
        replace(
            decoder_only(tokenizer.vocab_size, 16, 1, s.Attention(2, 2, 8), s.Gated(24)), max_len=32
        )
    )
    save_model(path := tmp_path_factory.mktemp("lm") / "model", model, {"tokenizer": tokenizer})
    return path


@pytest.fixture(scope="module")
def generator(folder):
    return qkv.load(folder)


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "qkv", "generate", *map(str, arguments)]


OPTIONS = ["--max-new-tokens", "8", "--seed", "3"]
SETTINGS = {"max_new_tokens": 8, "seed": 3}


def test_greedy_output_equals_the_published_story(shared, capsys):
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
def test_a_prompt_is_printed_with_its_continuation(folder, generator, capsys, flag):
    run(["generate", str(folder), "今天", *OPTIONS, flag])
    assert capsys.readouterr().out == "今天" + generator("今天", **SETTINGS) + "\n"


def test_every_option_reaches_the_generator(folder, generator, capsys):
    filters = {"top_k": 12, "top_p": 0.95, "min_p": 0.01, "typical_p": 0.99}
    options = {"temperature": 0.9, **filters, "repetition_penalty": 1.2}
    flags = [
        part
        for name, value in options.items()
        for part in (f"--{name.replace('_', '-')}", str(value))
    ]
    run(["generate", str(folder), "abc", *OPTIONS, *flags])
    assert capsys.readouterr().out == "abc" + generator("abc", **SETTINGS, **options) + "\n"


def test_int8_generates_as_the_generator_does(folder, capsys):
    run(["generate", str(folder), "abc", *OPTIONS, "--int8"])
    assert (
        capsys.readouterr().out
        == "abc" + qkv.Generator.load(folder, int8=True)("abc", **SETTINGS) + "\n"
    )


def test_the_lines_of_a_file_are_prompts_and_texts_are_separated(
    folder, generator, tmp_path, capsys
):
    (tmp_path / "prompts.txt").write_text("abc\n\n天气\n", encoding="utf-8")
    run(["generate", str(folder), "--file", str(tmp_path / "prompts.txt"), *OPTIONS, "--n", "2"])
    texts = [
        prompt + text
        for prompt in ("abc", "", "天气")
        for text in generator(prompt, n=2, **SETTINGS)
    ]
    assert capsys.readouterr().out == "\n---\n".join(texts) + "\n"


def test_json_has_ids_tokens_finish_reason_and_logprobs(folder, generator, capsys):
    run(["generate", str(folder), "今天", *OPTIONS, "--json", "--n", "2", "--logprobs", "3"])
    answer = json.loads(capsys.readouterr().out)
    assert answer["prompt"] == "今天" and [
        sequence["text"] for sequence in answer["texts"]
    ] == generator("今天", n=2, **SETTINGS)
    first = answer["texts"][0]
    assert (
        first["seed"] == 3
        and first["finish_reason"] in ("length", "eos")
        and len(first["tokens"]) == len(first["ids"])
    )
    assert len(first["logprobs"]) == len(first["ids"]) and len(first["top_logprobs"][0]) == 3


def test_log_probabilities_are_printed_as_a_table(folder, generator, capsys):
    run(["generate", str(folder), "今天", *OPTIONS, "--logprobs", "2"])
    (sequence,) = generator.generate(["今天"], logprobs=2, **SETTINGS)[0]
    rows = [
        line.split("\t")
        for line in capsys.readouterr().out.rstrip("\n").split("\n")[-len(sequence.ids) :]
    ]
    assert [row[0] for row in rows] == sequence.tokens and all(len(row) == 4 for row in rows)
    assert [float(row[1]) for row in rows] == pytest.approx(sequence.logprobs, abs=1e-4)


def test_a_stop_string_can_be_a_newline(folder, generator, capsys):
    text = generator("abc", max_new_tokens=400, seed=2)
    assert "\n" in text
    run(["generate", str(folder), "abc", "--max-new-tokens", "400", "--seed", "2", "--stop", "\\n"])
    assert capsys.readouterr().out == "abc" + text.split("\n")[0] + "\n"
    assert unescaped(r"\n\t\\n\q") == "\n\t\\n\\q"


def test_each_prompt_of_an_open_pipe_is_answered_at_once(folder, generator):
    with subprocess.Popen(
        command(folder, *OPTIONS, "--json"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        encoding="utf-8",
    ) as process:
        for prompt in ("abc", "今天"):
            process.stdin.write(f"{prompt}\n")
            process.stdin.flush()
            assert json.loads(process.stdout.readline())["texts"][0]["text"] == generator(
                prompt, **SETTINGS
            )
        process.stdin.close()
        assert process.wait(timeout=60) == 0


def test_a_terminal_gets_a_prompt_and_no_echo_of_its_input(folder, generator, type_at_terminal):
    answer, errors = type_at_terminal(command(folder, *OPTIONS, "--stop", "\\n"), "今天")
    assert answer == generator("今天", stop="\n", **SETTINGS) + "\n"
    assert errors == "Type a prompt; Ctrl-D to exit.\n> > \n"


def test_output_to_a_terminal_is_streamed(folder, generator):
    """The streamed pieces add up to the whole text."""
    leader, follower = pty.openpty()
    done = subprocess.run(
        command(folder, "今天", *OPTIONS), stdout=follower, timeout=100, check=True
    )
    os.close(follower)
    output = os.read(leader, 10_000).decode().replace("\r\n", "\n")
    os.close(leader)
    assert done.returncode == 0 and output == "今天" + generator("今天", **SETTINGS) + "\n"


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
            "temperature: -1 is out of range; use 0 (greedy), or 1e-06 to 1,000,000",
        ),
        (["{folder}", "a", "--top-k", "0"], "top_k: 0 is out of range; use 1 to 134,217,728"),
        (["{folder}", "a", "--n", "0"], "n: 0 is out of range; use 1 to 16,384"),
        (
            ["{folder}", "a", "--max-new-tokens", "0"],
            "max_new_tokens: 0 is out of range; use 1 to 1,048,576",
        ),
        (
            ["{folder}", "a", "--stop", "Ω"],
            "stop: 'Ω' cannot be generated; use characters of the vocabulary",
        ),
        (["{folder}", "a", "--stop", ""], "stop: empty stop string; give some text"),
        (["{folder}", "a" * 33], "prompt: 33 tokens, the context length is 32; shorten it"),
        (["{folder}", "a", "--device", "abacus"], "device: 'abacus' is not available; use cpu"),
        (
            ["{folder}", "a", "--engine", "steam"],
            "--engine: no engine 'steam'; choose from torch, ctranslate2",
        ),
        (
            ["{folder}", "a", "--stream", "--json"],
            "--stream: only a single plain text can be streamed; omit --json, --n and --logprobs",
        ),
    ],
)
def test_bad_input_is_one_line(folder, tmp_path, arguments, line):
    def filled(text: str) -> str:
        return text.format(folder=folder, tmp=tmp_path)

    with pytest.raises(QkvError) as error:
        run(["generate", *map(filled, arguments)])
    assert str(error.value) == filled(line)


def test_a_translator_is_rejected(digits):
    with pytest.raises(QkvError) as error:
        run(["generate", str(digits), "三"])
    assert (
        str(error.value)
        == f"{digits}: not a language model; use a decoder-only model with a causal mask"
    )
