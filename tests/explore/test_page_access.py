"""Accessibility: names of controls, visible focus, and contrast of texts.

Contrast is that of WCAG 2 (AA: 4.5), measured on the drawn page, in both themes.
"""

import pytest
from browser import served, tab, unfold, until
from small_explorers import small

from qkv.explore.app import make_app

VIEWS = {
    "steps": "document.querySelector('.step canvas[data-drawn]')",
    "attention": "document.querySelector('.panel canvas[data-drawn]')",
    "experiments": "['.hypotheses li', '.projection circle', '.position-curves']"
    ".every((selector) => document.querySelector(selector))",
}
FOCUSED = """(() => { const element = document.activeElement, style = getComputedStyle(element);
    return [element.tagName, `${style.outlineStyle} ${style.outlineWidth}`]; })()"""
# Controls without an accessible name.
CONTROLS = (
    "button, input, textarea, select, summary, [role=button], [role=radiogroup], canvas[tabindex]"
)
UNNAMED = f"""[...document.querySelectorAll('{CONTROLS}')]
    .filter((element) => !(element.getAttribute('aria-label') || element.labels?.[0]?.textContent
        || element.textContent).trim())
    .map((element) => element.outerHTML.slice(0, 120))"""
# Texts with a contrast below 4.5, and the contrast.
LOW_CONTRAST = """(() => {
    const pen = new OffscreenCanvas(1, 1).getContext('2d', { willReadFrequently: true });
    const read = (color) => {
        pen.clearRect(0, 0, 1, 1); pen.fillStyle = color; pen.fillRect(0, 0, 1, 1);
        const [r, g, b, a] = pen.getImageData(0, 0, 1, 1).data; return [r, g, b, a / 255]; };
    const over = ([r, g, b, a], below) => [r, g, b].map((top, i) => a * top + (1 - a) * below[i]);
    const ancestors = (element) => { const path = [];
        for (let at = element; at; at = at.parentElement) path.unshift(at); return path; };
    const linear = (c) => c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
    const luminance = (rgb) => { const [r, g, b] = rgb.map((c) => linear(c / 255));
        return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
    const found = [];
    for (const element of document.querySelectorAll('body *')) {
        const nodes = [...element.childNodes].filter((node) => node.nodeType === 3);
        const text = nodes.map((node) => node.data).join('').trim();
        if (!text || !element.checkVisibility({ opacityProperty: true })
            || element.closest(':disabled, title, option')) continue;
        const drawn = element instanceof SVGElement, path = ancestors(element);
        let below = [255, 255, 255];
        for (const at of path) below = over(read(getComputedStyle(at).backgroundColor), below);
        const box = drawn && element.parentNode.querySelector('rect');
        const fill = box && getComputedStyle(box).fill;
        if (fill && fill !== 'none') below = over(read(fill), below);
        const style = getComputedStyle(element), ink = read(drawn ? style.fill : style.color);
        ink[3] *= path.reduce((all, at) => all * getComputedStyle(at).opacity, 1);
        const [high, low] = [luminance(over(ink, below)), luminance(below)].sort((a, b) => b - a);
        const ratio = (high + 0.05) / (low + 0.05);
        const name = element.className.baseVal ?? element.className;
        if (ratio < 4.5) found.push([text.slice(0, 20), name, ratio.toFixed(2)]);
    }
    return found; })()"""


@pytest.fixture(scope="module")
def address():
    with served(make_app(small("translator"))) as url:
        yield url


def show(page, name):
    page.click(f"#tab-{name}")
    if name == "steps":
        page.evaluate(
            "document.querySelector(`button[data-step='decoder.layers.1.cross.branch.core.weights']`).click()"
        )
    if name == "experiments":
        unfold(page)
    until(page, VIEWS[name])
    if name == "attention":
        page.click("[data-choice=lines]")
        until(page, "document.querySelector('.lines .word')")
    if name == "experiments":
        page.click("[data-edit='head:decoder.1.cross.2']")
        until(page, "document.querySelector('.change .bar')")
        page.evaluate("document.querySelector('[data-swap]').click()")


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_text_has_contrast_and_every_control_a_name(browser, address, theme):
    with tab(browser, address, color_scheme=theme) as page:
        for name in VIEWS:
            show(page, name)
            assert page.evaluate(UNNAMED) == [], name
            assert page.evaluate(LOW_CONTRAST) == [], name


def test_focused_elements_have_a_visible_outline(browser, address):
    with tab(browser, address) as page:
        for name in VIEWS:
            show(page, name)
            page.locator(f"#tab-{name}").focus()
            focused = set()
            for _ in range(120):
                page.keyboard.press("Tab")
                kind, ring = page.evaluate(FOCUSED)
                if kind == "BODY":
                    break
                focused.add(kind)
                assert ring == "solid 2px", (name, kind)
            assert {"BUTTON", "INPUT", "g"} | (
                {"CANVAS"} if name == "steps" else set()
            ) <= focused, (name, focused)
