"""Every numeric option of every command refuses or accepts any value, in bounded time and memory.

A refused value gives one line and exit code 2. In-process, with tiny models; as subprocesses in the
test marked slow.
"""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.main import get_command

from qkv import threads
from qkv.checkpoint.convert import export_folder
from qkv.checkpoint.folder import save_model
from qkv.cli import main
from qkv.cli.app import app
from qkv.model import spec as s
from qkv.model.presets import decoder_only, encoder_only
from qkv.model.transformer import Transformer
from qkv.pipeline.embedder import Embedder
from qkv.text.train_tokenizer import train_tokenizer

VALUES = ["0", "-1", "1e-45", "nan", "inf", str(10**6), str(10**12), str(10**30), "", "x"]
TEXTS = ["the cat sat on the mat", "a dog runs", "the dog sat on the cat"]
# The arguments of each command with numeric options; {new} is a path that does not exist.
ARGUMENTS = {
    "attention": "{translator} 三 --kind cross --out {new}.png",
    "demo": "translate --out {new}",
    "embed": "{embedder} {texts}",
    "evaluate": "{translator} --source {source} --target {target}",
    "explore": "{translator} --no-browser",
    "export": "{translator} --to huggingface --out {new}",
    "generate": "{generator} a",
    "import": "{huggingface} --out {new}",
    "model show": "tiny",
    "neighbors": "{generator} a",
    "plan": "tiny --tokens 1000 --gflops 10",
    "search": "{embedder} {texts} dog --index {new}",
    "tokenizer train": "{texts} --out {new}.json",
    "trace": "{translator} 三",
    "study": "cache --out {new}",
    "train embed": "--source {source} --target {target} --out {new}",
    "train generate": "--text {texts} --out {new}",
    "train translate": "--source {source} --target {target} --out {new}",
    "translate": "{translator} 三",
}


def numeric_options() -> Iterator[tuple[str, str]]:
    """Each command that has numeric options, such as "model show", and the option."""
    waiting: list[tuple[str, Any]] = [("", get_command(app))]
    while waiting:
        path, command = waiting.pop()
        subcommands = getattr(command, "commands", {})
        waiting += [(f"{path} {name}".strip(), sub) for name, sub in subcommands.items()]
        for parameter in [] if subcommands else command.params:
            if parameter.type_descriptor.annotation in (int, float):
                yield path, parameter.opts[0]


OPTIONS = sorted(numeric_options())
THREADS = [(command, "--threads") for command in ("translate", "model show")]


# ── Models and files ──────────────────────────────────────────────────────────────────────────
@pytest.fixture(scope="module")
def folders(tmp_path_factory, digits, digit_pairs) -> dict[str, Path]:
    """The model folders and files that ARGUMENTS names."""
    folder = tmp_path_factory.mktemp("numbers")
    found = {name: folder / name for name in ("embedder", "generator", "huggingface")}
    torch.manual_seed(0)
    tokenizer = train_tokenizer("char", ["abc"], 8)
    spec = decoder_only(tokenizer.vocab_size, 16, 1, s.Attention(2, 2, 8), s.Gated(24))
    save_model(found["generator"], Transformer(replace(spec, max_len=32)), {"tokenizer": tokenizer})
    words = train_tokenizer("wordpiece", TEXTS, 80)
    encoder = Transformer(encoder_only(words.vocab_size, 16, 1, 2, 24))
    Embedder(encoder, words).save(found["embedder"])
    export_folder(digits, found["huggingface"], 0)
    sources, targets = zip(*digit_pairs(40, seed=1), strict=True)
    for name, lines in {"texts": TEXTS, "source": sources, "target": targets}.items():
        found[name] = folder / f"{name}.txt"
        found[name].write_text("\n".join(lines) + "\n", encoding="utf-8")
    return found | {"translator": digits}


@pytest.fixture
def arguments(folders, tmp_path):
    """arguments(command): the words of a command line without numeric options."""

    def words(command: str) -> list[str]:
        names = folders | {"new": tmp_path / "new"}
        return [*command.split(), *(word.format(**names) for word in ARGUMENTS[command].split())]

    return words


def with_value(words: list[str], option: str, value: str) -> list[str]:
    """The command with the option; an earlier value of the option is overridden."""
    return [*words, f"{option}={value}" if option.startswith("--") else f"{option}{value}"]


def is_one_line(code: int, output: str) -> bool:
    """Whether a refused value, exit code 2, gives one line; any other exit code is accepted."""
    return code != 2 or len(output.strip().splitlines()) == 1


# ── In this process ───────────────────────────────────────────────────────────────────────────
class Accepted(Exception):
    """Raised instead of long work, after all options have been checked."""


