"""The English docs have each standard term in a heading or in the first sentence of a section."""

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGES = sorted(page for page in DOCS.rglob("*.md") if not page.name.endswith(".zh.md"))
TERMS = [
    "attention mask",
    "prefill",
    "speculative decoding",
    "hidden state",
    "quantization",
    "throughput",
    "mixture of experts",
    "GQA",
    "MLA",
    "in-batch negatives",
    "masked language modeling",
    "fine-tuning",
    "gradient accumulation",
    "gradient clipping",
    "early stopping",
    "mixed precision",
]


def is_prose(paragraph: str) -> bool:
    """Return whether a paragraph is text, not code, a formula, a table or a language link."""
    return not re.match(r"```|    |\||\[中文\]", paragraph)


def searchable_texts(page: Path) -> list[str]:
    """Return the headings of a page, each followed by the first sentence of its first paragraph."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    texts = []
    for heading, body in re.findall(r"^#+ ([^\n]*)\n(.*?)(?=^#+ |\Z)", text, flags=re.M | re.S):
        paragraphs = [part for part in re.split(r"\n\s*\n", body.strip("\n")) if is_prose(part)]
        first_sentence = re.split(r"(?<=[.:?!])\s", paragraphs[0])[0] if paragraphs else ""
        texts += [heading, " ".join(first_sentence.split())]
    return texts


@pytest.mark.parametrize("term", TERMS)
def test_a_heading_or_first_sentence_has_the_term(term):
    pattern = re.compile(rf"\b{re.escape(term)}", re.I)
    assert [text for page in PAGES for text in searchable_texts(page) if pattern.search(text)]


def test_headings_and_first_sentences_are_found():
    texts = searchable_texts(DOCS / "explanation" / "model.md")
    assert "Attention mask" in texts
    assert "The attention mask says which keys a query may attend to." in texts
    assert not any("import torch" in text for text in texts)
