"""The reference pages agree with the code: generated pages, lists, exit codes, variables, JSON."""

import ast
import json
import re
import runpy
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from qkv.check.result import CheckResult
from qkv.checkpoint.families import FAMILIES
from qkv.checkpoint.gguf.architectures import ARCHITECTURES
from qkv.checkpoint.loaded_model import WeightsMetadata
from qkv.checkpoint.parity import ParityReport
from qkv.cli.app import app, run
from qkv.cli.convert import FORMATS
from qkv.data.corpus import DOCUMENT_SUFFIXES
from qkv.evaluate.scores import Scores
from qkv.files import VECTOR_FILES
from qkv.generate.alignment import Link
from qkv.pipeline.generated_sequence import GeneratedSequence
from qkv.pipeline.index import Hit
from qkv.pipeline.segments import Translation
from qkv.text.train_tokenizer import KINDS
from qkv.train.signals import SIGNALS, STOPPED

ROOT = Path(__file__).resolve().parents[2]
REFERENCE = ROOT / "docs" / "reference"
GENERATED = ["cli", "recipe", "model-json"]
LANGUAGES = ["md", "zh.md"]
CODE = re.compile(r"`([^`]+)`")


def tables(page: str) -> list[list[list[str]]]:
    """Return the tables of a page: their rows, without the header, as lists of cells."""
    text = (REFERENCE / page).read_text(encoding="utf-8")
    found = re.findall(r"^\|.*\n\|[-|]+\|\n((?:\|.*\n)+)", text, re.M)
    return [[re.split(r"(?<!\\)\|", row)[1:-1] for row in rows.splitlines()] for rows in found]


def commands() -> Iterator[tuple[str, Any]]:
    """Return the path of each command, such as "qkv model show", with the command."""
    waiting: list[tuple[str, Any]] = [("qkv", get_command(app))]
    while waiting:
        path, command = waiting.pop()
        subcommands = getattr(command, "commands", {})
        waiting += [(f"{path} {name}", sub) for name, sub in subcommands.items()]
        if not subcommands:
            yield path, command


# ── Generated pages ───────────────────────────────────────────────────────────────────────────
@pytest.fixture(scope="module")
def regenerated(tmp_path_factory) -> Path:
    """A folder with the generated pages as the code is now."""
    folder = tmp_path_factory.mktemp("reference")
    script = ROOT / "scripts" / "write_reference.py"
    subprocess.run([sys.executable, str(script), str(folder)], check=True, timeout=300)
    return folder


@pytest.mark.parametrize(
    "name",
    [f"{page}.{suffix}" for page in GENERATED for suffix in LANGUAGES]
    + [f"api/{page.name}" for page in sorted((REFERENCE / "api").iterdir())],
)
def test_a_generated_page_is_the_one_that_the_code_gives(regenerated, name):
    expected = (regenerated / name).read_text(encoding="utf-8")
    assert (REFERENCE / name).read_text(encoding="utf-8") == expected, (
        "run scripts/write_reference.py"
    )


def test_every_page_that_is_written_is_committed(regenerated):
    for page in regenerated.rglob("*.md"):
        assert (REFERENCE / page.relative_to(regenerated)).is_file(), page.name


@pytest.mark.parametrize("suffix", LANGUAGES)
def test_the_page_of_the_commands_has_every_option(suffix):
    page = (REFERENCE / f"cli.{suffix}").read_text(encoding="utf-8")
    for path, command in commands():
        text = re.search(rf"^###? {path}\n(.*?)(?=^##|\Z)", page, re.M | re.S)[1]
        for parameter in command.params:
            for option in [*parameter.opts, *parameter.secondary_opts]:
                assert (
                    not option.startswith("-") or f"| `{option}" in text or f", `{option}" in text
                )


# ── Supported models and formats ──────────────────────────────────────────────────────────────
@pytest.mark.parametrize("suffix", LANGUAGES)
def test_supported_families_tokenizers_and_formats_are_those_of_the_code(suffix):
    families, kinds, _, model_formats, data_formats, *_ = tables(f"supported.{suffix}")
    assert [CODE.findall(row[0]) for row in families] == [[name] for name in FAMILIES]
    assert [CODE.findall(row[0]) for row in kinds] == [[name] for name in KINDS]
    exports = re.findall(r"--to (\w+)", str(model_formats))
    assert list(dict.fromkeys(exports)) == list(FORMATS)
    assert CODE.findall(model_formats[-1][0]) == list(ARCHITECTURES)
    assert tuple(CODE.findall(data_formats[-1][1])) == VECTOR_FILES
    assert {f".{name}" for name in ("txt", "md", "jsonl")} == {
        suffix.removesuffix(".gz") for suffix in DOCUMENT_SUFFIXES
    }
    assert CODE.findall(data_formats[1][1])[:3] == [".txt", ".md", ".jsonl"]


@pytest.mark.parametrize("suffix", LANGUAGES)
def test_supported_versions_are_those_of_the_package(suffix):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (python, torch) = (row[1].split()[0] for row in tables(f"supported.{suffix}")[-1])
    assert f"Programming Language :: Python :: {python}" in project["classifiers"]
    assert project["requires-python"].startswith(f">={python},")
    assert f"torch>={torch}" in project["dependencies"]


