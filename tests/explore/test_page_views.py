"""The attention view and the experiments in a real browser: each number on the page is checked against the model."""

import copy
from dataclasses import replace

import pytest
import torch
from browser import Tab, chromium, served, tab, until
from small_explorers import explorer_of, small, specs, tokenizer

from qkv.explore.app import make_app
from qkv.explore.offline import write_page
from qkv.explore.record import record
from qkv.model.spec import NoPositions, Recurrent

SENTENCE = "今天天气真好"
BARS = "[...document.querySelectorAll('{} .bar')].map(({{ dataset }}) => [dataset.id, dataset.name, +dataset.value])"


@pytest.fixture(scope="module")
def browser():
    with chromium() as one:
        yield one


@pytest.fixture(scope="module", params=["generator"])
def explorer(request):
    return small(request.param)


@pytest.fixture(scope="module")
def address(explorer):
    with served(make_app(explorer)) as one:
        yield one


@pytest.fixture
def page(browser, address):
    with tab(browser, address) as one:
        yield one


def ask(page, text):
    """Type a text and wait until the page shows it."""
    page.fill("textarea", text)
    page.click(".ask .main")
    until(page, "!document.querySelector('#view').classList.contains('busy')")


def token_ids(page):
    """The token numbers of the open text, as the walk shows them."""
    return torch.tensor(
        [
            page.evaluate(
                "[...document.querySelectorAll('.step-numbers .token')].map((one) => +one.dataset.id)"
            )
        ]
    )


def bars(page, where):
    return {int(id): value for id, _, value in page.evaluate(BARS.format(where))}


def show(page, name):
    page.click(f"#tab-{name}")
    until(page, "document.querySelector('#view').children.length")


def weights_of(explorer, ids):
    """Attention of every layer, (layers, heads, query, key); the page may still be asking for other things."""
    model = explorer.subject.model
    with (
        explorer.lock,
        torch.no_grad(),
        record(model, "decoder.layers.*.attn.branch.core.weights") as steps,
    ):
        model.decode(ids)
    return torch.stack([steps[path][0] for path in steps])


def press(page, choice, shown):
    """Press a button of the attention view and wait for the picture it asks for."""
    page.evaluate(f"document.querySelector('[data-choice={choice}]').click()")
    until(page, f"document.querySelector('.panel')?.dataset.shows.includes('{shown}')")


def look(page, row):
    """Whom a word looks at, read off the lines: {column: weight}."""
    press(page, "lines", "lines")
    page.click(f".lines .word[data-row='{row}']")
    until(page, f"document.querySelector('.lines .word.chosen')?.dataset.row === '{row}'")
    lines = page.evaluate(
        "[...document.querySelectorAll('.lines .link')].map(({ dataset }) => [+dataset.column, +dataset.value])"
    )
    page.click(f".lines .word[data-row='{row}']")
    press(page, "matrix", "matrix")
    return dict(lines)


def test_lines_of_a_head_of_the_mean_and_of_the_rollout_are_the_models(page, explorer):
    weights = weights_of(explorer, token_ids(page))
    through = torch.eye(weights.shape[-1], dtype=weights.dtype)
    for mean in weights.mean(dim=1):
        through = (mean + torch.eye(len(mean), dtype=mean.dtype)) / 2 @ through
    show(page, "attention")
    page.click(".minis [data-layer='0'][data-head='2']")
    for choice, truth in (
        ("head", weights[0, 2, 3]),
        ("mean", weights[0, :, 3].mean(dim=0)),
        ("rollout", through[3]),
    ):
        press(page, choice, f"decoder 0 2 {choice}")
        lines = look(page, 3)
        assert lines == pytest.approx(
            {column: truth[column].item() for column in lines}, abs=1e-6
        ), choice
        assert sum(lines.values()) == pytest.approx(1, abs=0.02)


def test_every_head_has_its_small_picture(page, explorer):
    show(page, "attention")
    until(page, "document.querySelectorAll('.minis canvas[data-drawn]').length === 8")


def test_words_gather_the_looks_of_their_pieces(page, explorer):
    ask(page, "今天 lower 龘 today")
    words = explorer.open("今天 lower 龘 today")["sides"]["target"]["words"]
    weights = weights_of(explorer, token_ids(page))[1, 0]
    assert any(len(word["tokens"]) > 1 for word in words)
    show(page, "attention")
    page.click(".minis [data-layer='1'][data-head='0']")
    press(page, "words", "1 0 head words")
    row = len(words) - 1
    for column, value in look(page, row).items():
        pairs = weights[words[row]["tokens"]][:, words[column]["tokens"]]
        assert value == pytest.approx(pairs.sum(dim=1).mean().item(), abs=1e-6)