@pytest.fixture
def without_long_work(monkeypatch):
    """No training, no study and no server; --threads changes nothing for later tests."""

    def accept(*arguments: object, **settings: object) -> None:
        raise Accepted

    monkeypatch.setattr("qkv.train.run_recipe.train_recipe", accept)
    monkeypatch.setattr("qkv.web.server.make_server", accept)
    monkeypatch.setattr("qkv.study.study.measure_study", accept)
    monkeypatch.setattr(threads, "_chosen", None)
    monkeypatch.setattr(threads, "set_torch_threads", lambda count: None)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def run_here(words: list[str], monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(sys, "argv", ["qkv", *words])
    try:
        main()
    except Accepted:
        return 0
    except SystemExit as ended:
        return int(ended.code or 0)
    raise AssertionError("main() exits")


@pytest.mark.usefixtures("without_long_work")
@pytest.mark.parametrize("value", VALUES, ids=lambda value: value[:9] or "empty")
@pytest.mark.parametrize("command, option", OPTIONS + THREADS)
def test_any_value_is_accepted_or_refused_in_one_line(
    command, option, value, arguments, monkeypatch, capsys
):
    code = run_here(with_value(arguments(command), option, value), monkeypatch)
    output = capsys.readouterr()
    assert code in (0, 2)
    assert is_one_line(code, output.err), output.err
    assert code == 2 or "nan" not in output.out.casefold()
    if value in ("", "x", "nan") or value == str(10**30):
        assert code == 2


@pytest.mark.usefixtures("without_long_work")
@pytest.mark.parametrize(
    "command, option, value, line",
    [
        ("translate", "--beam-size", "1000000", "beam_size: 1,000,000 is out of range"),
        ("generate", "--max-new-tokens", "1000000000000", "max_new_tokens: 1,000,000,000,000 is"),
        ("generate", "--n", "100000000", "n: 100,000,000 is out of range; use 1 to 16,384"),
        ("generate", "--temperature", "1e-45", "temperature: 1e-45 is out of range"),
        ("generate", "--repetition-penalty", "1e-320", "repetition_penalty: 1e-320 is out of"),
        ("plan", "--gflops", "nan", "--gflops: nan is out of range; use 1e-09 to 1,000,"),
        ("demo", "--minutes", "nan", "--minutes: nan is out of range; use 0 to 1,000,000"),
        ("tokenizer train", "--vocab-size", "999999999", "--vocab-size: 999,999,999 is out of"),
    ],
)
def test_a_refused_value_names_the_option_and_its_range(
    command, option, value, line, arguments, monkeypatch, capsys
):
    assert run_here(with_value(arguments(command), option, value), monkeypatch) == 2
    assert capsys.readouterr().err.startswith(line)


def test_every_command_takes_threads(monkeypatch, capsys):
    monkeypatch.setattr(threads, "_chosen", None)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    root = get_command(app)
    for name in root.commands:
        assert run_here([name, "--help", "--threads", "1"], monkeypatch) == 0
        assert threads.chosen_threads() == 1
        monkeypatch.setattr(threads, "_chosen", None)


# ── As subprocesses ───────────────────────────────────────────────────────────────────────────
MAX_SECONDS, MAX_SECONDS_TO_END, MAX_BYTES = 10, 60, 10**9
FILES_PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "files.md"


def documented_codes() -> set[int]:
    """The exit codes of the page "Files"."""
    table = FILES_PAGE.read_text(encoding="utf-8").partition("## Exit codes")[2].partition("##")[0]
    return set(map(int, re.findall(r"^\| (\d+) \|", table, re.M)))


def run_apart(words: list[str], errors: Path) -> tuple[int, int]:
    """The exit code, as a shell reports it, and the maximum memory; SIGTERM after MAX_SECONDS."""
    with errors.open("wb") as stderr:
        process = subprocess.Popen(
            [sys.executable, "-m", "qkv", *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=stderr,
        )
    ended, status, usage = os.wait4(process.pid, os.WNOHANG)
    start, stopped = time.monotonic(), False
    while not ended:
        seconds = time.monotonic() - start
        if seconds > MAX_SECONDS and not stopped:
            stopped = True
            process.send_signal(signal.SIGTERM)
        if seconds > MAX_SECONDS_TO_END:
            process.kill()
        time.sleep(0.02)
        ended, status, usage = os.wait4(process.pid, os.WNOHANG)
    code = process.returncode = os.waitstatus_to_exitcode(status)
    return (128 - code if code < 0 else code), 1024 * usage.ru_maxrss


@pytest.mark.slow
@pytest.mark.parametrize("command, option", OPTIONS + [(name, "--threads") for name in ARGUMENTS])
def test_any_value_ends_with_a_documented_code_in_bounded_memory(
    command, option, arguments, tmp_path
):
    words = arguments(command)
    for number, value in enumerate(VALUES):
        own = [
            word.replace(str(tmp_path / "new"), str(tmp_path / f"new{number}")) for word in words
        ]
        code, size = run_apart(with_value(own, option, value), errors := tmp_path / "errors")
        text = errors.read_text(encoding="utf-8")
        assert code in documented_codes() - {1}, (value, code, text)
        assert is_one_line(code, text) and "Traceback" not in text, (value, text)
        assert size < MAX_BYTES, (value, size)
