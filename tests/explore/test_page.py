"""The page in a browser: the steps view agrees with `record`, and user input stays text."""

import random
import re

import pytest
import torch
from browser import Tab, ask, served, tab, unfold, until
from small_explorers import SCORES_TO_RESIDUAL, small

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


TOKENS = (
    "[...document.querySelectorAll('.step-values .token')]"
    ".map((element) => element.firstChild.textContent)"
)
CELL = """(() => { const { dataset } = document.querySelector('.step .readout');
    return dataset.value === undefined ? null
        : [+dataset.row, +dataset.column, +dataset.value]; })()"""
BRIGHTNESS = """(() => { const frame = document.querySelector('.step .heatmap-frame');
    const canvas = document.querySelector('.step canvas');
    const copy = new OffscreenCanvas(canvas.width, canvas.height)
        .getContext('2d', { willReadFrequently: true });
    copy.drawImage(canvas, 0, 0);
    const ratio = canvas.width / canvas.clientWidth;
    const [x, y] = [frame.offsetLeft, frame.offsetTop].map((edge) => (edge + 5) * ratio);
    const [r, g, b] = copy.getImageData(x, y, 1, 1).data;
    return r + g + b; })()"""


@pytest.fixture(scope="module")
def explorers():
    return {family: small(family) for family in ("translator", "generator")}


@pytest.fixture(scope="module")
def addresses(explorers):
    with (
        served(make_app(explorers["translator"])) as first,
        served(make_app(explorers["generator"])) as second,
    ):
        yield {"translator": first, "generator": second}


@pytest.fixture
def translator(browser, addresses):
    with tab(browser, addresses["translator"]) as page:
        yield page


@pytest.fixture
def generator(browser, addresses):
    with tab(browser, addresses["generator"]) as page:
        yield page


def keys(page):
    return page.evaluate(
        "[...document.querySelectorAll('[data-step][type=button]')]"
        ".map((element) => element.dataset.step)"
    )


def go(page, key):
    """Select a step in the list and wait for its values."""
    page.evaluate("(key) => document.querySelector(`button[data-step='${key}']`).click()", key)
    until(page, f"document.querySelector('.step-values').dataset.step === '{key}'")


def ids(page, side):
    """The token ids of a side, as the page shows them."""
    go(page, "encoder.tokens" if side == "source" else "decoder.tokens")
    shown = page.evaluate(
        "[...document.querySelectorAll('.step-values .tokens')]"
        ".map((row) => [...row.children].map((element) => +element.dataset.id))"
    )
    return torch.tensor([shown[0 if side == "source" else -1]])


def hover(page, count, seed=1):
    """(row, column, value) of cells at random positions of the heat map."""
    until(page, "document.querySelector('.step canvas')?.dataset.drawn")
    page.locator(".step canvas").scroll_into_view_if_needed()
    box, rng = page.locator(".step canvas").bounding_box(), random.Random(seed)
    while count:
        page.mouse.move(
            box["x"] + rng.random() * box["width"], box["y"] + rng.random() * box["height"]
        )
        found = page.evaluate(CELL)
        if found:
            count -= 1
            yield found


def recorded(explorer, paths, *given):
    """Recorded outputs of these module paths on these ids, while the page sends no request."""
    model = explorer.explored.model
    with explorer.lock, torch.no_grad(), record(model, *paths) as steps:
        if len(given) == 2:
            model.decode(given[1], model.encode(given[0]))
        else:
            model.decode(given[0])
    return [steps[path] for path in paths]


def test_forty_values_under_the_pointer_equal_recorded_ones(translator, explorers):
    ask(translator, "机器学习")
    source, target = ids(translator, "source"), ids(translator, "target")
    paths = [
        "decoder.layers.0.cross.branch.core.weights",
        "encoder.layers.1.attn.branch.core.scores",
        "decoder.layers.1.ffn.branch.up_proj",
        "encoder.layers.0.attn.branch.q_proj",
    ]
    truths = recorded(explorers["translator"], paths, source, target)
    for path, truth in zip(paths, truths, strict=True):
        go(translator, path)
        grid = truth[0, 0] if truth.dim() == 4 else truth[0]
        assert translator.get_attribute(".shape", "data-shape") == ",".join(
            map(str, truth.shape[1:])
        ), path
        for row, column, value in hover(translator, 10):
            assert value == pytest.approx(grid[row, column].item(), abs=1e-5), (path, row, column)