def test_two_sentences_stand_side_by_side(page):
    show(page, "attention")
    page.fill("[name=other]", "机器学习很有趣")
    page.click(".compare-form button")
    until(page, "document.querySelectorAll('.panel').length === 2")
    assert page.evaluate(
        "[...document.querySelectorAll('.panel')].map((one) => one.dataset.text)"
    ) == [SENTENCE, "机器学习很有趣"]
    left, right = (page.locator(".panel").nth(i).bounding_box() for i in range(2))
    assert left["y"] == right["y"] and left["x"] + left["width"] <= right["x"]


def test_temperature_top_k_and_top_p_change_the_chances_as_the_formulas_say(page, explorer):
    model = explorer.subject.model
    with torch.no_grad():
        logits = model.logits(model.decode(token_ids(page)))[0, -1]
    show(page, "tryout")
    until(page, "document.querySelector('[data-card=chances] .bar')")
    for name, value in (("temperature", 0.7), ("topK", 20), ("topP", 0.6)):
        page.evaluate(
            "([name, value]) => { const one = document.querySelector(`input[name=${name}]`); one.value = value; "
            "one.dispatchEvent(new Event('input')); }",
            [name, value],
        )
    top = (logits / 0.7).softmax(-1).topk(20)
    kept = top.values / top.values.sum()
    kept = kept[: int((kept.cumsum(0) < 0.6).sum()) + 1]
    shown = bars(page, "[data-card=chances]")
    assert page.get_attribute("[data-possible]", "data-possible") == str(len(kept))
    for id, chance in zip(top.indices.tolist(), (kept / kept.sum()).tolist(), strict=False):
        assert shown.get(id, chance) == pytest.approx(chance, abs=1e-5)
    assert sum(value > 0 for value in shown.values()) == min(len(kept), len(shown))


def test_at_temperature_0_the_best_of_a_large_vocabulary_is_sure(page):
    best = """import('/page/sampling.js').then(({ distribution }) =>
        distribution(new Float32Array(250_000).with(7, 1), { temperature: 0 }).indexOf(1))"""
    assert page.evaluate(best) == 7


def test_a_head_switched_off_is_that_heads_columns_of_o_proj_at_zero(page, explorer):
    ids = token_ids(page)
    cut = copy.deepcopy(explorer.subject.model)
    heads = cut.spec.decoder.layers[0].mixer
    with torch.no_grad():
        cut.decoder.layers[1].attn.branch.o_proj.weight[:, 2 * heads.d_head : 3 * heads.d_head] = 0
        chances = cut.logits(cut.decode(ids))[0, -1].softmax(-1)
    show(page, "tryout")
    page.click("[data-edit='head:decoder.1.attn.2']")
    until(page, "document.querySelector('.change .bar')")
    shown = {id: value for id, value in bars(page, ".change").items() if value}
    assert set(shown) == set(chances.topk(5).indices.tolist())
    assert all(value == pytest.approx(chances[id].item(), abs=1e-5) for id, value in shown.items())


def test_a_token_beyond_the_five_likeliest_has_no_number_of_its_own(page, explorer):
    change = explorer.answer(
        f"pass/{explorer.open(SENTENCE)['id']}/change", {"edits": "layer:decoder.0"}
    )
    before, after = (
        {one["id"]: one["p"] for one in change[when]["positions"][-1]["top"]}
        for when in ("before", "after")
    )
    show(page, "tryout")
    page.click("[data-edit='layer:decoder.0']")
    until(page, "document.querySelector('.change .bar')")
    beyond = [id for id, value in bars(page, ".change").items() if not value]
    assert len(beyond) > 0 and set(beyond) == set(before) - set(after)
    labels = page.locator(".change .bar.out > span:last-child").all_inner_texts()
    assert set(labels) == {f"≤ {100 * min(after.values()):.1f}%"}
    assert page.locator(".change .before").count() == 5  # so many chances before are known


def test_a_change_beyond_the_first_64_places_says_where_it_is_compared(browser):
    with (
        served(make_app(small("generator", max_len=128))) as address,
        tab(browser, address) as page,
    ):
        ask(page, "今天" * 40)
        show(page, "tryout")
        page.click("[data-edit='layer:decoder.1']")
        until(page, "document.querySelector('[data-note=first-places]')")
        assert (
            page.inner_text("[data-note=first-places]")
            == "chances are compared at the first 64 positions; choose one of them"
        )
        page.click("[data-position='63']")
        until(page, "document.querySelector('.change .bar')")
        assert page.locator("[data-note=first-places]").count() == 0


