"""Code structure: attention classes are short, and no forward branches on a kind.

An `if` is an if statement (an elif is one more) or a conditional expression, anywhere in the class.
"""

import ast
from pathlib import Path

import pytest

import qkv.model

FILES = sorted(Path(qkv.model.__path__[0]).glob("*.py"))
TREES = {path.stem: ast.parse(path.read_text(encoding="utf-8")) for path in FILES}
CLASSES = [
    (f"{stem}.{node.name}", node)
    for stem, tree in TREES.items()
    for node in tree.body
    if isinstance(node, ast.ClassDef)
]
ATTENTION = [(name, node) for name, node in CLASSES if name.startswith(("attention.", "latent."))]
FORWARDS = [
    (f"{name}.{part.name}", part)
    for name, node in CLASSES
    for part in node.body
    if isinstance(part, ast.FunctionDef)
    and part.name in ("forward", "mix", "expanded", "absorbed", "prepared")
]


@pytest.mark.parametrize(("name", "node"), ATTENTION, ids=[name for name, _ in ATTENTION])
def test_an_attention_class_has_at_most_70_lines_and_4_ifs(name, node):
    assert node.end_lineno - node.lineno + 1 <= 70
    assert sum(isinstance(part, ast.If | ast.IfExp) for part in ast.walk(node)) <= 4


@pytest.mark.parametrize(("name", "node"), FORWARDS, ids=[name for name, _ in FORWARDS])
def test_a_forward_never_branches_on_a_kind(name, node):
    for part in ast.walk(node):
        assert not isinstance(part, ast.Match)
        assert not (isinstance(part, ast.Name) and part.id in ("isinstance", "type", "issubclass"))
        assert not (isinstance(part, ast.Attribute) and part.attr == "kind")


def test_the_tests_above_find_the_attention_classes():
    assert {name for name, _ in ATTENTION} >= {
        "attention.GroupedQueryAttention",
        "attention.SdpaCore",
        "attention.CrossAttention",
        "latent.MultiHeadLatentAttention",
    }
    assert len(FORWARDS) >= 25


@pytest.mark.parametrize("path", FILES, ids=[path.stem for path in FILES])
def test_a_file_of_the_model_has_at_most_300_lines(path):
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 300
