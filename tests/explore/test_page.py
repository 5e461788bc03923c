"""The page in a real browser: what it shows of the walk is what `record` gives, and whatever is typed stays text."""

import random
import re

import pytest
import torch
from browser import Tab, chromium, served, tab, until
from small_explorers import small

from qkv.explore.app import make_app
from qkv.explore.record import record

SENTENCE = "今天天气真好"
HOSTILE = [
    "<img src=x onerror=hacked=1>",
    "<script>hacked=1</script>",
    "</textarea><svg onload=hacked=1>",
    "{{7*7}} ${hacked}",
    "\u202edlrow\u202c \u200f\u2067",
    "a\x00b\x07\x1b[31m",
    "&lt;b&gt; &#x41; &amp;",
    "javascript:hacked=1",
    "'\"><iframe srcdoc='<script>parent.hacked=1</script>'>",
    "😀" * 9,
    "-->]]><!--",
    "__proto__ constructor",
]


TOKENS = "[...document.querySelectorAll('.step-numbers .token')].map((one) => one.firstChild.textContent)"
CELL = """(() => { const { dataset } = document.querySelector('.step .readout');
    return dataset.value === undefined ? null : [+dataset.row, +dataset.column, +dataset.value]; })()"""
LIGHT = """(() => { const frame = document.querySelector('.step .heat-frame'), canvas = document.querySelector('.step canvas');
    const copy = new OffscreenCanvas(canvas.width, canvas.height).getContext('2d', { willReadFrequently: true });
    copy.drawImage(canvas, 0, 0);
    const ratio = canvas.width / canvas.clientWidth;
    const [r, g, b] = copy.getImageData((frame.offsetLeft + 5) * ratio, (frame.offsetTop + 5) * ratio, 1, 1).data;
    return r + g + b; })()"""


@pytest.fixture(scope="module")
def browser():
    with chromium() as one:
        yield one


@pytest.fixture(scope="module")
def explorers():
    return {family: small(family) for family in ("translator", "generator")}


@pytest.fixture(scope="module")
def addresses(explorers):
    with (
        served(make_app(explorers["translator"])) as one,
        served(make_app(explorers["generator"])) as two,
    ):
        yield {"translator": one, "generator": two}


@pytest.fixture
def translator(browser, addresses):
    with tab(browser, addresses["translator"]) as page:
        yield page


@pytest.fixture
def generator(browser, addresses):
    with tab(browser, addresses["generator"]) as page:
        yield page


def ask(page, text):
    """Type a text and wait until the page shows it."""
    page.fill("textarea[name=text]", text)
    page.click(".ask .main")
    until(page, "!document.querySelector('#view').classList.contains('busy')")


def keys(page):
    return page.evaluate(
        "[...document.querySelectorAll('[data-step][type=button]')].map((one) => one.dataset.step)"
    )


def go(page, key):
    """Choose a step in the list and wait for its numbers."""
    page.evaluate("(key) => document.querySelector(`button[data-step='${key}']`).click()", key)
    until(page, f"document.querySelector('.step-numbers').dataset.step === '{key}'")


def ids(page, side):
    """The token numbers of a side, as the page shows them."""
    go(page, "encoder.tokens" if side == "source" else "decoder.tokens")
    shown = page.evaluate(
        "[...document.querySelectorAll('.step-numbers .tokens')].map((row) => [...row.children].map((one) => +one.dataset.id))"
    )
    return torch.tensor([shown[0 if side == "source" else -1]])


def hover(page, count, seed=1):
    """(row, column, value) of cells under the pointer, at places of the drawn map chosen by chance."""
    until(page, "document.querySelector('.step canvas')?.dataset.drawn")
    page.locator(".step canvas").scroll_into_view_if_needed()
    box, chance = page.locator(".step canvas").bounding_box(), random.Random(seed)
    while count:
        page.mouse.move(
            box["x"] + chance.random() * box["width"], box["y"] + chance.random() * box["height"]
        )
        found = page.evaluate(CELL)
        if found:
            count -= 1
            yield found


def recorded(explorer, paths, *given):
    """What `record` gives for these module paths when the model runs on these ids, and the page does not ask meanwhile."""
    model = explorer.subject.model
    with explorer.lock, torch.no_grad(), record(model, *paths) as steps:
        if len(given) == 2:
            model.decode(given[1], model.encode(given[0]))
        else:
            model.decode(given[0])
    return [steps[path] for path in paths]


