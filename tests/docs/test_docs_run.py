"""The code of the docs runs, and both languages have the same sections and code."""

import ast
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import typer
from docs_pages import DOCS, ENGLISH, GUIDES, PAGES, PAIRS, blocks, check, commands, headings, name
from typer.core import TyperGroup
from typer.main import get_command

from qkv.checkpoint.folder import save_model
from qkv.cli.app import app
from qkv.data.builtin import builtin_pairs
from qkv.model.presets import encoder_decoder
from qkv.model.transformer import Transformer
from qkv.text.train_tokenizer import train_tokenizer

BIN = Path(sys.executable).parent
TRAINED, HELD_OUT = 600, 20  # pairs
SIZES = ["model.layers=1", "model.d_model=32", "model.n_heads=2", "model.d_ff=64"]
SHORT = [*SIZES, "vocab_size=400", "steps=8", "batch_tokens=800", "threads=1"]


@pytest.fixture(scope="session")
def example_folder(tmp_path_factory) -> Path:
    """Return a folder with the model that the Python blocks use: an untrained translator."""
    folder = tmp_path_factory.mktemp("docs")
    tokenizer = train_tokenizer(
        "bpe", ["我爱机器学习", "I love machine learning", "第一行", "第三行"], vocab_size=60
    )
    torch.manual_seed(0)
    model = Transformer(encoder_decoder(tokenizer.vocab_size, 16, layers=1, n_heads=2, d_ff=32))
    for run in ("demo", "tiny", "zh-en"):
        save_model(folder / "runs" / run, model, {"tokenizer": tokenizer})
    return folder


@pytest.mark.parametrize("page", ENGLISH, ids=[name(page) for page in ENGLISH])
def test_every_python_block_of_a_page_runs(page, example_folder, monkeypatch):
    monkeypatch.chdir(example_folder)
    names: dict[str, object] = {"__name__": "__docs__"}
    for line, code in blocks(page):  # in order: later blocks use earlier ones
        exec(compile("\n" * (line - 1) + code, str(page), "exec"), names)


def run_shell(line: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a line of a console block as a user does; stderr is part of the output."""
    environment = {**os.environ, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}", "QKV_LANG": "en"}
    return subprocess.run(
        ["bash", "-o", "pipefail", "-c", line],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )


@pytest.fixture(scope="session")
def trained(tmp_path_factory) -> Path:
    """Return a folder as the three demos leave it, with fewer pairs, steps and weights."""
    folder = tmp_path_factory.mktemp("trained")
    for demo in ("demo", "demo-generate", "demo-embed"):
        (folder / "runs" / demo).mkdir(parents=True)
    for file, pairs, n_pairs in zip(
        ("train.tsv", "valid.tsv"), builtin_pairs(), (TRAINED, HELD_OUT), strict=True
    ):
        rows = "".join(f"{source}\t{target}\n" for source, target in pairs[:n_pairs])
        (folder / "runs/demo" / file).write_text(rows, encoding="utf-8")
        (folder / "runs/demo-embed" / file).write_text(rows, encoding="utf-8")
        texts = "".join(json.dumps({"text": source}) + "\n" for source, _ in pairs[:n_pairs])
        (folder / "runs/demo-generate" / file).with_suffix(".jsonl").write_text(texts)
    for task, flags in (
        ("translate", "--source runs/demo/train.tsv --out runs/demo --set valid_bleu=false"),
        ("generate", "--text runs/demo-generate/train.jsonl --out runs/demo-generate"),
        (
            "embed",
            "--pairs runs/demo-embed/train.tsv --out runs/demo-embed --set tokenizer=byte_bpe",
        ),
    ):
        settings = " ".join(f"--set {setting}" for setting in SHORT)
        done = run_shell(f"qkv train {task} {flags} {settings}", folder)
        assert done.returncode == 0, done.stderr[-2_000:]
    return folder


@pytest.mark.parametrize("page", GUIDES, ids=[name(page) for page in GUIDES])
def test_the_first_console_block_of_a_guide_runs(page, trained, tmp_path):
    shutil.copytree(trained, tmp_path, dirs_exist_ok=True)
    for part in ("examples", "recipes"):  # of the repository
        (tmp_path / part).symlink_to(DOCS.parent / part)
    _, block = blocks(page, "console")[0]
    for command in commands(block):
        check(page, command, run_shell(command.line, tmp_path))


def qkv_commands(page: Path) -> Iterator[list[str]]:
    """Yield the arguments of every qkv command in the console blocks of a page."""
    for _, block in blocks(page, "console"):
        for command in commands(block):
            parts = [shlex.split(part) for part in re.split(r"\||>", command.line)]
            if "No such option" not in command.output:  # as the troubleshooting page shows
                yield from (words[1:] for words in parts if words and Path(words[0]).name == "qkv")


@pytest.mark.parametrize("page", ENGLISH, ids=[name(page) for page in ENGLISH])
def test_every_qkv_command_of_a_page_has_known_options(page):
    for words in qkv_commands(page):
        command = get_command(app)
        context = typer.Context(command, info_name="qkv")
        while isinstance(command, TyperGroup):
            found, command, words = command.resolve_command(context, words)
            context = typer.Context(command, info_name=found, parent=context)
        command.make_parser(context).parse_args(words)  # raises for an unknown option


def test_every_run_folder_of_a_command_is_made_by_another_command():
    pages = [*ENGLISH, DOCS.parent / "README.md"]
    lines = [
        command.line
        for page in pages
        for _, block in blocks(page, "console")
        for command in commands(block)
    ]
    made = {"runs/demo", "runs/demo-generate", "runs/demo-embed"}  # by qkv demo
    made |= {folder for line in lines for folder in re.findall(r"--out (runs/[\w-]+)", line)}
    used = {folder for line in lines for folder in re.findall(r"runs/[\w-]+", line)}
    assert used - made == {"runs/none"}  # an error of the troubleshooting page


def code_of(block: str) -> str:
    """Return the syntax tree of a block: comments are translated and therefore ignored."""
    return ast.dump(ast.parse(block))


@pytest.mark.parametrize(("page", "other"), PAIRS, ids=[name(page) for page, _ in PAIRS])
def test_both_languages_have_the_same_sections_and_examples(page, other):
    assert headings(page) == headings(other)
    assert [code_of(code) for _, code in blocks(page)] == [
        code_of(code) for _, code in blocks(other)
    ]
    lines, other_lines = (
        [command.line for _, block in blocks(file, "console") for command in commands(block)]
        for file in (page, other)
    )
    assert lines == other_lines


def test_pages_and_their_blocks_are_found():
    page = DOCS / "explanation" / "model.md"
    assert page in PAGES and (page, page.with_suffix(".zh.md")) in PAIRS
    assert len(blocks(page)) >= 10
    assert sum(1 for page in GUIDES for _ in qkv_commands(page)) >= 30


def test_every_page_and_section_named_in_the_code_exists():
    titles = {
        name(page): re.findall(r"^#+ (.*)", page.read_text(encoding="utf-8"), re.M)
        for page in PAGES
    }
    for module in sorted((DOCS.parent / "qkv").rglob("*.py")):
        text = " ".join(module.read_text(encoding="utf-8").split())
        for page, section in re.findall(r'docs/([a-z0-9/-]+\.md)(?:, "([^"]+)")?', text):
            assert page in titles, (module, page)
            assert not section or section in titles[page], (module, page, section)
