"""Closed, full and broken streams, long and undecodable arguments: one line, documented code."""

import itertools
import os
import runpy
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.main import get_command

from qkv.cli.app import app
from qkv.errors import QkvError
from qkv.model.presets import encoder_decoder, encoder_only
from qkv.model.transformer import Transformer
from qkv.pipeline import Embedder, Translator
from qkv.text.train_tokenizer import train_tokenizer

FORKED = runpy.run_path(str(Path(__file__).with_name("forked_commands.py")))
CLOSED, NO_READER = FORKED["CLOSED"], FORKED["NO_READER"]
LONG = "a" * 5000


def commands() -> Iterator[tuple[list[str], Any]]:
    """The names of every command, such as ["model", "show"], with the command."""
    waiting: list[tuple[list[str], Any]] = [([], get_command(app))]
    while waiting:
        path, command = waiting.pop()
        subcommands = getattr(command, "commands", {})
        waiting += [([*path, name], sub) for name, sub in subcommands.items()]
        if not subcommands:
            yield path, command


def given(parameter: Any, value: str) -> list[str]:
    """The parameter with this value on the command line."""
    option = next((name for name in parameter.opts if name.startswith("-")), None)
    return [option, value] if option else [value]


def with_value(path: list[str], command: Any, value: str) -> Iterator[list[str]]:
    """The command with this value for all required parameters and one other parameter."""
    required = [parameter for parameter in command.params if parameter.required]
    others = [
        parameter
        for parameter in command.params
        if not parameter.required and not getattr(parameter, "is_flag", False)
    ]
    for other in [None, *others]:
        chosen = [*required, *([other] if other else [])]
        yield [*path, *itertools.chain(*(given(parameter, value) for parameter in chosen))]


@pytest.fixture(scope="module")
def run_all() -> Iterator[Any]:
    """For commands that do not import torch."""
    with FORKED["ForkedCommands"]("typer.rich_utils") as forked:
        yield forked.run


@pytest.fixture(scope="module")
def run_with_torch() -> Iterator[Any]:
    modules = (
        "qkv.check.invariants",
        "qkv.checkpoint.convert",
        "qkv.cli.demo_translate",
        "qkv.cli.evaluate_translation",
        "qkv.explore.figures",
        "qkv.explore.offline",
        "qkv.pipeline.generator",
        "qkv.pipeline.index",
        "qkv.train.run_recipe",
    )
    with FORKED["ForkedCommands"](*modules) as forked:
        yield forked.run


def is_one_line(text: str) -> bool:
    return text.count("\n") == 1 and text.endswith("\n") and "Traceback" not in text


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> Path:
    """A translator and an embedder, untrained, and a tokenizer with a text of many lines."""
    folder = tmp_path_factory.mktemp("models")
    torch.manual_seed(0)
    tokenizer = train_tokenizer("char", ["abc de"], 20)
    size = tokenizer.vocab_size
    spec = encoder_decoder(size, 16, layers=1, n_heads=2, d_ff=32, dropout=0.0)
    Translator.from_model(Transformer(spec), tokenizer, tokenizer).save(folder / "translator")
    Embedder(Transformer(encoder_only(size, 16, 1, 2, 24)), tokenizer).save(folder / "embedder")
    tokenizer.save(folder / "tokenizer.json")
    (folder / "a.txt").write_text("abc de\n" * 50_000)
    (folder / "few.txt").write_text("abc\nde\n")
    return folder


# ── Standard output ───────────────────────────────────────────────────────────────────────────
OUTPUTS = {
    CLOSED: (2, "qkv: standard output is closed; redirect it to a file or a pipe\n"),
    "/dev/full": (
        2,
        "standard output: cannot be written (No space left on device); "
        "redirect it to a file or a pipe\n",
    ),
    NO_READER: (141, ""),
}


@pytest.mark.parametrize("stdout", OUTPUTS)
def test_an_output_that_cannot_be_written_has_its_code_on_every_command(run_all, stdout):
    cases = [{"arguments": [*path, "--help"], "stdout": stdout} for path, _ in commands()]
    assert len(cases) > 15
    for arguments, result in run_all(cases):
        assert (result["code"], result["stderr"]) == OUTPUTS[stdout], arguments


@pytest.mark.parametrize("stdout", OUTPUTS)
def test_results_that_cannot_be_written_have_the_same_codes(run_with_torch, stdout, models):
    sides = ["--source", f"{models}/few.txt", "--target", f"{models}/few.txt"]
    commands = [
        ["plan", "tiny"],
        ["glossary", "--json"],
        ["model", "new", "tiny"],
        ["tokenizer", "encode", f"{models}/tokenizer.json", "--file", f"{models}/a.txt"],
        ["tokenizer", "show", f"{models}/tokenizer.json", "abc"],
        ["translate", f"{models}/translator", "abc", "--max-target-len", "3"],
        ["train", "translate", "--explain"],
        ["model", "show", "tiny"],
        ["tokenizer", "report", f"{models}/tokenizer.json", f"{models}/few.txt"],
        ["embed", f"{models}/embedder", f"{models}/few.txt"],
        ["search", f"{models}/embedder", f"{models}/few.txt", "abc"],
        ["check", f"{models}/embedder"],
        ["evaluate", f"{models}/translator", *sides, "--json"],
    ]
    cases = [{"arguments": arguments, "stdout": stdout} for arguments in commands]
    for arguments, result in run_with_torch(cases):
        assert (result["code"], result["stderr"]) == OUTPUTS[stdout], arguments


