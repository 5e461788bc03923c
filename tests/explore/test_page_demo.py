"""The demo model on the page: for "learning", the cross-attention is highest on 学习, and one can read it there.

What the page shows first, the mean of all layers and heads, says so; so does the last head of the last layer. Single heads and the
mean of one layer may favour 机器: they have other tasks.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from browser import chromium, served, tab, until
from test_page_looks import asked_for_first_view

from qkv.cli.explore import open_explorer
from qkv.explore.app import make_app
from qkv.explore.offline import write_page

ROOT = Path(__file__).resolve().parents[2]
SENTENCE = "机器学习很有趣"
pytestmark = pytest.mark.alone  # the demo trains for minutes, unless it already has


@pytest.fixture(scope="module")
def browser():
    with chromium() as one:
        yield one


@pytest.fixture(scope="module")
def explorer(browser):
    folder = ROOT / "runs" / "demo"
    if not (folder / "model.json").is_file():
        environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
        command = [sys.executable, "-m", "qkv", "demo"]
        subprocess.run(command, cwd=ROOT, env=environment, check=True, timeout=1_500, stdin=subprocess.DEVNULL)
    return open_explorer(folder)


def first_look_of(page, word):
    """Where the decoder looks while it writes a word, as the page shows it before anything is chosen; and in the film."""
    page.locator(".film-token[role=button]", has_text=word).click()
    until(page, f"document.querySelector('.film-token.looks')?.textContent.includes('{word}')")
    until(page, f"document.querySelector('.film-caption').textContent.includes('{word}')")
    caption = page.inner_text(".film-caption")
    page.click("#tab-attention")
    return caption, looks(page, word)


def last_head_look_of(page, word):
    """The same of the last head of the decoder."""
    page.click("#tab-attention")
    until(page, "document.querySelector('.panel')")
    page.locator(".minis [data-layer][data-head]").last.click()
    until(page, "document.querySelector('.panel').dataset.shows.includes('head')")
    return looks(page, word)


def looks(page, word):
    """The bars of a word, the longest first."""
    until(page, "document.querySelector('.panel')")
    for choice in ("words", "lines"):
        page.evaluate(f"document.querySelector('[data-choice={choice}]').click()")
        until(page, f"document.querySelector('.panel').dataset.shows.includes('{choice}')")
    page.locator(".lines .word[data-row]", has_text=word).click()
    until(page, f"document.querySelector('.looks [data-name]')?.dataset.name === '{word}'")
    return page.evaluate("[...document.querySelectorAll('.looks .bar')].map(({ dataset }) => [dataset.name, +dataset.value])")


def test_learning_looks_at_学习_on_the_page(browser, explorer):
    with served(make_app(explorer)) as address, tab(browser, address) as page:
        page.fill("textarea", SENTENCE)
        page.click(".ask .main")
        until(page, "document.querySelector('#said')?.textContent === 'machine learning is interesting'")
        caption, first = first_look_of(page, "learning")
        for (name, share), *others in (first, last_head_look_of(page, "learning")):
            assert name == "学习" and share > max(value for _, value in others)
            assert 0.98 < share + sum(value for _, value in others) <= 1.000001
        assert f"most at “学习”, {100 * first[0][1]:.1f}%" in caption


def test_learning_looks_at_学习_in_the_file_with_the_network_off(browser, explorer, tmp_path):
    file = write_page(explorer, [SENTENCE], tmp_path / "page.html")
    with tab(browser, file.as_uri(), offline=True) as page:
        assert page.inner_text("#said") == "machine learning is interesting"
        caption, first = first_look_of(page, "learning")
        assert "most at “学习”" in caption and first[0][0] == last_head_look_of(page, "learning")[0][0] == "学习"


def test_the_first_view_of_the_demo_needs_two_answers(browser, explorer):
    with served(make_app(explorer)) as address:
        assert [path for path in asked_for_first_view(browser, address) if path.startswith("/api/")] == ["/api/model", "/api/pass"]
        with tab(browser, address) as page:
            assert page.inner_text("#said") == "machine learning is interesting"
