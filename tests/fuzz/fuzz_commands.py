"""Command lines: random arguments of every command, each run in a fork with its own streams."""

import json
import os
import pkgutil
import shutil
import signal
import sys
import traceback
import webbrowser
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from random import Random
from typing import Any

import small_files
from fuzz_contract import limit_memory, wrong_line
from fuzz_readers import Target
from mutations import VALUES, mutate_json
from typer.main import get_command

from qkv.cli import main
from qkv.cli.app import app
from qkv.train import run_recipe
from qkv.web import server

SECONDS = 3  # a command that runs longer has accepted its arguments
PACKAGES = ("cli", "pipeline", "evaluate", "check", "explore", "engine", "plan")
MODELS = {"seq2seq": "translator", "causal-lm": "generator", "sentence-encoder": "embedder"}
COMMANDS = (
    "translate {translator} 三",
    "generate {generator} a --max-new-tokens 3",
    "embed {embedder} {texts}",
    "search {embedder} {texts} dog --index {new}",
    "evaluate {translator} --source {texts} --target {texts}",
    "check {generator}",
    "explore {generator} --no-browser",
    "attention {translator} cat --kind cross --out {new}.png",
    "export {generator} --to gguf --out {new}",
    "export {generator} --to huggingface --out {new} --inputs 0",
    "import {huggingface} --out {new} --inputs 0",
    "plan tiny --tokens 1000",
    "model show {generator}",
    "model new tiny --out {new}.json",
    "demo translate --out {new}",
    "glossary",
    "tokenizer train {texts} --out {new}.json --kind bpe --vocab-size 40",
    "tokenizer encode {tokenizer} cat",
    "tokenizer show {tokenizer} cat",
    "train generate --text {texts} --out {new} --set steps=2",
    "train translate --source {texts} --target {texts} --out {new} --set lr=1",
)


def import_all() -> None:
    """Import what the commands import when they need it: in the fork of each, it takes longer."""
    for package in PACKAGES:
        folder = import_module(f"qkv.{package}").__path__
        for module in pkgutil.iter_modules(folder, f"qkv.{package}."):
            import_module(module.name)


class Accepted(Exception):
    """Raised instead of long work, after all options have been checked."""


def accept(*arguments: object, **settings: object) -> None:
    raise Accepted


def options_of(command: Any) -> Iterator[str]:
    """Every option of every command."""
    for sub in getattr(command, "commands", {}).values():
        yield from options_of(sub)
    for parameter in command.params:
        yield from parameter.opts


OPTIONS = sorted({name for name in options_of(get_command(app)) if name.startswith("-")})
# Not absolute: an output of that name is written to the folder of the run.
TEXTS = [str(value) for value in VALUES if not str(value).startswith(("/", "../"))]


def mutate_arguments(rng: Random, raw: bytes) -> bytes:
    """Other values, more options, or a JSON mutation of the list of arguments."""
    if rng.random() < 0.3:
        return mutate_json(rng, raw)
    words = json.loads(raw)
    for _change in range(rng.choice((1, 1, 2))):
        value, at = rng.choice(TEXTS), rng.randrange(len(words))
        option = rng.choice(OPTIONS)
        added = rng.choice(([f"{option}={value}"], [option, value], [option], [value]))
        words = rng.choice(
            ([*words, *added], words[:at] + added + words[at + 1 :], words[:at] + words[at + 1 :])
        ) or ["--help"]
    return json.dumps(words).encode()


def command_targets(folder: Path) -> Iterator[Target]:
    """The arguments of each command, as a JSON list in a file."""
    import_all()
    folder.mkdir()
    names = {"new": folder / "new", "texts": folder / "texts.txt"}
    names["texts"].write_text("\n".join(small_files.TEXTS) + "\n", encoding="utf-8")
    for kind, name in MODELS.items():
        names[name] = small_files.qkv_folder(folder / name, kind)
    names["tokenizer"] = names["generator"] / "tokenizer.json"
    names["huggingface"] = next(small_files.huggingface_folders(folder / "huggingface"))
    for number, line in enumerate(COMMANDS):
        path = folder / f"arguments-{number}.json"
        words = [word.format(**names) for word in line.split()]
        path.write_text(json.dumps(words))
        yield Target(path, path.read_bytes(), lambda path=path: run_command(path))


def run_command(path: Path) -> None:
    """Run the command in a fork; raises AssertionError for a wrong exit code or error text."""
    try:
        words = json.loads(path.read_bytes().decode(errors="replace"))
    except (ValueError, RecursionError):
        words = []
    words = [str(word) for word in words] if isinstance(words, list) else []
    errors = path.with_suffix(".stderr")
    errors.write_bytes(b"")
    for made in path.parent.glob("new*"):  # by an earlier command
        shutil.rmtree(made) if made.is_dir() else made.unlink()
    child = os.fork()
    if not child:
        run_here(words, path.parent, errors)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    text = errors.read_text(encoding="utf-8", errors="replace")
    assert code in (0, 1, 2, 130, 141, -signal.SIGALRM), f"exit code {code}: {text[-200:]}"
    assert "Traceback" not in text and "panicked" not in text, text[-500:]
    if code == 2:
        wrong = wrong_line(text.removesuffix("\n"), path_length=600)
        assert wrong is None, wrong


def run_here(words: list[str], folder: Path, errors: Path) -> None:
    """Run the command in this process, and exit."""
    run_recipe.train_recipe = server.make_server = webbrowser.open = accept  # type: ignore
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(SECONDS)
    limit_memory()
    (folder / "work").mkdir(exist_ok=True)
    os.chdir(folder / "work")
    for descriptor, name in enumerate((os.devnull, os.devnull, errors)):
        opened = os.open(name, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
        os.dup2(opened, descriptor)
    sys.stdin, sys.stdout, sys.stderr = (
        os.fdopen(descriptor, mode, 1, encoding="utf-8", errors="surrogateescape", closefd=False)
        for descriptor, mode in enumerate("rww")
    )
    sys.argv = ["qkv", *words]
    code = 1
    try:
        main()
    except SystemExit as ended:
        code = int(ended.code or 0)
    except Accepted:
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)