def test_cross_attention_is_shown_first_as_the_mean_of_all_layers_and_heads(translator, explorers):
    ask(translator, "机器学习")
    paths = [f"decoder.layers.{layer}.cross.branch.core.weights" for layer in range(2)]
    source, target = ids(translator, "source"), ids(translator, "target")
    mean = torch.cat(
        [weights[0] for weights in recorded(explorers["translator"], paths, source, target)]
    ).mean(dim=0)  # (query, key)
    until(translator, "document.querySelector('.animation').dataset.frame")
    translator.locator(".animation-token[role=button]").nth(1).click()
    until(
        translator,
        "document.querySelectorAll('.animation-token[role=button]')[1].classList.contains('query')",
    )
    lines = translator.evaluate(
        "[...document.querySelectorAll('.animation .link')].map(({ dataset }) => +dataset.value)"
    )
    assert lines == pytest.approx(
        [weight for weight in mean[1].tolist() if weight >= 0.05], abs=1e-6
    )
    assert f"{100 * mean[1].max():.1f}%" in translator.inner_text(".animation-caption")
    assert translator.get_attribute(".position-choice [aria-pressed=true]", "data-position") == "1"
    translator.click("#tab-attention")
    assert translator.get_attribute("[aria-checked=true][data-choice=all]", "role") == "radio"
    for row in range(4):
        until(translator, "document.querySelector('.panel canvas[data-drawn]')")
        translator.locator(".panel canvas").focus()
        translator.keyboard.press("ArrowDown" if row else "ArrowRight")
        value = float(translator.get_attribute(".panel .readout", "data-value"))
        assert value == pytest.approx(mean[row, 0].item(), abs=1e-6)


def test_thumbnails_mark_the_heads_of_the_large_picture(translator):
    translator.click("#tab-attention")
    until(translator, "document.querySelector('.panel')")
    pressed = (
        "[...document.querySelectorAll('.thumbnails [aria-pressed=true]')]"
        ".map(({ dataset }) => `${dataset.layer} ${dataset.head}`)"
    )
    assert translator.evaluate(pressed) == []
    translator.click(".thumbnails [data-layer='0'][data-head='2']")
    assert translator.evaluate(pressed) == ["0 2"]
    assert translator.inner_text(".tools [data-choice=head][aria-checked=true]") == "One head"
    translator.click("[data-choice=mean]")
    assert translator.evaluate(pressed) == ["0 0", "0 1", "0 2", "0 3"]
    assert translator.locator("[data-choice=rollout]").count() == 0
    translator.click("[data-choice=encoder]")
    translator.click("[data-choice=rollout]")
    translator.click("[data-choice=cross]")
    until(
        translator, "document.querySelector('.panel').dataset.selection.startsWith('cross 0 2 all')"
    )


def test_the_animation_shows_the_prediction_after_the_selected_token(generator, explorers):
    ask(generator, SENTENCE)
    until(generator, "document.querySelector('.animation').dataset.frame")
    model = explorers["generator"].explored.model
    with torch.no_grad():
        probs = (
            model.logits(model.decode(ids(generator, "target")))[0].softmax(-1).max(dim=-1).values
        )
    for position in (1, 2):
        chip = generator.locator(".animation-token[role=button]").nth(position)
        chip.focus()
        generator.keyboard.press("Enter")
        until(
            generator,
            f"document.querySelectorAll('.animation-token')[{position}].classList.contains('query'"
            f")",
        )
        caption = generator.inner_text(".animation-caption")
        assert chip.get_attribute("data-token") in caption and caption.endswith(
            f"{100 * probs[position]:.1f}%."
        )


