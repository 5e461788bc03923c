"""The documentation is true: every Python block of every page runs, and both languages have the same parts and the same code."""

import ast
import re
from pathlib import Path

import pytest
import torch

from qkv.checkpoint.folder import save_model
from qkv.model.presets import encoder_decoder
from qkv.model.transformer import Transformer
from qkv.text.learn import learn

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGES = sorted(DOCS.glob("*.md"))
PAIRS = [(page, other) for page in PAGES if (other := page.with_suffix(".zh-CN.md")).exists()]
CODE_PAGES = [
    page for page in PAGES if page not in {other for _, other in PAIRS}
]  # the code of the others is the same


def blocks(page: Path) -> list[tuple[int, str]]:
    """The Python blocks of a page, each with the line it starts at."""
    text = page.read_text(encoding="utf-8")
    return [
        (text.count("\n", 0, found.start(1)) + 1, found[1])
        for found in re.finditer(r"^```python\n(.*?)^```", text, re.M | re.S)
    ]


def headings(page: Path) -> list[str]:
    """The marks of the headings, without their words; comments in code are no headings."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    return re.findall(r"^(#+) ", text, re.M)


@pytest.fixture(scope="session")
def desk(tmp_path_factory) -> Path:
    """A folder with what the pages speak of: runs/zh-en is a translator with its first weights."""
    folder = tmp_path_factory.mktemp("desk")
    tokenizer = learn(
        "bpe", ["我爱机器学习", "I love machine learning", "第一行", "第三行"], vocab_size=60
    )
    torch.manual_seed(0)
    model = Transformer(encoder_decoder(tokenizer.vocab_size, 16, layers=1, n_heads=2, d_ff=32))
    save_model(folder / "runs" / "zh-en", model, {"tokenizer": tokenizer})
    return folder


@pytest.mark.parametrize("page", CODE_PAGES, ids=[page.name for page in CODE_PAGES])
def test_every_python_block_of_a_page_runs(page, desk, monkeypatch):
    monkeypatch.chdir(desk)
    names: dict[str, object] = {"__name__": "__docs__"}
    for line, code in blocks(page):  # from the first to the last, as a reader would type them
        exec(compile("\n" * (line - 1) + code, str(page), "exec"), names)


def code_of(block: str) -> str:
    """A block without its comments, which are translated."""
    return ast.dump(ast.parse(block))


@pytest.mark.parametrize(("page", "other"), PAIRS, ids=[page.name for page, _ in PAIRS])
def test_both_languages_have_the_same_sections_and_examples(page, other):
    assert headings(page) == headings(other)
    assert [code_of(code) for _, code in blocks(page)] == [
        code_of(code) for _, code in blocks(other)
    ]


def test_the_pages_are_found_and_their_blocks_are_seen():
    assert DOCS / "model.md" in PAGES and (DOCS / "model.md", DOCS / "model.zh-CN.md") in PAIRS
    assert len(blocks(DOCS / "model.md")) >= 10


def test_every_page_and_section_that_the_code_names_is_there():
    titles = {
        page.name: re.findall(r"^#+ (.*)", page.read_text(encoding="utf-8"), re.M) for page in PAGES
    }
    for module in sorted((DOCS.parent / "qkv").rglob("*.py")):
        text = module.read_text(encoding="utf-8").replace("\n", " ")
        for page, section in re.findall(r'docs/([a-z0-9-]+\.md)(?:, "([^"]+)")?', text):
            assert page in titles, (module, page)
            assert not section or section in titles[page], (module, page, section)
        assert not re.search(r'told in docs, "', text, re.I), (
            module
        )  # a section without its page cannot be found
