"""The demo model: its word alignments are right, and the page shows first what `--alignment` computes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from browser import Tab, chromium, served, tab, until
from test_page_looks import CLOCK, slack

import qkv
from qkv.cli.explore import open_explorer
from qkv.data.builtin import builtin_pairs
from qkv.explore.app import make_app
from qkv.explore.offline import write_page
from qkv.measure.alignment_error import alignment_error_rate

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "runs" / "demo"
SENTENCE = "机器学习很有趣"
pytestmark = pytest.mark.alone  # the demo trains for minutes, unless it already has


@pytest.fixture(scope="module")
def browser():
    with chromium() as one:
        yield one


@pytest.fixture(scope="module")
def folder():
    """The demo's folder; trained if there is none, or one from before guided alignment."""
    if not (FOLDER / "alignment.json").is_file():
        environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
        command = [sys.executable, "-m", "qkv", "demo", "--again"]
        subprocess.run(command, cwd=ROOT, env=environment, check=True, timeout=1_500, stdin=subprocess.DEVNULL)
    return FOLDER


@pytest.fixture(scope="module")
def explorer(folder):
    return open_explorer(folder)


@pytest.fixture(scope="module")
def expected(folder):
    """The translation of the sentence with its word alignment."""
    return qkv.load(folder).translate([SENTENCE], alignment=True)[0][0]


def test_nine_of_ten_word_alignments_of_the_demo_are_right(folder):
    """Five trainings with other seeds, 300 steps each, had an AER of at most 0.013; unguided, it is 0.2."""
    assert alignment_error_rate(qkv.load(folder), builtin_pairs()[1]) <= 0.05


def film_caption(page, word):
    """What the film says while a word is written, before anything else is chosen."""
    page.locator(".film-token[role=button]", has_text=word).first.click()
    until(page, f"document.querySelector('.film-caption').textContent.includes('{word}')")
    return page.inner_text(".film-caption")


def looks(page, word):
    """The bars of a word in the attention view as it is at first, the longest first."""
    page.click("#tab-attention")
    until(page, "document.querySelector('.panel')")
    for choice in ("words", "lines"):
        page.evaluate(f"document.querySelector('[data-choice={choice}]').click()")
        until(page, f"document.querySelector('.panel').dataset.shows.includes('{choice}')")
    page.locator(".lines .word[data-row]", has_text=word).first.click()
    until(page, f"document.querySelector('.looks [data-name]')?.dataset.name === '{word}'")
    return page.evaluate("[...document.querySelectorAll('.looks .bar')].map(({ dataset }) => [dataset.name, +dataset.value])")


def check_page(page, expected):
    """Every word that `--alignment` links has its longest bar at the linked word, with the same weight."""
    until(page, "document.querySelector('#said')")
    assert page.inner_text("#said") == expected.text and expected.alignment
    longest = max(expected.alignment, key=lambda link: len(link.target))
    caption = film_caption(page, longest.target)
    assert any(f"most at “{part}”" in caption for part in (longest.source, *longest.source)), caption
    for link in expected.alignment:
        (name, share), *others = looks(page, link.target)
        assert name == link.source and share == pytest.approx(link.weight, abs=2e-4)
        assert 0.98 < share + sum(value for _, value in others) <= 1.000001


def test_the_page_shows_first_what_alignment_computes(browser, explorer, expected):
    with served(make_app(explorer)) as address, tab(browser, address) as page:
        page.fill("textarea", SENTENCE)
        page.click(".ask .main")
        until(page, f"document.querySelector('#said')?.textContent === {expected.text!r}")
        check_page(page, expected)


def test_the_file_shows_it_with_the_network_off(browser, explorer, expected, tmp_path):
    file = write_page(explorer, [SENTENCE], tmp_path / "page.html")
    with tab(browser, file.as_uri(), offline=True) as page:
        check_page(page, expected)


def test_the_first_view_of_the_demo_stands_within_a_second(browser, explorer):
    one = Tab(browser)
    one.page.add_init_script(CLOCK)
    with served(make_app(explorer)) as address:
        one.open(address)
        assert until(one.page, "window.stood") < 1_000 * slack()
        assert one.page.inner_text("#said") == "machine learning is interesting"
    one.close()
