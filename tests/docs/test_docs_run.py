"""The Python blocks of the docs run, and both languages have the same sections and code."""

import ast
import re
from pathlib import Path

import pytest
import torch

from qkv.checkpoint.folder import save_model
from qkv.model.presets import encoder_decoder
from qkv.model.transformer import Transformer
from qkv.text.train_tokenizer import train_tokenizer

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
PAIRS = [(page, other) for page in PAGES if (other := page.with_suffix(".zh.md")).exists()]
# The code of the Chinese pages equals that of the English ones.
CODE_PAGES = [page for page in PAGES if page not in {other for _, other in PAIRS}]


def name(page: Path) -> str:
    """Return the path of a page below docs/."""
    return page.relative_to(DOCS).as_posix()


def blocks(page: Path) -> list[tuple[int, str]]:
    """Return the Python blocks of a page, each with its first line number."""
    text = page.read_text(encoding="utf-8")
    return [
        (text.count("\n", 0, match.start(1)) + 1, match[1])
        for match in re.finditer(r"^```python\n(.*?)^```", text, re.M | re.S)
    ]


def headings(page: Path) -> list[str]:
    """Return the levels of the headings, such as "##", in order; code blocks are ignored."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    return re.findall(r"^(#+) ", text, re.M)


@pytest.fixture(scope="session")
def example_folder(tmp_path_factory) -> Path:
    """Return a folder with the model that the pages use: runs/zh-en, an untrained translator."""
    folder = tmp_path_factory.mktemp("docs")
    tokenizer = train_tokenizer(
        "bpe", ["我爱机器学习", "I love machine learning", "第一行", "第三行"], vocab_size=60
    )
    torch.manual_seed(0)
    model = Transformer(encoder_decoder(tokenizer.vocab_size, 16, layers=1, n_heads=2, d_ff=32))
    save_model(folder / "runs" / "zh-en", model, {"tokenizer": tokenizer})
    return folder


@pytest.mark.parametrize("page", CODE_PAGES, ids=[name(page) for page in CODE_PAGES])
def test_every_python_block_of_a_page_runs(page, example_folder, monkeypatch):
    monkeypatch.chdir(example_folder)
    names: dict[str, object] = {"__name__": "__docs__"}
    for line, code in blocks(page):  # in order: later blocks use earlier ones
        exec(compile("\n" * (line - 1) + code, str(page), "exec"), names)


def code_of(block: str) -> str:
    """Return the syntax tree of a block: comments are translated and therefore ignored."""
    return ast.dump(ast.parse(block))


@pytest.mark.parametrize(("page", "other"), PAIRS, ids=[name(page) for page, _ in PAIRS])
def test_both_languages_have_the_same_sections_and_examples(page, other):
    assert headings(page) == headings(other)
    assert [code_of(code) for _, code in blocks(page)] == [
        code_of(code) for _, code in blocks(other)
    ]


def test_pages_and_their_blocks_are_found():
    page = DOCS / "explanation" / "model.md"
    assert page in PAGES and (page, page.with_suffix(".zh.md")) in PAIRS
    assert len(blocks(page)) >= 10


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