# ── Files ─────────────────────────────────────────────────────────────────────────────────────
def environment_variables(path: Path) -> set[str]:
    """The variables that a module reads or sets by os.environ; a name stands for its values."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    values: dict[str, list[str]] = {}
    for node in ast.walk(tree):
        match node:
            case ast.Assign(targets=[ast.Name(name)], value=value):
                values[name] = strings(value)
            case ast.For(target=ast.Name(name), iter=value):
                values[name] = strings(value)
    found = set()
    for key in filter(None, map(environment_key, ast.walk(tree))):
        names = values.get(key.id, []) if isinstance(key, ast.Name) else strings(key)
        assert names, f"{path}: the name of the variable is not found"
        found |= set(names)
    return found


def strings(node: ast.AST) -> list[str]:
    """The strings in an expression."""
    constants = [part.value for part in ast.walk(node) if isinstance(part, ast.Constant)]
    return [value for value in constants if isinstance(value, str)]


def environment_key(node: ast.AST) -> ast.expr | None:
    """The key of os.environ[key], os.environ.get(key, ...) or os.getenv(key)."""
    match node:
        case ast.Subscript(value=ast.Attribute(attr="environ"), slice=key):
            return key
        case ast.Call(func=ast.Attribute(value=ast.Attribute(attr="environ")), args=[key, *_]):
            return key
        case ast.Call(func=ast.Attribute(attr="getenv"), args=[key, *_]):
            return key
    return None


@pytest.mark.parametrize("suffix", LANGUAGES)
def test_environment_variables_are_those_that_the_code_reads(suffix):
    package = ROOT / "qkv"
    used = set().union(*map(environment_variables, package.rglob("*.py")))
    for source in [*package.rglob("*.cpp"), *package.rglob("*.h")]:
        used |= set(re.findall(r'getenv\("(\w+)"', source.read_text(encoding="utf-8")))
    documented = [name for row in tables(f"files.{suffix}")[-1] for name in CODE.findall(row[0])]
    assert sorted(documented) == sorted(used)


def test_environment_variables_in_any_notation_are_found(tmp_path):
    module = tmp_path / "module.py"
    module.write_text(
        "import os\nA = 'ONE'\nos.environ.get(A)\nfor name in ('TWO', 'THREE'):\n"
        "    os.environ[name]\nos.getenv('FOUR', 'x')\n"
    )
    assert environment_variables(module) == {"ONE", "TWO", "THREE", "FOUR"}


@pytest.mark.parametrize("suffix", LANGUAGES)
def test_exit_codes_are_those_of_the_code(suffix):
    main = (ROOT / "qkv" / "cli" / "__init__.py").read_text(encoding="utf-8")
    codes = {0, 1, STOPPED, *map(int, re.findall(r"\bcode = (\d+)", main))}
    codes |= {128 + number for number in SIGNALS}  # of a second signal in training
    assert [int(row[0]) for row in tables(f"files.{suffix}")[-2]] == sorted(codes)


def json_rows(suffix: str) -> dict[str, set[str]]:
    """The fields of the JSON output by command; rows of the same command are joined."""
    rows: dict[str, set[str]] = {}
    for names, documented in tables(f"files.{suffix}")[-3]:
        for name in re.findall(r"`(qkv [a-z ]*[a-z])", names):
            rows.setdefault(name, set()).update(CODE.findall(documented))
    return rows


@pytest.mark.parametrize("suffix", LANGUAGES)
def test_the_json_fields_of_every_command_with_json_are_listed(suffix):
    with_json = {
        path
        for path, command in commands()
        if any("--json" in parameter.opts for parameter in command.params)
    }
    assert json_rows(suffix).keys() == with_json


@pytest.mark.parametrize("suffix", LANGUAGES)
def test_json_fields_are_those_of_the_dataclasses(suffix):
    rows = json_rows(suffix)
    records = {
        "qkv translate": [Translation],
        "qkv generate": [GeneratedSequence],
        "qkv search": [Hit],
        "qkv check": [CheckResult],
        "qkv export": [WeightsMetadata, ParityReport],
        "qkv evaluate": [Scores],
    }
    for command, types in records.items():
        names = {field.name for record in types for field in fields(record)}
        assert names <= rows[command], command
    assert set(Link._fields) <= rows["qkv translate"]


@pytest.mark.parametrize(
    "command",
    [
        "qkv plan tiny --tokens 1000 --gflops 1",
        "qkv model show tiny",
        "qkv glossary",
        "qkv glossary gpt2",
    ],
)
def test_json_output_has_the_listed_fields(command, capsys):
    assert run([*command.split()[1:], "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    keys = {
        key for record in (printed if isinstance(printed, list) else [printed]) for key in record
    }
    name = next(name for name in json_rows("md") if command.startswith(name))
    for suffix in LANGUAGES:
        assert keys <= json_rows(suffix)[name]


# ── Python API ────────────────────────────────────────────────────────────────────────────────
def test_examples_of_docstrings_are_shown_as_code():
    extension = runpy.run_path(str(ROOT / "scripts" / "reference" / "docstring_examples.py"))
    with_code = extension["with_code"]
    assert with_code("A.\n\nExample:\n    f(x)\n\n    y[0][2]\n\nArgs:\n    x: One.") == (
        "A.\n\nExample:\n    ```python\n    f(x)\n\n    y[0][2]\n    ```\n\n\nArgs:\n    x: One."
    )
    assert with_code("A.\n\nExample: f(x)[0]") == "A.\n\nExample: `f(x)[0]`"
    assert with_code("A.\n\nArgs:\n    x: One.") == "A.\n\nArgs:\n    x: One."
