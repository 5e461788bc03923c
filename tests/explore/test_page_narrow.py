"""A window of 390 pixels, in both languages: no panel is clipped, and no code is cut off."""

import pytest
from browser import ask, served, tab, unfold, until
from small_explorers import small

from qkv.explore.app import make_app

WIDTH, HEIGHT = 390, 844
TEXT = "今天天气真好 i love machine learning"
# Drawings and tables that may be wider than the window: these scroll sideways.
SCROLLING = ".heatmap-scroll, .animation-scroll, .beam, .table-scroll"
# Visible panels and controls whose content is wider than they are.
CLIPPED = f"""[...document.querySelectorAll('body, body *:not(input, textarea, select)')]
    .filter((element) => element.checkVisibility() && !element.closest('svg'))
    .filter((element) => element.scrollWidth > element.clientWidth + 1
        && getComputedStyle(element).display !== 'inline')
    .filter((element) => !element.matches('{SCROLLING}') || !['auto', 'scroll'].includes(
        getComputedStyle(element).overflowX))
    .map(({{ tagName, className, id, scrollWidth, clientWidth }}) =>
        [tagName, className, id, scrollWidth, clientWidth])"""
# Visible elements that reach beyond the window, outside of those that scroll.
OUTSIDE = f"""[...document.querySelectorAll('body *')]
    .filter((element) => element.checkVisibility() && !element.closest('{SCROLLING}'))
    .filter((element) => element.getBoundingClientRect().right > innerWidth + 1)
    .map(({{ tagName, className, id }}) => [tagName, String(className), id])"""


@pytest.fixture(scope="module", params=["translator", "generator", "embedder"])
def address(request):
    with served(make_app(small(request.param))) as url:
        yield url


@pytest.fixture(params=["en", "zh"])
def page(request, browser, address):
    with tab(browser, address, width=WIDTH, height=HEIGHT, locale=request.param) as opened:
        opened.click(f"[data-choice={request.param}]")
        ask(opened, TEXT)
        yield opened


def check_nothing_is_clipped(page, where):
    assert page.evaluate("document.documentElement.scrollWidth") <= WIDTH, where
    assert page.evaluate(OUTSIDE) == [], where
    assert page.evaluate(CLIPPED) == [], where


def test_no_step_is_clipped(page):
    kinds = page.evaluate(
        "Object.values(Object.fromEntries([...document.querySelectorAll('button[data-step]')]"
        ".map(({ textContent, dataset }) => [textContent, dataset.step])))"
    )
    for key in kinds:  # the last step of each title
        page.evaluate("(key) => document.querySelector(`[data-step='${key}']`).click()", key)
        until(page, f"document.querySelector('.step-values').dataset.step === '{key}'")
        check_nothing_is_clipped(page, key)


def test_no_attention_view_is_clipped(page):
    page.click("#tab-attention")
    for choice in ("matrix", "lines", "words"):
        page.click(f"[data-choice={choice}]")
        until(page, f"document.querySelector('.panel')?.dataset.selection.includes('{choice}')")
        check_nothing_is_clipped(page, choice)


def test_no_experiment_is_clipped(page):
    page.click("#tab-experiments")
    unfold(page)
    until(page, "document.querySelector('.neighbors .bar')")
    check_nothing_is_clipped(page, "experiments")


@pytest.mark.parametrize("width", [WIDTH, 768, 1200, 1920])
def test_lines_of_code_are_wrapped_and_not_cut_off(browser, address, width):
    with tab(browser, address, width=width, height=HEIGHT) as page:
        code = page.evaluate("fetch('api/model').then((answer) => answer.json())")["code"]
        for key in page.evaluate(
            "[...document.querySelectorAll('button[data-step]')].map(({ dataset }) => dataset.step)"
        ):
            page.evaluate("(key) => document.querySelector(`[data-step='${key}']`).click()", key)
            shown = page.evaluate(
                "[...document.querySelectorAll('.code-card pre')].map((element) =>"
                " [element.scrollWidth, element.clientWidth, element.textContent])"
            )
            for scroll_width, client_width, text in shown:
                assert scroll_width <= client_width, (width, key)
                assert text.strip() in {part["source"].strip() for part in code.values()}


def test_experiments_are_ranked_and_all_but_two_are_folded(browser, address):
    cards = "[...document.querySelectorAll('[data-card]')]"
    state = f"{cards}.map(({{ dataset, open }}) => [dataset.card, open])"
    with tab(browser, address) as page:
        page.click("#tab-experiments")
        shown = page.evaluate(state)
        ranked = ["nearest", "probabilities", "ablation", "beam", "logit-lens", "projection"]
        names = [name for name, _ in shown]
        assert names == [name for name in [*ranked, "positions"] if name in names]
        assert [is_open for _, is_open in shown] == [True, True] + [False] * (len(shown) - 2)
        folded = page.locator("[data-card=projection]")
        assert folded.locator("svg").count() == 0  # loaded when it is opened
        folded.locator("summary").click()
        until(page, "document.querySelector('[data-card=projection] svg')")
        page.click(f"[data-card={names[0]}] summary")
        until(page, f"!document.querySelector('[data-card={names[0]}]').open")
        page.click("#tab-steps")
        page.click("#tab-experiments")
        kept = dict(page.evaluate(state))
        assert kept["projection"] and not kept[names[0]]  # as the user left them