def test_forty_values_under_the_pointer_are_those_that_record_gives(translator, explorers):
    ask(translator, "机器学习")
    source, target = ids(translator, "source"), ids(translator, "target")
    paths = {
        "decoder.0.cross.softmax": "decoder.layers.0.cross.branch.core.weights",
        "encoder.1.attn.scores": "encoder.layers.1.attn.branch.core.scores",
        "decoder.1.ffn.up": "decoder.layers.1.ffn.branch.up_proj",
        "encoder.0.attn.q": "encoder.layers.0.attn.branch.q_proj",
    }
    for (key, path), truth in zip(
        paths.items(),
        recorded(explorers["translator"], [*paths.values()], source, target),
        strict=True,
    ):
        go(translator, key)
        grid = truth[0, 0] if truth.dim() == 4 else truth[0]
        assert translator.get_attribute(".shape", "data-shape") == ",".join(
            map(str, truth.shape[1:])
        ), path
        for row, column, value in hover(translator, 10):
            assert value == pytest.approx(grid[row, column].item(), abs=1e-5), (key, row, column)


def test_cross_attention_is_shown_first_as_the_mean_of_all_layers_and_heads(translator, explorers):
    ask(translator, "机器学习")
    paths = [f"decoder.layers.{layer}.cross.branch.core.weights" for layer in range(2)]
    source, target = ids(translator, "source"), ids(translator, "target")
    mean = torch.cat(
        [weights[0] for weights in recorded(explorers["translator"], paths, source, target)]
    ).mean(dim=0)  # (query, key)
    until(translator, "document.querySelector('.film').dataset.frame")
    translator.locator(".film-token[role=button]").nth(1).click()
    until(
        translator,
        "document.querySelectorAll('.film-token[role=button]')[1].classList.contains('looks')",
    )
    lines = translator.evaluate(
        "[...document.querySelectorAll('.film .link')].map(({ dataset }) => +dataset.value)"
    )
    assert lines == pytest.approx([share for share in mean[1].tolist() if share >= 0.05], abs=1e-6)
    assert f"{100 * mean[1].max():.1f}%" in translator.inner_text(".film-caption")
    assert translator.get_attribute(".word-choice [aria-pressed=true]", "data-position") == "1"
    translator.click("#tab-attention")
    assert translator.get_attribute("[aria-checked=true][data-choice=all]", "role") == "radio"
    for row in range(4):
        until(translator, "document.querySelector('.panel canvas[data-drawn]')")
        translator.locator(".panel canvas").focus()
        translator.keyboard.press("ArrowDown" if row else "ArrowRight")
        value = float(translator.get_attribute(".panel .readout", "data-value"))
        assert value == pytest.approx(mean[row, 0].item(), abs=1e-6)


def test_a_head_a_layer_or_all_of_them_are_marked_as_what_the_large_picture_shows(translator):
    translator.click("#tab-attention")
    until(translator, "document.querySelector('.panel')")
    pressed = "[...document.querySelectorAll('.minis [aria-pressed=true]')].map(({ dataset }) => `${dataset.layer} ${dataset.head}`)"
    assert translator.evaluate(pressed) == []
    translator.click(".minis [data-layer='0'][data-head='2']")
    assert translator.evaluate(pressed) == ["0 2"]
    assert translator.inner_text(".tools [data-choice=head][aria-checked=true]") == "One head"
    translator.click("[data-choice=mean]")
    assert translator.evaluate(pressed) == ["0 0", "0 1", "0 2", "0 3"]
    assert translator.locator("[data-choice=rollout]").count() == 0
    translator.click("[data-choice=encoder]")
    translator.click("[data-choice=rollout]")
    translator.click("[data-choice=cross]")
    until(translator, "document.querySelector('.panel').dataset.shows.startsWith('cross 0 2 all')")


def test_the_film_tells_what_comes_after_the_chosen_token(generator, explorers):
    ask(generator, SENTENCE)
    until(generator, "document.querySelector('.film').dataset.frame")
    model = explorers["generator"].subject.model
    with torch.no_grad():
        chances = (
            model.logits(model.decode(ids(generator, "target")))[0].softmax(-1).max(dim=-1).values
        )
    for place in (1, 2):
        chip = generator.locator(".film-token[role=button]").nth(place)
        chip.focus()
        generator.keyboard.press("Enter")
        until(
            generator,
            f"document.querySelectorAll('.film-token')[{place}].classList.contains('looks')",
        )
        caption = generator.inner_text(".film-caption")
        assert chip.get_attribute("data-token") in caption and caption.endswith(
            f"{100 * chances[place]:.1f}%."
        )


