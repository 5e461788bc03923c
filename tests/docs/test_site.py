"""The documentation site builds without a warning, in both languages, and loads nothing remote."""

import json
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
from docs_pages import DOCS, ENGLISH, PAIRS, ROOT, links, name

INDEX = DOCS / "index.md"


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """The site as `make docs` builds it, in a temporary folder."""
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3_000:]
    assert "WARNING" not in done.stderr
    return folder


def test_every_page_is_in_the_site_in_its_languages(site):
    for page in ENGLISH:
        html = Path(name(page)).with_suffix(".html")
        assert (site / html).is_file() and (site / "zh" / html).is_file(), html
    for _, chinese in PAIRS:
        html = (site / "zh" / name(chinese).replace(".zh.md", ".html")).read_text(encoding="utf-8")
        title = re.search(r"^# (.*)", chinese.read_text(encoding="utf-8"), re.M)[1]
        assert title.replace("`", "") in html, chinese


@pytest.mark.parametrize("index", [INDEX, INDEX.with_suffix(".zh.md")], ids=["en", "zh"])
def test_every_page_is_two_links_from_the_index(index):
    suffix = ".zh.md" if index.name.endswith(".zh.md") else ".md"

    def translated(page: Path) -> Path:
        other = page.with_suffix(suffix)
        return other if other.exists() else page

    reached = {translated(page) for page in links(index)}
    reached |= {translated(page) for first in reached for page in links(first)}
    assert {translated(page) for page in ENGLISH} - {index} <= reached


class Resources(HTMLParser):
    """Collects the addresses that a browser loads with a page; links to other pages are not."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        address = values.get("src") or (values.get("href") if tag == "link" else None)
        if address and values.get("rel") not in ("canonical", "alternate", "next", "prev"):
            self.found.append(address)


def test_pages_load_nothing_from_other_hosts(site):
    pages = list(site.rglob("*.html"))
    for page in pages:
        parser = Resources()
        parser.feed(page.read_text(encoding="utf-8"))
        assert parser.found
        assert not [address for address in parser.found if re.match(r"(https?:)?//", address)], page


def test_the_search_index_has_both_languages_with_chinese_words_segmented(site):
    entries = json.loads((site / "search" / "search_index.json").read_text(encoding="utf-8"))
    texts = {entry["location"]: entry["title"] + entry["text"] for entry in entries["docs"]}
    assert "beam search" in texts["explanation/decoding.html#beam-search"].lower()
    chinese = texts["zh/explanation/decoding.html#束搜索"]
    assert "\u200b" in chinese and "束搜索" in chinese.replace("\u200b", "")
    assert entries["config"]["lang"] == ["en", "zh"]
