"""The page for everyone: whatever can be reached has a name and shows that it is reached; every text can be read.

Contrast is that of WCAG 2 (AA: 4.5), measured on what the browser has drawn, in both colours.
"""

import pytest
from browser import chromium, served, tab, until
from small_explorers import small

from qkv.explore.app import make_app

VIEWS = {
    "walk": "document.querySelector('.step canvas[data-drawn]')",
    "attention": "document.querySelector('.panel canvas[data-drawn]')",
    "tryout": "['.hypotheses li', '.map circle', '.waves'].every((one) => document.querySelector(one))",
}
REACHED = """(() => { const one = document.activeElement, style = getComputedStyle(one);
    return [one.tagName, `${style.outlineStyle} ${style.outlineWidth}`]; })()"""
# What one can press or type into, without a name for a person who cannot see it.
NAMELESS = """[...document.querySelectorAll('button, input, textarea, select, summary, [role=button], [role=radiogroup], canvas[tabindex]')]
    .filter((one) => !(one.getAttribute('aria-label') || one.labels?.[0]?.textContent || one.textContent).trim())
    .map((one) => one.outerHTML.slice(0, 120))"""
# Texts whose letters stand out from what is behind them by less than 4.5, with the number.
FAINT = """(() => {
    const pen = new OffscreenCanvas(1, 1).getContext('2d', { willReadFrequently: true });
    const read = (colour) => { pen.clearRect(0, 0, 1, 1); pen.fillStyle = colour; pen.fillRect(0, 0, 1, 1);
        const [r, g, b, a] = pen.getImageData(0, 0, 1, 1).data; return [r, g, b, a / 255]; };
    const over = ([r, g, b, a], below) => [r, g, b].map((one, i) => a * one + (1 - a) * below[i]);
    const ways = (one) => { const way = []; for (let at = one; at; at = at.parentElement) way.unshift(at); return way; };
    const light = (rgb) => { const [r, g, b] = rgb.map((c) => c / 255).map((c) => c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
        return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
    const found = [];
    for (const one of document.querySelectorAll('body *')) {
        const text = [...one.childNodes].filter((node) => node.nodeType === 3).map((node) => node.data).join('').trim();
        if (!text || !one.checkVisibility({ opacityProperty: true }) || one.closest(':disabled, title, option')) continue;
        const drawn = one instanceof SVGElement, way = ways(one);
        let below = [255, 255, 255];
        for (const at of way) below = over(read(getComputedStyle(at).backgroundColor), below);
        const box = drawn && one.parentNode.querySelector('rect');
        if (box && getComputedStyle(box).fill !== 'none') below = over(read(getComputedStyle(box).fill), below);
        const style = getComputedStyle(one), ink = read(drawn ? style.fill : style.color);
        ink[3] *= way.reduce((all, at) => all * getComputedStyle(at).opacity, 1);
        const [high, low] = [light(over(ink, below)), light(below)].sort((a, b) => b - a);
        const ratio = (high + 0.05) / (low + 0.05);
        if (ratio < 4.5) found.push([text.slice(0, 20), one.className.baseVal ?? one.className, ratio.toFixed(2)]);
    }
    return found; })()"""


@pytest.fixture(scope="module")
def browser():
    with chromium() as one:
        yield one


@pytest.fixture(scope="module")
def address():
    with served(make_app(small("translator"))) as one:
        yield one


def show(page, name):
    page.click(f"#tab-{name}")
    if name == "walk":
        page.evaluate(
            "document.querySelector(`button[data-step='decoder.1.cross.softmax']`).click()"
        )
    until(page, VIEWS[name])
    if name == "attention":
        page.click("[data-choice=lines]")
        until(page, "document.querySelector('.lines .word')")
    if name == "tryout":
        page.click("[data-edit='head:decoder.1.cross.2']")
        until(page, "document.querySelector('.change .bar')")
        page.evaluate("document.querySelector('[data-swap]').click()")


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_text_stands_out_from_its_paper_and_every_control_has_a_name(browser, address, theme):
    with tab(browser, address, color_scheme=theme) as page:
        for name in VIEWS:
            show(page, name)
            assert page.evaluate(NAMELESS) == [], name
            assert page.evaluate(FAINT) == [], name


def test_whatever_the_tab_key_reaches_shows_that_it_is_reached(browser, address):
    with tab(browser, address) as page:
        for name in VIEWS:
            show(page, name)
            page.locator(f"#tab-{name}").focus()
            reached = set()
            for _ in range(120):
                page.keyboard.press("Tab")
                kind, ring = page.evaluate(REACHED)
                if kind == "BODY":
                    break
                reached.add(kind)
                assert ring == "solid 2px", (name, kind)
            assert {"BUTTON", "INPUT", "g"} | (
                {"CANVAS"} if name == "walk" else set()
            ) <= reached, (name, reached)
