"""Layout and requests of the page: widths, languages, themes, long texts, the keyboard."""

import re
import runpy
from dataclasses import replace
from pathlib import Path

import pytest
from browser import SCREENSHOTS, Tab, ask, served, tab, unfold, until
from small_explorers import explorer_of, small

import qkv.explore
from qkv.cli.explore import open_explorer
from qkv.explore.app import make_app
from qkv.model.presets import decoder_only
from qkv.model.spec import Attention, Dense
from qkv.text.train_tokenizer import train_tokenizer

PAGE = Path(qkv.explore.__file__).parent / "page"
TEXTS = "h2, h3, p.about, .tabs button, .main, .tools button, .slider span, summary"
WIDTHS = {"phone": (360, 740), "tablet": (768, 1024), "desk": (1920, 1080)}
# Requests until the first view, and its time in milliseconds, which the benchmark reads.
FIRST_VIEW = """new MutationObserver((_, observer) => {
    if (!document.querySelector('#view > *')) return;
    observer.disconnect();
    const resources = performance.getEntriesByType('resource');
    window.firstView = { at: performance.now(),
        requests: resources.map(({ name }) => new URL(name).pathname) }; })
    .observe(document, { childList: true, subtree: true });"""

# Overlapping labels of the projection.
OVERLAPPING = """[...document.querySelectorAll('.projection svg text')]
    .map((element) => [element.textContent, element.getBoundingClientRect()])
    .flatMap(([name, a], i, all) => all.slice(i + 1).filter(([, b]) =>
        a.left < b.right - 1 && b.left < a.right - 1
        && a.top < b.bottom - 4 && b.top < a.bottom - 4).map(([other]) => [name, other]))"""
# The smallest font size of a drawing, in screen pixels.
SMALLEST_FONT = """Math.min(99, ...[...document.querySelectorAll('svg text')].map((element) =>
    parseFloat(getComputedStyle(element).fontSize) * element.getScreenCTM().a))"""


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    """A trained translator: 三七二。 -> three seven two."""
    toy = runpy.run_path(str(Path(__file__).resolve().parents[1] / "toy_translator.py"))
    with served(
        make_app(open_explorer(toy["make"](tmp_path_factory.mktemp("digits") / "digits")))
    ) as url:
        yield url


def show(page, name):
    page.click(f"#tab-{name}")
    if name == "experiments":
        unfold(page)
    until(
        page,
        {
            "steps": "document.querySelector('.step-values').dataset.step",
            "attention": "document.querySelector('.panel canvas[data-drawn]')",
            "experiments": "document.querySelector('[data-card=positions] canvas[data-drawn]')",
        }[name],
    )


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("language", ["en", "zh"])
def test_every_view_fits_every_width(browser, address, language, theme):
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    with tab(browser, address, color_scheme=theme, locale=language) as page:
        page.click(f"[data-choice={language}]")
        ask(page, "三七二九。")
        page.evaluate(
            "document.querySelector(`button[data-step='decoder.layers.0.cross.branch.core.weights']`).click()"
        )
        page.click("[data-position='1']")
        assert page.evaluate("document.documentElement.dataset.theme") == theme
        for width, size in WIDTHS.items():
            page.set_viewport_size({"width": size[0], "height": size[1]})
            for name in ("attention", "experiments", "steps"):
                show(page, name)
                assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), (
                    width,
                    name,
                )
                assert page.evaluate(OVERLAPPING) == [], (width, name)
                assert (
                    page.locator(".projection .in-text").count()
                    == page.locator(".projection .in-text text").count()
                ), (width, name)
                assert page.evaluate(SMALLEST_FONT) >= 10, (width, name)
                page.screenshot(
                    path=SCREENSHOTS / f"{name}-{width}-{language}-{theme}.png",
                    full_page=width != "desk",
                )


def test_switching_the_language_translates_everything(browser, address):
    with tab(browser, address) as page:
        ask(page, "三七二九。")
        page.click("[data-choice=zh]")
        assert page.evaluate("document.documentElement.lang") == "zh-CN"
        for name in ("steps", "attention", "experiments"):
            show(page, name)
            texts = page.evaluate(
                f"[...document.querySelectorAll('{TEXTS}')].map((element) => element.innerText)"
            )
            left = [
                text
                for text in texts
                if re.search("[A-Za-z]{4,}", text) and not re.search("[\u4e00-\u9fff]", text)
            ]
            assert left == [], name


def test_the_page_can_be_used_without_a_mouse(browser, address):
    with tab(browser, address) as page:
        ask(page, "三七二九。")
        page.locator("#tab-steps").focus()
        page.keyboard.press("ArrowRight")
        until(page, "document.querySelector('.panel canvas[data-drawn]')")
        assert page.evaluate("document.activeElement.id") == "tab-attention"
        page.locator(".panel canvas").focus()
        for key in ("ArrowDown", "ArrowDown", "ArrowRight", "Enter"):
            page.keyboard.press(key)
        assert [
            page.get_attribute(".panel .readout", f"data-{axis}") for axis in ("row", "column")
        ] == ["2", "1"]
        assert page.get_attribute(".weights [data-row]", "data-row") == "2"
        assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"