def test_a_swapped_token_gives_what_the_model_gives_for_it(page, explorer):
    ids, model = token_ids(page), explorer.subject.model
    ids[0, 2] = explorer.tokens_of("m", "target")["tokens"][0]["id"]
    with torch.no_grad():
        chances = model.logits(model.decode(ids))[0, -1].softmax(-1)
    show(page, "tryout")
    page.click("[data-swap='2']")
    page.fill(".swap [name=token]", "m")
    page.click(".swap form button")
    until(page, "document.querySelector('.change .bar')")
    shown = {id: value for id, value in bars(page, ".change").items() if value}
    assert (
        all(value == pytest.approx(chances[id].item(), abs=1e-5) for id, value in shown.items())
        and len(shown) == 5
    )


def test_a_swapped_token_is_forgotten_with_its_text(page):
    show(page, "tryout")
    page.click("[data-swap='3']")
    page.fill(".swap [name=token]", "m")
    page.click(".swap form button")
    until(page, "document.querySelector('.change .bar')")
    ask(page, "m")  # has no token 3
    until(
        page,
        "document.querySelectorAll('[data-swap]').length === 2 && document.querySelector('.switches')",
    )
    assert page.inner_text(".change") == "nothing is switched off"


def test_a_refused_change_leaves_the_switches_standing(browser, address):
    one = Tab(browser)  # the browser itself notes the refused request
    page = one.open(address)
    page.route(
        "**/change?*",
        lambda route: route.fulfill(
            status=422, json={"error": {"en": "not this one", "zh": "这个不行"}}
        ),
    )
    show(page, "tryout")
    page.click("[data-edit='head:decoder.1.attn.2']")
    until(page, "!document.querySelector('#trouble').hidden")
    page.click("[data-position='1']")  # makes the card anew
    until(page, "document.querySelector('.switches')")
    assert page.inner_text("#trouble") == "not this one"
    one.close()


def test_a_late_answer_does_not_cover_the_last_one(page):
    held = []
    page.route("**/change?*", lambda route: held.append(route))
    show(page, "tryout")
    for _ in range(2):
        page.click("[data-edit='head:decoder.1.attn.2']")
    until(page, "document.querySelector('.change').textContent === 'nothing is switched off'")
    with page.expect_response("**/change?*") as late:
        held[0].continue_()
    late.value.finished()
    page.wait_for_timeout(100)
    assert page.inner_text(".change") == "nothing is switched off"


def test_the_last_line_of_the_lens_is_what_the_model_says(page, explorer):
    model = explorer.subject.model
    with torch.no_grad():
        chances = model.logits(model.decode(token_ids(page)))[0, -1].softmax(-1)
    show(page, "tryout")
    until(page, "document.querySelector('[data-card=lens] td')")
    first = page.evaluate(
        "[...document.querySelectorAll('[data-card=lens] tr:first-child td')].map(({ dataset }) => "
        "[+dataset.id, +dataset.value])"
    )
    assert first == [
        [id, pytest.approx(p, abs=1e-5)]
        for id, p in zip(*(each.tolist() for each in reversed(chances.topk(5))), strict=True)
    ]


def test_the_winning_way_of_the_beam_tree_spells_the_best_text(page, explorer):
    show(page, "tryout")
    until(page, "document.querySelector('[data-card=beam] .node')")
    best = page.inner_text(".hypotheses li:first-child span:first-child")
    won = page.evaluate(
        "[...document.querySelectorAll('.node.wins')].map((one) => +one.dataset.node)"
    )
    tree = explorer.answer(f"pass/{explorer.open(SENTENCE)['id']}/beam")
    assert best == tree["hypotheses"][0]["text"].strip()
    assert sorted(won) == [node["id"] for node in tree["nodes"] if node["wins"]] and len(won) > 2