def test_the_animation_of_a_very_large_model_names_no_next_token(browser, monkeypatch):
    monkeypatch.setattr(
        "qkv.explore.trace.MAX_PREDICTION_MACS", 0
    )  # then the next token is predicted only on request
    with served(make_app(small("generator"))) as address, tab(browser, address) as page:
        until(page, "document.querySelector('.animation').dataset.frame")
        last = page.get_attribute("[data-position][aria-pressed=true]", "data-position")
        token = page.locator(".animation-token").nth(int(last)).get_attribute("data-token")
        assert (
            page.inner_text(".animation-caption")
            == f"The logits at “{token}” give a probability for every token."
        )


def test_groups_of_steps_have_unique_names(translator):
    names = translator.locator(".step-list summary").all_inner_texts()
    assert len(names) == len(set(names)) == 8
    assert names[3] == "Encoder · Output (memory)" and names[-1] == "Decoder · Next token"


def test_a_selected_row_and_head_are_shown_as_values(generator, explorers):
    ask(generator, SENTENCE)
    key = "decoder.layers.1.attn.branch.core.weights"
    weights = recorded(
        explorers["generator"],
        ["decoder.layers.1.attn.branch.core.weights"],
        ids(generator, "target"),
    )[0][0]
    go(generator, key)
    generator.click(".heads [data-choice='3']")
    until(generator, "document.querySelector('.step-values').dataset.head === '3'")
    generator.click(".position-choice [data-position='2']")
    until(generator, "document.querySelector('.row-numbers')?.dataset.row === '2'")
    shown = generator.evaluate(
        "[...document.querySelectorAll('.row-numbers li')].map((element) => +element.dataset.value)"
    )
    assert shown == pytest.approx(weights[3, 2].tolist(), abs=1e-6)


def test_arrow_keys_select_heads_and_keep_the_step(generator):
    go(generator, "decoder.layers.1.attn.branch.core.weights")
    generator.locator(".heads [aria-checked=true]").focus()
    for head in ("1", "2"):
        generator.keyboard.press("ArrowRight")
        until(generator, f"document.querySelector('.step-values').dataset.head === '{head}'")
    assert (
        generator.get_attribute(".step-values", "data-step")
        == "decoder.layers.1.attn.branch.core.weights"
    )
    generator.locator(".code-card pre").focus()
    generator.keyboard.press("ArrowRight")  # scrolls the code
    assert (
        generator.get_attribute("[aria-current=step]", "data-step")
        == "decoder.layers.1.attn.branch.core.weights"
    )


def test_switching_the_language_keeps_typed_text(generator):
    generator.fill("textarea", "机器")
    generator.click("[data-choice=zh]")
    assert generator.input_value("textarea") == "机器"
    generator.click(".examples button >> nth=0")
    until(generator, f"document.querySelector('textarea').value === '{SENTENCE}'")


def test_darker_colors_are_larger_weights(generator):
    ask(generator, SENTENCE)
    go(generator, "decoder.layers.0.attn.branch.core.weights")
    until(generator, "document.querySelector('.step canvas').dataset.drawn")
    cells = []
    for row, column, value in hover(generator, 25, seed=4):
        cells.append((value, generator.evaluate(BRIGHTNESS)))
        assert column <= row or value == 0
    assert all(a[1] < b[1] for a in cells for b in cells if a[0] > b[0] + 0.06)


def test_all_steps_of_a_decoder_can_be_selected_with_the_keyboard(generator, explorers):
    ask(generator, SENTENCE)
    all_keys = keys(generator)
    generator.locator("#view").focus()
    titles = []
    for number in range(len(all_keys)):
        until(
            generator,
            f"document.querySelector('.step-values').dataset.step === '{all_keys[number]}'",
        )
        titles.append(generator.inner_text(".step-text h2"))
        assert generator.inner_text(".step-text .about") and generator.is_hidden("#error")
        generator.keyboard.press("ArrowRight")
    assert len(titles) == len(all_keys) > 30
    steps = explorers["generator"].open(SENTENCE)["steps"]
    assert all_keys == [step["key"] for step in steps]
    assert {step["kind"] for step in steps} == {
        *("tokens", "ids", "embedding", "q", "k", "v", "split", "rotation", *SCORES_TO_RESIDUAL),
        *("norm", "gate", "up", "activation", "down", "final_norm", "logits", "next"),
    }
    assert generator.locator(".code-card pre").count() == 1