def test_a_reader_that_exits_ends_the_command_with_141(models):
    encode = ["tokenizer", "encode", f"{models}/tokenizer.json", "--file", f"{models}/a.txt"]
    command = " ".join([sys.executable, "-m", "qkv", *encode, "| head -1; exit ${PIPESTATUS[0]}"])
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout.count("\n"), done.stderr) == (141, 1, "")


@pytest.mark.parametrize("stderr", [CLOSED, "/dev/full", NO_READER])
def test_a_command_continues_without_standard_error(run_with_torch, stderr, models, tmp_path):
    embed = ["embed", f"{models}/embedder", "-", "--out", str(tmp_path / "v.npy")]
    (tmp_path / "a.txt").write_text("abc\nde\n")
    cases = [
        {"arguments": ["plan", "tiny", "--json"]},
        {"arguments": embed, "stdin": str(tmp_path / "a.txt")},
        {"arguments": ["plan", "no-such-preset"]},
    ]
    results = run_with_torch([case | {"stderr": stderr} for case in cases])
    assert [result["code"] for _, result in results] == [0, 0, 2]
    assert results[0][1]["stdout"].startswith("{") and (tmp_path / "v.npy").is_file()
    assert results[2][1]["stdout"] == ""


# ── Standard input ────────────────────────────────────────────────────────────────────────────
def test_a_closed_standard_input_is_empty(run_with_torch, models):
    (models / "lines.txt").write_text("abc\n")
    readers = [
        ["translate", f"{models}/translator"],
        ["embed", f"{models}/embedder", "-"],
        ["search", f"{models}/embedder", f"{models}/lines.txt"],
        ["tokenizer", "encode", f"{models}/tokenizer.json"],
        ["tokenizer", "decode", f"{models}/tokenizer.json"],
    ]
    for arguments, result in run_with_torch([{"arguments": a, "stdin": CLOSED} for a in readers]):
        assert (result["code"], result["stdout"]) == (2, ""), arguments
        last = result["stderr"].splitlines()[-1]
        assert last.endswith(": empty file; give a text file with at least one line"), arguments


def test_every_command_runs_without_standard_input(run_all):
    cases = [{"arguments": [*path, "--help"], "stdin": CLOSED} for path, _ in commands()]
    for arguments, result in run_all(cases):
        assert (result["code"], result["stderr"]) == (0, ""), arguments
        assert "Usage" in result["stdout"]


# ── Arguments ─────────────────────────────────────────────────────────────────────────────────
def test_arguments_of_5000_characters_are_accepted_or_refused_in_one_line(run_with_torch):
    cases = [
        {"arguments": arguments}
        for path, command in commands()
        for arguments in with_value(path, command, LONG)
        if arguments not in (["demo"], ["glossary"])  # without an argument: not of this test
    ]
    assert len(cases) > 60
    for arguments, result in run_with_torch(cases):
        shown = [argument[:20] for argument in arguments]
        assert result["code"] in (0, 2), (shown, result)
        assert result["code"] == 0 or is_one_line(result["stderr"]), (shown, result)
        assert len(result["stderr"]) < 2000, shown


def test_arguments_that_are_not_utf8_are_refused_on_every_command(run_all):
    text = os.fsdecode(b"a\xff")
    cases = [
        {"arguments": [*path, *itertools.chain(*(given(p, text) for p in command.params[:1]))]}
        for path, command in commands()
    ]
    line = (
        "qkv: the argument 'a\\udcff' is not UTF-8; convert the text to UTF-8, or rename the file\n"
    )
    for arguments, result in run_all(cases):
        assert (result["code"], result["stdout"], result["stderr"]) == (2, "", line), arguments


def test_text_that_the_output_cannot_encode_is_escaped():
    arguments = ["glossary", "--lang", "zh", "--term", "token"]
    for encoding, is_escaped in (("ascii", True), ("utf-8", False)):
        done = subprocess.run(
            [sys.executable, "-m", "qkv", *arguments],
            capture_output=True,
            timeout=60,
            env={**os.environ, "PYTHONIOENCODING": encoding},
        )
        assert (done.returncode, done.stderr) == (0, b"")
        assert (rb"\u8bcd" in done.stdout) == is_escaped


def test_an_error_is_one_line_whatever_the_name_contains():
    assert str(QkvError("a\nb\x1b[31m", "no such file")) == r"a\nb\x1b[31m: no such file"
    name = "x" * 5000
    assert str(QkvError(name, "no")) == f"{name[:100]}...{name[:100]}: no"
