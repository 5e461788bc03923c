"""Every message has a Chinese translation with the same placeholders; the code has English only."""

import ast
import re
from io import BytesIO
from pathlib import Path
from string import Formatter

import pytest
from babel.messages.extract import extract_from_dir
from babel.messages.mofile import write_mo
from babel.messages.pofile import read_po

import qkv
from qkv.messages import Both, both, listed, set_language, translate

PACKAGE = Path(qkv.__file__).parent
CATALOG = PACKAGE / "locale" / "zh_CN" / "LC_MESSAGES" / "qkv.po"
MARKERS = ("_", "N_", "both")
KEYWORDS = {**dict.fromkeys(MARKERS), "ApiError": (2,), "option": (2,), "argument": (2,)}
CJK = re.compile(r"[\u3000-\u303f\u4e00-\u9fff\uff00-\uffef]")
# The built-in corpus, its example sentences, and punctuation that the text code handles.
CHINESE_DATA = {
    "cli/demo_embed.py",
    "cli/demo_generate.py",
    "cli/demo_translate.py",
    "cli/tokenizer.py",
    "explore/metadata.py",
    "web/api_errors.py",
    "messages.py",
    "study/context.py",
    "study/coreference.py",
    "study/word_sentences.py",
    "text/normalization.py",
    "text/sentences.py",
    "train/prepare.py",
}
SOURCES = sorted(PACKAGE.rglob("*.py"))


def messages() -> set[str]:
    found = extract_from_dir(PACKAGE, method_map=[("**.py", "python")], keywords=KEYWORDS)
    return {message for _file, _line, message, _comments, _context in found}


def catalog():
    with CATALOG.open("rb") as file:
        return read_po(file)


def placeholders(text: str) -> set[str]:
    return {name for _text, name, _spec, _conversion in Formatter().parse(text) if name is not None}


def test_messages_and_translations_correspond():
    translated = {entry.id: entry.string for entry in catalog() if entry.id}
    assert {message for message in messages() if not translated.get(message)} == set()
    assert set(translated) - messages() == set()
    assert [entry.id for entry in catalog() if entry.id and entry.fuzzy] == []


def test_a_translation_has_the_placeholders_of_its_message():
    formatted = [entry for entry in catalog() if entry.id and "python-brace-format" in entry.flags]
    assert len(formatted) > 100
    assert [
        entry.id for entry in formatted if placeholders(entry.id) != placeholders(entry.string)
    ] == []


def test_the_compiled_catalog_is_up_to_date():
    compiled = BytesIO()
    write_mo(compiled, catalog())
    assert CATALOG.with_suffix(".mo").read_bytes() == compiled.getvalue(), "run: make messages"


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_the_code_has_english_messages_that_babel_finds(path):
    name, tree = str(path.relative_to(PACKAGE)), ast.parse(path.read_text(encoding="utf-8"))
    if not name.startswith("data/builtin/") and name not in CHINESE_DATA:
        docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        texts = [
            node.value
            for node in ast.walk(tree)
            if isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and id(node) not in docstrings
        ]
        assert [text for text in texts if CJK.search(text)] == []
    for call in calls(tree):
        assert not call.args or isinstance(
            call.args[0], ast.Constant | ast.Name | ast.Attribute | ast.Subscript
        ), ast.unparse(call)
    inside = [
        ast.unparse(call)
        for node in ast.walk(tree)
        if isinstance(node, ast.JoinedStr)
        for call in calls(node)
    ]
    assert inside == [], "Babel does not extract from f-strings"


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_no_function_that_translates_binds_the_name_of_gettext(path):
    """`path, _, query = ...` makes `_` a local variable, and `_("...")` fails in that function."""
    for function in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(function, ast.FunctionDef) and calls(function):
            inner = {
                id(node)
                for part in ast.walk(function)
                if isinstance(part, ast.GeneratorExp | ast.ListComp | ast.SetComp | ast.DictComp)
                for node in ast.walk(part)
            }
            bound = [
                node
                for node in ast.walk(function)
                if isinstance(node, ast.Name) and node.id == "_" and isinstance(node.ctx, ast.Store)
            ]
            assert [node.lineno for node in bound if id(node) not in inner] == []


def calls(tree: ast.AST) -> list[ast.Call]:
    return [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in MARKERS
    ]


def test_messages_follow_the_language(monkeypatch):
    monkeypatch.setattr("qkv.messages._current", "en")
    assert translate("zh", "no such folder") == "没有这个文件夹"
    assert both("line {line}", line=3) == Both("line 3", "第 3 行")
    assert both("{norm}, {placement}", norm="RMSNorm", placement=Both("before", "之前")) == Both(
        "RMSNorm, before", "RMSNorm，之前"
    )
    assert listed(["a", "b"]) == "a, b"
    set_language("zh")
    assert listed(["a", "b"]) == "a、b"