def test_next_token_probabilities_are_the_models(generator, explorers):
    ask(generator, SENTENCE)
    model = explorers["generator"].explored.model
    with torch.no_grad():
        probs = model.logits(model.decode(ids(generator, "target")))[0, -1].softmax(-1)
    go(generator, "next")
    shown = generator.evaluate(
        "[...document.querySelectorAll('.step .bar')]"
        ".map(({ dataset }) => [+dataset.id, +dataset.value])"
    )
    assert [id for id, _ in shown] == probs.topk(10).indices.tolist()
    assert [p for _, p in shown] == pytest.approx(probs.topk(10).values.tolist(), abs=1e-6)


def test_a_row_of_a_long_text_is_named_by_its_position(generator):
    ask(generator, "xyz" * 8)  # only some rows of the logits are drawn
    last = generator.locator("[data-position]").count() - 1
    go(generator, "lm_head")
    until(generator, "document.querySelector('.row-numbers')")
    assert last > 20 and generator.inner_text(".row-numbers figcaption").startswith(
        f"row {last} · "
    )
    assert f"({last}) · " in generator.inner_text(".step .readout")


def test_logits_and_next_token_refer_to_the_same_position(translator):
    ask(translator, "机器学习")
    go(translator, "lm_head")  # of the first token, which differs from <bos> before it
    after = translator.inner_text(".step-values .small")
    go(translator, "next")
    assert after.endswith(translator.inner_text(".step-values .small"))


def test_parts_of_characters_are_marked_and_u_fffd_never_appears(generator):
    ask(generator, "今天 🦜 龘")
    shown = generator.evaluate(TOKENS)
    assert shown[1:3] == ["今", "天"] and "🦜[4/4]" in shown and "龘[3/3]" in shown
    until(
        generator, "document.querySelector('#generated').textContent"
    )  # the continuation of a model with random weights
    generator.click("#tab-experiments")
    unfold(generator)
    until(generator, "document.querySelector('.hypotheses li')")
    generator.click("[data-edit='layer:decoder.1']")
    until(generator, "document.querySelector('[data-generated=after]')?.textContent")
    assert re.search(
        "<[0-9A-F]{2}>", generator.inner_text(".hypotheses")
    )  # incomplete characters are shown as bytes
    assert "\ufffd" not in generator.inner_text("body")


def test_hostile_texts_are_shown_as_text(generator):
    for text in HOSTILE:
        ask(generator, text)
        for name in ("attention", "experiments", "steps"):
            generator.click(f"#tab-{name}")
        assert (
            generator.evaluate(
                "document.querySelectorAll('#view img, #view script, #view iframe, [onload],"
                " [onerror]').length"
            )
            == 0
        )
        assert generator.evaluate("window.hacked") is None
        assert generator.input_value("textarea") == text
        shown = "".join(generator.evaluate(TOKENS))
        assert [character for character in text if character in "<>&'\"{}"] == [
            character
            for character in re.sub("<[0-9A-Z]{2}>|<bos>", "", shown)
            if character in "<>&'\"{}"
        ]


def test_a_server_that_does_not_respond_is_one_error(browser, explorers):
    opened = Tab(browser)
    with served(make_app(explorers["generator"])) as address:
        page = opened.open(address)
    page.click("button[data-step='decoder.ids']")
    until(page, "!document.querySelector('#error').hidden")
    assert (
        page.inner_text("#error") == "the server does not respond; is `qkv explore` still running?"
    )
    opened.close()


def test_a_text_too_long_or_empty_is_an_error_in_the_selected_language(browser, addresses):
    opened = Tab(browser)  # the console may only have the refused request
    page = opened.open(addresses["generator"])
    page.evaluate("document.querySelector('textarea').value = 'a'.repeat(10 ** 6)")
    page.click(".text-form .main")
    until(page, "!document.querySelector('#error').hidden")
    assert "\n" not in page.inner_text("#error") and page.inner_text("#error").isascii()
    page.click("[data-choice=zh]")
    assert not page.inner_text("#error").isascii()
    page.fill("textarea", "  ")
    page.click(".text-form .main")
    assert page.inner_text("#error") == "请先输入文本"
    assert all("Failed to load resource" in error for error in opened.errors)
    opened.close()
