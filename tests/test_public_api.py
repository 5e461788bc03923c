"""Everything public has a Google-style docstring that agrees with its signature."""

import ast
import inspect
import pkgutil
import pydoc
import re
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import qkv
from qkv import study, train
from qkv.generate.alignment import Link
from qkv.generate.config import GenerationConfig, TranslationConfig
from qkv.model import presets
from qkv.pipeline.embed_options import EmbedOptions
from qkv.pipeline.generated_sequence import GeneratedSequence
from qkv.pipeline.index import Hit, Index
from qkv.pipeline.segments import Translation
from qkv.pipeline.vectors import VectorWriter

ROOT = Path(qkv.__file__).parent
CLASSES: list[Any] = [
    qkv.Translator,
    qkv.Generator,
    qkv.Embedder,
    qkv.Tokenizer,
    qkv.Spec,
    qkv.Custom,
    qkv.Transformer,
    qkv.QkvError,
    TranslationConfig,
    GenerationConfig,
    EmbedOptions,
    Translation,
    GeneratedSequence,
    Link,
    Index,
    Hit,
    VectorWriter,
    train.TranslateRecipe,
    train.GenerateRecipe,
    train.EmbedRecipe,
    train.TrainingStep,
    study.Study,
    study.StudyConfig,
]
FUNCTIONS: list[Any] = [
    qkv.load,
    train.run,
    study.run,
    study.names,
    presets.preset,
    presets.find_preset,
    presets.from_sizes,
    presets.encoder_decoder,
    presets.decoder_only,
    presets.encoder_only,
    presets.marian,
    presets.gpt2,
    presets.llama,
    presets.qwen,
    presets.deepseek,
]


def is_record(kind: type) -> bool:
    """A dataclass or NamedTuple: its fields are the arguments."""
    return is_dataclass(kind) or hasattr(kind, "_fields")


def members(kind: type) -> dict[str, Any]:
    """What a class and its base classes in qkv define; an override without docs inherits them."""
    bases = [base for base in reversed(kind.__mro__) if base.__module__.startswith("qkv.")]
    found: dict[str, Any] = {}
    for base in bases:
        found |= {name: m for name, m in vars(base).items() if name not in found or documented(m)}
    return found


def documented(member: Any) -> bool:
    return bool(getattr(member, "__doc__", None))


def methods(kind: type) -> Iterator[tuple[str, Callable[..., Any]]]:
    """The public functions that a class defines, and its constructor unless it is generated."""
    special = {"__call__"} if is_record(kind) else {"__call__", "__init__"}
    for name, member in members(kind).items():
        if name in special or not name.startswith("_"):
            function = member.__func__ if isinstance(member, classmethod) else member
            if inspect.isfunction(function):
                yield name, function


CALLABLES = {function.__name__: function for function in FUNCTIONS} | {
    f"{kind.__name__}.{name}": method for kind in CLASSES for name, method in methods(kind)
}


def section(owner: Any, title: str) -> str:
    """The indented lines under "title:" of a docstring, or an empty string."""
    text = inspect.getdoc(owner) or ""
    found = re.search(rf"^{title}:\n((?:    .*\n?|\n)+)", text, re.MULTILINE)
    return inspect.cleandoc(found[1]) if found else ""


def names(owner: Any, title: str) -> list[str]:
    """The names that a section explains; "a, b: ..." explains two."""
    lines = re.findall(r"^([\w, ]+): ", section(owner, title), re.MULTILINE)
    return [name for line in lines for name in line.split(", ")]


def has_example(owner: Any) -> bool:
    text = inspect.getdoc(owner) or ""
    return bool(re.search(r"^(>>> |Example:)", text, re.MULTILINE))


@pytest.mark.parametrize("name", CALLABLES)
def test_args_are_the_parameters_in_their_order(name):
    parameters = [*inspect.signature(CALLABLES[name]).parameters]
    expected = [parameter for parameter in parameters if parameter not in ("self", "cls")]
    assert inspect.getdoc(CALLABLES[name]), "no docstring"
    assert names(CALLABLES[name], "Args") == expected