def test_the_film_of_a_very_large_language_model_ends_in_chances(browser, monkeypatch):
    monkeypatch.setattr(
        "qkv.explore.story.PREDICT_COST", 0
    )  # then what comes next is told only when asked
    with served(make_app(small("generator"))) as address, tab(browser, address) as page:
        until(page, "document.querySelector('.film').dataset.frame")
        last = page.get_attribute("[data-position][aria-pressed=true]", "data-position")
        token = page.locator(".film-token").nth(int(last)).get_attribute("data-token")
        assert (
            page.inner_text(".film-caption")
            == f"The vector of “{token}” becomes a chance for every token."
        )


def test_every_group_of_steps_has_a_name_of_its_own(translator):
    names = translator.locator(".steps summary").all_inner_texts()
    assert len(names) == len(set(names)) == 8
    assert names[3] == "Encoder · Memory" and names[-1] == "Decoder · Next token"


def test_a_clicked_row_and_another_head_are_read_as_numbers(generator, explorers):
    ask(generator, SENTENCE)
    key = "decoder.1.attn.softmax"
    weights = recorded(
        explorers["generator"],
        ["decoder.layers.1.attn.branch.core.weights"],
        ids(generator, "target"),
    )[0][0]
    go(generator, key)
    generator.click(".heads [data-choice='3']")
    until(generator, "document.querySelector('.step-numbers').dataset.head === '3'")
    generator.click(".word-choice [data-position='2']")
    until(generator, "document.querySelector('.numbers')?.dataset.row === '2'")
    shown = generator.evaluate(
        "[...document.querySelectorAll('.numbers li')].map((one) => +one.dataset.value)"
    )
    assert shown == pytest.approx(weights[3, 2].tolist(), abs=1e-6)


def test_arrow_keys_walk_along_the_heads_and_stay_at_the_step(generator):
    go(generator, "decoder.1.attn.softmax")
    generator.locator(".heads [aria-checked=true]").focus()
    for head in ("1", "2"):
        generator.keyboard.press("ArrowRight")
        until(generator, f"document.querySelector('.step-numbers').dataset.head === '{head}'")
    assert generator.get_attribute(".step-numbers", "data-step") == "decoder.1.attn.softmax"
    generator.locator(".book pre").focus()
    generator.keyboard.press("ArrowRight")  # scrolls the code
    assert generator.get_attribute("[aria-current=step]", "data-step") == "decoder.1.attn.softmax"


def test_what_is_typed_and_not_yet_run_stays_in_another_language(generator):
    generator.fill("textarea", "机器")
    generator.click("[data-choice=zh]")
    assert generator.input_value("textarea") == "机器"
    generator.click(".examples button >> nth=0")
    until(generator, f"document.querySelector('textarea').value === '{SENTENCE}'")


def test_deeper_colours_are_larger_shares(generator):
    ask(generator, SENTENCE)
    go(generator, "decoder.0.attn.softmax")
    until(generator, "document.querySelector('.step canvas').dataset.drawn")
    cells = []
    for row, column, value in hover(generator, 25, seed=4):
        cells.append((value, generator.evaluate(LIGHT)))
        assert column <= row or value == 0
    assert all(one[1] < two[1] for one in cells for two in cells if one[0] > two[0] + 0.06)


def test_all_steps_of_a_decoder_can_be_walked_with_the_keyboard(generator, explorers):
    ask(generator, SENTENCE)
    all_keys = keys(generator)
    generator.locator("#view").focus()
    seen = []
    for number in range(len(all_keys)):
        until(
            generator,
            f"document.querySelector('.step-numbers').dataset.step === '{all_keys[number]}'",
        )
        seen.append(generator.inner_text(".told h2"))
        assert generator.inner_text(".told .about") and generator.is_hidden("#trouble")
        generator.keyboard.press("ArrowRight")
    assert len(seen) == len(all_keys) > 30
    for kind in (
        "tokens",
        "ids",
        "embedding",
        "q",
        "k",
        "v",
        "split",
        "rotation",
        "scores",
        "mask",
        "softmax",
        "mixed",
        "joined",
        "output",
        "residual",
        "norm",
        "gate",
        "up",
        "down",
        "final_norm",
        "logits",
        "next",
    ):
        assert any(key.split(".")[-1] == kind for key in all_keys), kind
    assert generator.locator(".book pre").count() == 1