def test_the_file_opened_from_disk_shows_the_same_with_the_network_off(
    browser, page, explorer, tmp_path
):
    ids = token_ids(page)
    file = write_page(explorer, [SENTENCE, "机器学习很有趣"], tmp_path / "page.html")
    with tab(browser, file.as_uri(), offline=True) as alone:
        assert torch.equal(token_ids(alone), ids)
        keys = alone.evaluate(
            "[...document.querySelectorAll('button[data-step]')].map((one) => one.dataset.step)"
        )
        for key in keys:
            until(alone, f"document.querySelector('.step-numbers').dataset.step === '{key}'")
            assert alone.is_hidden("#trouble")
            alone.keyboard.press("ArrowRight")
        weights = weights_of(explorer, ids)
        show(alone, "attention")
        until(alone, "document.querySelectorAll('.minis canvas[data-drawn]').length === 8")
        for choice, truth in (("head", weights[1, 0, 3]), ("mean", weights[1, :, 3].mean(dim=0))):
            press(alone, choice, f"decoder 1 0 {choice}")
            lines = look(alone, 3)
            assert len(lines) > 1 and lines == pytest.approx(
                {column: truth[column].item() for column in lines}, abs=1e-6
            )
        show(alone, "tryout")
        for edit in ("layer:decoder.0", "head:decoder.1.attn.2"):
            alone.click(f"[data-edit='{edit}']")
        assert alone.evaluate(
            "[...document.querySelectorAll('[data-edit][aria-pressed=false]')].map(({ dataset }) => dataset.edit)"
        ) == [edit]
        assert "one at a time" in alone.inner_text("[data-note=only-one]")
        until(
            alone,
            "document.querySelector('.change .bar') && document.querySelector('.beam .node') && document.querySelector('.map circle')",
        )
        assert alone.is_hidden("#trouble")


def explorers():
    """Models with unusual parts: experts, a latent, an encoder, and one that mixes its tokens without attention."""
    tokens = tokenizer()
    plain = specs(tokens.vocab_size)["generator"]
    layer = replace(plain.decoder.layers[0], mixer=Recurrent())
    without = replace(
        plain, decoder=replace(plain.decoder, layers=(layer,)), positions=NoPositions()
    )
    return [*map(small, ("experts", "latent", "embedder")), explorer_of(without, tokens)]


def test_models_with_unusual_parts_can_be_walked_and_looked_at(browser):
    for explorer in explorers():
        with served(make_app(explorer)) as address, tab(browser, address) as page:
            keys = page.evaluate(
                "[...document.querySelectorAll('button[data-step]')].map((one) => one.dataset.step)"
            )
            for key in {key.split(".")[-1]: key for key in keys}.values():  # one step of each kind
                page.evaluate(
                    "(key) => document.querySelector(`button[data-step='${key}']`).click()", key
                )
                until(page, f"document.querySelector('.step-numbers').dataset.step === '{key}'")
            show(page, "attention")
            show(page, "tryout")
            until(
                page, "document.querySelector('.switches') && document.querySelector('.map circle')"
            )
            assert page.is_hidden("#trouble")


def test_sentences_are_ranked_by_the_cosine_of_their_pooled_vectors(browser):
    explorer = small("embedder")
    tokens, model = explorer.subject.tokenizers["source"], explorer.subject.model
    texts = ["今天天气真好", "i love machine learning", "the weather is lower today"]
    with served(make_app(explorer)) as address, tab(browser, address) as page:
        ask(page, texts[0])
        show(page, "tryout")
        until(page, "document.querySelector('[data-card=nearest] textarea')")
        page.fill("[data-card=nearest] textarea", "\n".join(texts))
        page.click("[data-card=nearest] button")
        until(page, "document.querySelectorAll('[data-card=nearest] .bar').length === 3")
        shown = [
            [name, value] for _, name, value in page.evaluate(BARS.format("[data-card=nearest]"))
        ]
        ask(page, texts[1])
        until(page, "document.querySelectorAll('[data-card=nearest] .bar').length === 3")
        page.fill("[data-card=nearest] textarea", texts[2])
        page.click("[data-card=nearest] button")
        until(page, "document.querySelectorAll('[data-card=nearest] .bar').length === 1")
        ask(page, texts[0])  # the sentences are those of every text
        until(page, "document.querySelector('[data-card=nearest] .bar')")
        assert page.locator("[data-card=nearest] .bar").count() == 1
    with torch.no_grad():
        vectors = torch.stack(
            [
                model.encode(torch.tensor([explorer.subject.read(text, "source")]))
                .states[0]
                .mean(dim=0)
                for text in texts
            ]
        )
    cosines = torch.cosine_similarity(vectors[0], vectors, dim=-1).tolist()
    assert tokens.encode(texts[0]) and shown[0] == [texts[0], pytest.approx(1, abs=1e-6)]
    assert dict(shown) == pytest.approx(dict(zip(texts, cosines, strict=True)), abs=1e-5)