def test_the_animation_shows_one_target_token_after_another(browser, address):
    with tab(browser, address) as page:
        ask(page, "三七。")
        frames = int(page.get_attribute(".animation input", "max")) + 1
        written = []
        for frame in range(frames):
            page.evaluate(
                "(frame) => { const input = document.querySelector('.animation input');"
                " input.value = frame; "
                "input.dispatchEvent(new Event('input')); }",
                frame,
            )
            until(page, f"document.querySelector('.animation').dataset.frame === '{frame}'")
            assert page.inner_text(".animation-caption")
            written.append(page.locator(".animation-token:not(.pending)").count())
        words = page.locator("[data-position]").count()
        assert written == sorted(written) and written[-1] - written[0] == words
        page.click(".play")
        until(page, "document.querySelector('.animation input').value > 1")
        page.click(".play")


def test_the_first_view_needs_two_requests_and_each_file_once(browser):
    with served(make_app(small("generator"))) as address:
        requests = requests_of_first_view(browser, address)
    assert [path for path in requests if path.startswith("/api/")] == ["/api/model", "/api/pass"]
    files = [path for path in requests if not path.startswith("/api/")]
    assert len(files) == len(set(files)) <= len(list(PAGE.iterdir()))


def requests_of_first_view(browser, address) -> list[str]:
    """The paths that a new tab requests until the first view."""
    opened = Tab(browser)
    opened.page.add_init_script(FIRST_VIEW)
    opened.open(address)
    assert opened.page.locator(".steps-view").count() == 1
    requests = until(opened.page, "window.firstView")["requests"]
    opened.close()
    return requests


def test_512_tokens_in_144_heads_need_one_request_per_layer_and_none_for_scrolling(browser):
    tokens = train_tokenizer("char", ["今天天气真好 abcdefghijklmnopqrstuvwxyz"], 64)
    long = replace(
        decoder_only(tokens.vocab_size, 48, 12, Attention(12, 12, 4), Dense(96, "gelu")),
        max_len=512,
    )
    with served(make_app(explorer_of(long, tokens))) as address, tab(browser, address) as page:
        page.fill(
            "textarea",
            ("今天天气真好 abc" * 60)[: 512 - page.locator(".step-values .token").count() + 6],
        )
        requests: list[str] = []
        page.on(
            "request", lambda request: requests.append(request.url.split("/", 6)[-1])
        )  # after /api/pass/<id>/
        page.click(".text-form .main")
        until(page, "document.querySelectorAll('[data-position]').length > 500")
        assert (
            len(requests) == 1 and page.evaluate("document.querySelectorAll('*').length") < 5 * 512
        )
        page.click("#tab-attention")
        until(
            page,
            "document.querySelector('.panel canvas[data-drawn]') &&"
            " document.querySelectorAll('.thumbnails canvas[data-drawn]').length === 144",
        )
        assert sorted(requests[1:]) == sorted(
            ["attention/decoder/11/0", *[f"thumbnails/decoder/{layer}" for layer in range(12)]]
        )
        assert (
            page.evaluate(
                "[...document.querySelectorAll('canvas')]"
                ".reduce((sum, { width, height }) => sum + width * height, 0)"
            )
            < 2_000_000
        )
        changes = page.evaluate("""(async () => { let changes = 0;
            new MutationObserver((all) => { changes += all.length; })
                .observe(document.querySelector('#view'),
                { childList: true, subtree: true, attributes: true });
            for (let i = 0; i < 30; i++) {
                document.querySelector('.thumbnails').scrollTop = i * 20;
                window.scrollTo(0, i * 20);
                await new Promise(requestAnimationFrame); }
            return changes; })()""")
        assert changes == 0 and len(requests) == 14


def test_modules_are_short_and_text_enters_as_text_only():
    for file in PAGE.glob("*.js"):
        text = file.read_text("utf-8")
        lines = text.splitlines()
        assert all(line.startswith("// ") for line in lines[:3]), file.name
        assert len(lines) <= 300 and max(map(len, lines)) <= 120, file.name
        assert not re.search(
            r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(|https?://(?!www\.w3\.org/2000/svg)",
            text,
        ), file.name


def test_every_text_is_in_both_languages_and_used():
    code = {file.name: file.read_text("utf-8") for file in PAGE.glob("*.js")}
    texts = dict(re.findall(r"^  (\w+): (\[[^\]]*\]),$", code["words.js"], re.M))
    assert all(re.fullmatch(r'\["[^"]+",\s+"[^"]+"\]', pair) for pair in texts.values())
    used = set(
        re.findall(r"\w+", " ".join(text for name, text in code.items() if name != "words.js"))
    )
    assert set(texts) - used == set()
    assert set(re.findall(r'\b(?:t|both)\("(\w+)"', " ".join(code.values()))) <= set(texts)