def test_the_chances_of_the_next_token_are_the_models(generator, explorers):
    ask(generator, SENTENCE)
    model = explorers["generator"].subject.model
    with torch.no_grad():
        chances = model.logits(model.decode(ids(generator, "target")))[0, -1].softmax(-1)
    go(generator, "next")
    shown = generator.evaluate(
        "[...document.querySelectorAll('.step .bar')].map(({ dataset }) => [+dataset.id, +dataset.value])"
    )
    assert [id for id, _ in shown] == chances.topk(10).indices.tolist()
    assert [p for _, p in shown] == pytest.approx(chances.topk(10).values.tolist(), abs=1e-6)


def test_a_row_of_a_long_text_is_called_by_its_place_in_the_text(generator):
    ask(generator, "xyz" * 8)  # only some rows of the logits are drawn
    last = generator.locator("[data-position]").count() - 1
    go(generator, "logits")
    until(generator, "document.querySelector('.numbers')")
    assert last > 20 and generator.inner_text(".numbers figcaption").startswith(f"row {last} · ")
    assert f"({last}) · " in generator.inner_text(".step .readout")


def test_logits_and_the_next_token_come_after_the_same_token(translator):
    ask(translator, "机器学习")
    go(translator, "logits")  # of the first word, which is not the mark it comes after
    after = translator.inner_text(".step-numbers .small")
    go(translator, "next")
    assert after.endswith(translator.inner_text(".step-numbers .small"))


def test_pieces_of_characters_are_shown_as_such_and_no_replacement_sign_appears(generator):
    ask(generator, "今天 🦜 龘")
    shown = generator.evaluate(TOKENS)
    assert shown[1:3] == ["今", "天"] and "🦜[4/4]" in shown and "龘[3/3]" in shown
    until(
        generator, "document.querySelector('#said').textContent"
    )  # how this model of random weights goes on
    generator.click("#tab-tryout")
    until(generator, "document.querySelector('.hypotheses li')")
    generator.click("[data-edit='layer:decoder.1']")
    until(generator, "document.querySelector('[data-said=after]')?.textContent")
    assert re.search(
        "<[0-9A-F]{2}>", generator.inner_text(".hypotheses")
    )  # half characters are there, and named
    assert "\ufffd" not in generator.inner_text("body")


def test_hostile_texts_are_shown_as_text(generator):
    for text in HOSTILE:
        ask(generator, text)
        for name in ("attention", "tryout", "walk"):
            generator.click(f"#tab-{name}")
        assert (
            generator.evaluate(
                "document.querySelectorAll('#view img, #view script, #view iframe, [onload], [onerror]').length"
            )
            == 0
        )
        assert generator.evaluate("window.hacked") is None
        assert generator.input_value("textarea") == text
        shown = "".join(generator.evaluate(TOKENS))
        assert [sign for sign in text if sign in "<>&'\"{}"] == [
            sign for sign in re.sub("<[0-9A-Z]{2}>|<bos>", "", shown) if sign in "<>&'\"{}"
        ]


def test_a_server_that_is_gone_is_told_in_one_sentence(browser, explorers):
    one = Tab(browser)
    with served(make_app(explorers["generator"])) as address:
        page = one.open(address)
    page.click("button[data-step='decoder.ids']")
    until(page, "!document.querySelector('#trouble').hidden")
    assert (
        page.inner_text("#trouble") == "the server does not answer; is `qkv explore` still running?"
    )
    one.close()


def test_a_text_too_long_or_empty_is_refused_in_one_sentence_of_the_chosen_language(
    browser, addresses
):
    one = Tab(browser)  # the browser itself notes a refused request; nothing else may be noted
    page = one.open(addresses["generator"])
    page.evaluate("document.querySelector('textarea').value = 'a'.repeat(10 ** 6)")
    page.click(".ask .main")
    until(page, "!document.querySelector('#trouble').hidden")
    assert "\n" not in page.inner_text("#trouble") and page.inner_text("#trouble").isascii()
    page.click("[data-choice=zh]")
    assert not page.inner_text("#trouble").isascii()
    page.fill("textarea", "  ")
    page.click(".ask .main")
    assert page.inner_text("#trouble") == "请先输入文字"
    assert all("Failed to load resource" in complaint for complaint in one.complaints)
    one.close()
