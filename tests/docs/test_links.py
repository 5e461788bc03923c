"""Links and images of the pages outside docs/ exist; mkdocs checks those inside."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FILES = sorted([*ROOT.glob("*.md"), *ROOT.glob(".github/**/*.md")])
README_SECTIONS = [
    "Install", "Quickstart", "Features", "Supported models and formats", "Results",
    "Your own data", "Inspecting a model", "Code layout", "License",
]  # fmt: skip


@pytest.mark.parametrize("file", FILES, ids=[file.name for file in FILES])
def test_every_linked_file_exists(file):
    text = file.read_text(encoding="utf-8")
    for target, anchor in re.findall(r"\]\(([^)#\s:]*)(?:#([^)]*))?\)", text):
        path = file.parent / target if target else file
        assert path.exists(), target
        if anchor:
            assert anchor in anchors(path), (target, anchor)


def anchors(page: Path) -> set[str]:
    """The anchors of the headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)", page.read_text(encoding="utf-8"), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_both_readmes_have_the_same_structure():
    english, chinese = (
        (ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "README.zh-CN.md")
    )
    assert re.findall(r"^## (.*)", english, re.M) == README_SECTIONS
    assert len(re.findall(r"^## ", chinese, re.M)) == len(README_SECTIONS)
    chinese_links = [link.replace(".zh.md", ".md") for link in links(chinese)]
    assert sorted(set(chinese_links) - {"README.md"}) == sorted(
        set(links(english)) - {"README.zh-CN.md"}
    )


def links(text: str) -> list[str]:
    return re.findall(r"\]\(([^)]+)\)", text)


def test_images_are_small():
    images = list((ROOT / "docs" / "images").glob("*.png"))
    assert {image.name for image in images} == {"attention.png", "explorer.png"}
    assert all(image.stat().st_size < 150_000 for image in images)