@pytest.mark.parametrize("name", CALLABLES)
def test_a_result_is_described(name):
    function = CALLABLES[name]
    returns = inspect.signature(function).return_annotation
    if returns in (None, inspect.Signature.empty):
        assert not section(function, "Returns")
    elif inspect.isgeneratorfunction(function) or "Iterator" in str(returns):
        assert section(function, "Yields")
    elif f"{returns}".rpartition(".")[2] not in ("Self", name.partition(".")[0]):  # a constructor
        assert section(function, "Returns")


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_a_class_has_an_example_and_documented_members(kind):
    assert has_example(kind), kind
    for name, member in members(kind).items():
        if isinstance(member, property) or type(member).__name__ == "cached_property":
            assert name.startswith("_") or inspect.getdoc(member), name


@pytest.mark.parametrize("kind", filter(is_record, CLASSES), ids=lambda kind: kind.__name__)
def test_the_fields_of_a_record_are_documented(kind):
    """Those of a recipe by their explanations, which `qkv train --explain` prints too."""
    if is_dataclass(kind):
        expected = [field.name for field in fields(kind) if "explanation" not in field.metadata]
    else:
        expected = list(kind._fields)
    assert names(kind, "Attributes") == expected


@pytest.mark.parametrize("function", [qkv.load, train.run, qkv.preset, presets.from_sizes])
def test_a_function_has_an_example(function):
    assert has_example(function)


@pytest.mark.parametrize("name", sorted(set(qkv.__all__) - {"__version__"}))
def test_help_shows_a_public_name(name):
    text = pydoc.plain(pydoc.render_doc(getattr(qkv, name)))
    assert inspect.cleandoc(getattr(qkv, name).__doc__).splitlines()[0] in text
    assert f"{name}" in pydoc.plain(pydoc.render_doc(qkv))


PACKAGES = ["qkv"] + [
    module.name
    for module in pkgutil.walk_packages([str(ROOT)], "qkv.")
    if module.ispkg
]  # fmt: skip


@pytest.mark.parametrize("package", PACKAGES)
def test_all_lists_the_names_that_a_package_exports(package):
    """A package that defines or imports public names lists them; others have no `__all__`."""
    module = import_module(package)
    tree = ast.parse(Path(str(module.__file__)).read_text(encoding="utf-8"))
    defined = {
        name
        for node in tree.body
        if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.ImportFrom | ast.Assign)
        for name in defined_names(node)
    }
    exported = getattr(module, "__all__", [])
    assert bool(exported) == bool(defined), sorted(defined)
    for name in exported:
        assert getattr(module, name) is not None
    assert len(exported) == len(set(exported)) and [*exported] == sorted(exported)


DOCUMENTED = [ROOT.parent / "README.md", *ROOT.parent.glob("docs/**/*.md")]
EXAMPLES = sorted((ROOT.parent / "examples").glob("*.py"))


def documented_names() -> set[tuple[str, str]]:
    """The module and name of every import from qkv in the docs' Python blocks and the examples."""
    blocks = [
        block
        for page in DOCUMENTED
        for block in re.findall(
            r"^```python\n(.*?)^```", page.read_text(encoding="utf-8"), re.M | re.S
        )
    ] + [script.read_text(encoding="utf-8") for script in EXAMPLES]
    return {
        (str(node.module), alias.name)
        for block in blocks
        for node in ast.walk(ast.parse(block))
        if isinstance(node, ast.ImportFrom) and str(node.module).split(".")[0] == "qkv"
        for alias in node.names
    }


def test_all_lists_the_documented_names_of_a_module():
    names = documented_names() | {
        (item.__module__, item.__name__) for item in [*CLASSES, *FUNCTIONS]
    }
    assert len(names) > 60
    for module, name in sorted(names):
        imported = import_module(module)
        if not isinstance(getattr(imported, name, imported), ModuleType):
            assert name in imported.__all__, (module, name)


def defined_names(node: ast.stmt) -> list[str]:
    """The public names that a statement defines; imports count only if they are the package's."""
    match node:
        case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
            found = [name]
        case ast.ImportFrom(names=aliases):
            found = [alias.asname or alias.name for alias in aliases]
        case ast.Assign(targets=targets):
            found = [target.id for target in targets if isinstance(target, ast.Name)]
    return [name for name in found if not name.startswith("_")]


def test_type_information_is_shipped():
    assert (ROOT / "py.typed").is_file()
    settings = (ROOT.parent / "pyproject.toml").read_text(encoding="utf-8")
    assert re.search(r'^"qkv" = \[.*"py.typed"', settings, re.MULTILINE)
