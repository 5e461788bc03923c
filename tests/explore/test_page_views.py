"""The attention view and the experiments in a browser: each value is compared with the model."""

import copy
from dataclasses import replace

import pytest
import torch
from browser import Tab, ask, served, tab, unfold, until
from small_explorers import explorer_of, small, specs, tokenizer

from qkv.explore.app import make_app
from qkv.explore.offline import write_page
from qkv.explore.record import record
from qkv.model.spec import NoPositions, Recurrent

SENTENCE = "今天天气真好"
BARS = (
    "[...document.querySelectorAll('{} .bar')]"
    ".map(({{ dataset }}) => [dataset.id, dataset.name, +dataset.value])"
)


@pytest.fixture(scope="module", params=["generator"])
def explorer(request):
    return small(request.param)


@pytest.fixture(scope="module")
def address(explorer):
    with served(make_app(explorer)) as url:
        yield url


@pytest.fixture
def page(browser, address):
    with tab(browser, address) as opened:
        yield opened


def token_ids(page):
    """The token ids of the open text, as the steps view shows them."""
    return torch.tensor(
        [
            page.evaluate(
                "[...document.querySelectorAll('.step-values .token')]"
                ".map((element) => +element.dataset.id)"
            )
        ]
    )


def bars(page, where):
    return {int(id): value for id, _, value in page.evaluate(BARS.format(where))}


def show(page, name):
    page.click(f"#tab-{name}")
    until(page, "document.querySelector('#view').children.length")
    unfold(page)


def weights_of(explorer, ids):
    """Attention weights, (layers, heads, query, key), while the page may send requests."""
    model = explorer.explored.model
    with (
        explorer.lock,
        torch.no_grad(),
        record(model, "decoder.layers.*.attn.branch.core.weights") as steps,
    ):
        model.decode(ids)
    return torch.stack([steps[path][0] for path in steps])


def press(page, choice, selection):
    """Press a button of the attention view and wait for the picture."""
    page.evaluate(f"document.querySelector('[data-choice={choice}]').click()")
    until(page, f"document.querySelector('.panel')?.dataset.selection.includes('{selection}')")


def line_weights(page, row):
    """The weights of a row, read from the lines: {column: weight}."""
    press(page, "lines", "lines")
    page.click(f".lines .word[data-row='{row}']")
    until(page, f"document.querySelector('.lines .word.selected')?.dataset.row === '{row}'")
    lines = page.evaluate(
        "[...document.querySelectorAll('.lines .link')]"
        ".map(({ dataset }) => [+dataset.column, +dataset.value])"
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
    page.click(".thumbnails [data-layer='0'][data-head='2']")
    for choice, truth in (
        ("head", weights[0, 2, 3]),
        ("mean", weights[0, :, 3].mean(dim=0)),
        ("rollout", through[3]),
    ):
        press(page, choice, f"decoder 0 2 {choice}")
        lines = line_weights(page, 3)
        assert lines == pytest.approx(
            {column: truth[column].item() for column in lines}, abs=1e-6
        ), choice
        assert sum(lines.values()) == pytest.approx(1, abs=0.02)


def test_every_head_has_a_thumbnail(page, explorer):
    show(page, "attention")
    until(page, "document.querySelectorAll('.thumbnails canvas[data-drawn]').length === 8")


def test_weights_between_words_merge_those_of_their_tokens(page, explorer):
    ask(page, "今天 lower 龘 today")
    words = explorer.open("今天 lower 龘 today")["sides"]["target"]["words"]
    weights = weights_of(explorer, token_ids(page))[1, 0]
    assert any(len(word["tokens"]) > 1 for word in words)
    show(page, "attention")
    page.click(".thumbnails [data-layer='1'][data-head='0']")
    press(page, "words", "1 0 head words")
    row = len(words) - 1
    for column, value in line_weights(page, row).items():
        pairs = weights[words[row]["tokens"]][:, words[column]["tokens"]]
        assert value == pytest.approx(pairs.sum(dim=1).mean().item(), abs=1e-6)


def test_two_sentences_are_shown_side_by_side(page):
    show(page, "attention")
    page.fill("[name=other]", "机器学习很有趣")
    page.click(".compare-form button")
    until(page, "document.querySelectorAll('.panel').length === 2")
    assert page.evaluate(
        "[...document.querySelectorAll('.panel')].map((element) => element.dataset.text)"
    ) == [SENTENCE, "机器学习很有趣"]
    left, right = (page.locator(".panel").nth(i).bounding_box() for i in range(2))
    assert left["y"] == right["y"] and left["x"] + left["width"] <= right["x"]


def test_temperature_top_k_and_top_p_change_probabilities_by_the_formulas(page, explorer):
    model = explorer.explored.model
    with torch.no_grad():
        logits = model.logits(model.decode(token_ids(page)))[0, -1]
    show(page, "experiments")
    until(page, "document.querySelector('[data-card=probabilities] .bar')")
    for name, value in (("temperature", 0.7), ("topK", 20), ("topP", 0.6)):
        page.evaluate(
            "([name, value]) => { const input = document.querySelector(`input[name=${name}]`);"
            " input.value = value; "
            "input.dispatchEvent(new Event('input')); }",
            [name, value],
        )
    top = (logits / 0.7).softmax(-1).topk(20)
    kept = top.values / top.values.sum()
    kept = kept[: int((kept.cumsum(0) < 0.6).sum()) + 1]
    shown = bars(page, "[data-card=probabilities]")
    assert page.get_attribute("[data-candidates]", "data-candidates") == str(len(kept))
    for id, prob in zip(top.indices.tolist(), (kept / kept.sum()).tolist(), strict=False):
        assert shown.get(id, prob) == pytest.approx(prob, abs=1e-5)
    assert sum(value > 0 for value in shown.values()) == min(len(kept), len(shown))


def test_at_temperature_0_the_argmax_of_a_large_vocabulary_has_probability_1(page):
    best = """import('/page/sampling.js').then(({ distribution }) =>
        distribution(new Float32Array(250_000).with(7, 1), { temperature: 0 }).indexOf(1))"""
    assert page.evaluate(best) == 7


def test_an_ablated_head_equals_zeroed_columns_of_o_proj(page, explorer):
    ids = token_ids(page)
    cut = copy.deepcopy(explorer.explored.model)
    heads = cut.spec.decoder.layers[0].mixer
    with torch.no_grad():
        cut.decoder.layers[1].attn.branch.o_proj.weight[:, 2 * heads.d_head : 3 * heads.d_head] = 0
        probs = cut.logits(cut.decode(ids))[0, -1].softmax(-1)
    show(page, "experiments")
    page.click("[data-edit='head:decoder.1.attn.2']")
    until(page, "document.querySelector('.change .bar')")
    shown = {id: value for id, value in bars(page, ".change").items() if value}
    assert set(shown) == set(probs.topk(5).indices.tolist())
    assert all(value == pytest.approx(probs[id].item(), abs=1e-5) for id, value in shown.items())


def test_a_token_outside_the_top_five_has_an_upper_bound_only(page, explorer):
    change = explorer.answer(
        f"pass/{explorer.open(SENTENCE)['id']}/change", {"edits": "layer:decoder.0"}
    )
    before, after = (
        {token["id"]: token["p"] for token in change[when]["positions"][-1]["top"]}
        for when in ("before", "after")
    )
    show(page, "experiments")
    page.click("[data-edit='layer:decoder.0']")
    until(page, "document.querySelector('.change .bar')")
    beyond = [id for id, value in bars(page, ".change").items() if not value]
    assert len(beyond) > 0 and set(beyond) == set(before) - set(after)
    labels = page.locator(".change .bar.zero > span:last-child").all_inner_texts()
    assert set(labels) == {f"≤ {100 * min(after.values()):.1f}%"}
    assert page.locator(".change .before").count() == 5  # the five known probabilities before


def test_a_change_beyond_the_first_64_positions_names_the_compared_ones(browser):
    with (
        served(make_app(small("generator", max_len=128))) as address,
        tab(browser, address) as page,
    ):
        ask(page, "今天" * 40)
        show(page, "experiments")
        page.click("[data-edit='layer:decoder.1']")
        until(page, "document.querySelector('[data-note=first-positions]')")
        assert (
            page.inner_text("[data-note=first-positions]")
            == "probabilities are compared at the first 64 positions; select one of them"
        )
        page.click("[data-position='63']")
        until(page, "document.querySelector('.change .bar')")
        assert page.locator("[data-note=first-positions]").count() == 0


def test_a_swapped_token_gives_the_models_probabilities(page, explorer):
    ids, model = token_ids(page), explorer.explored.model
    ids[0, 2] = explorer.tokens_of("m", "target")["tokens"][0]["id"]
    with torch.no_grad():
        probs = model.logits(model.decode(ids))[0, -1].softmax(-1)
    show(page, "experiments")
    page.click("[data-swap='2']")
    page.fill(".swap [name=token]", "m")
    page.click(".swap form button")
    until(page, "document.querySelector('.change .bar')")
    shown = {id: value for id, value in bars(page, ".change").items() if value}
    assert (
        all(value == pytest.approx(probs[id].item(), abs=1e-5) for id, value in shown.items())
        and len(shown) == 5
    )


def test_a_swap_is_dropped_with_its_text(page):
    show(page, "experiments")
    page.click("[data-swap='3']")
    page.fill(".swap [name=token]", "m")
    page.click(".swap form button")
    until(page, "document.querySelector('.change .bar')")
    ask(page, "m")  # has no token 3
    until(
        page,
        "document.querySelectorAll('[data-swap]').length === 2 &&"
        " document.querySelector('.ablation')",
    )
    assert page.inner_text(".change") == "nothing is ablated"


def test_a_refused_change_keeps_the_ablation_buttons(browser, address):
    opened = Tab(browser)  # the console has the refused request
    page = opened.open(address)
    page.route(
        "**/change?*",
        lambda route: route.fulfill(
            status=422, json={"error": {"en": "not allowed", "zh": "这个不行"}}
        ),
    )
    show(page, "experiments")
    page.click("[data-edit='head:decoder.1.attn.2']")
    until(page, "!document.querySelector('#error').hidden")
    page.click("[data-position='1']")  # draws the card again
    until(page, "document.querySelector('.ablation')")
    assert page.inner_text("#error") == "not allowed"
    opened.close()


def test_a_late_answer_does_not_replace_the_latest_one(page):
    held = []
    page.route("**/change?*", lambda route: held.append(route))
    show(page, "experiments")
    for _ in range(2):
        page.click("[data-edit='head:decoder.1.attn.2']")
    until(page, "document.querySelector('.change').textContent === 'nothing is ablated'")
    with page.expect_response("**/change?*") as late:
        held[0].continue_()
    late.value.finished()
    page.wait_for_timeout(100)
    assert page.inner_text(".change") == "nothing is ablated"


def test_the_last_layer_of_the_logit_lens_is_the_models_prediction(page, explorer):
    model = explorer.explored.model
    with torch.no_grad():
        probs = model.logits(model.decode(token_ids(page)))[0, -1].softmax(-1)
    show(page, "experiments")
    until(page, "document.querySelector('[data-card=logit-lens] td')")
    first = page.evaluate(
        "[...document.querySelectorAll('[data-card=logit-lens] tr:first-child td')]"
        ".map(({ dataset }) => "
        "[+dataset.id, +dataset.value])"
    )
    assert first == [
        [id, pytest.approx(p, abs=1e-5)]
        for id, p in zip(*(each.tolist() for each in reversed(probs.topk(5))), strict=True)
    ]


def test_the_best_path_of_the_beam_tree_is_the_best_hypothesis(page, explorer):
    show(page, "experiments")
    until(page, "document.querySelector('[data-card=beam] .node')")
    best = page.inner_text(".hypotheses li:first-child span:first-child")
    best_path = page.evaluate(
        "[...document.querySelectorAll('.node.best')].map((element) => +element.dataset.node)"
    )
    tree = explorer.answer(f"pass/{explorer.open(SENTENCE)['id']}/beam")
    assert best == tree["hypotheses"][0]["text"].strip()
    assert (
        sorted(best_path) == [node["id"] for node in tree["nodes"] if node["on_best_path"]]
        and len(best_path) > 2
    )


def test_the_offline_file_shows_the_same_without_a_network(browser, page, explorer, tmp_path):
    ids = token_ids(page)
    file = write_page(explorer, [SENTENCE, "机器学习很有趣"], tmp_path / "page.html")
    with tab(browser, file.as_uri(), offline=True) as offline:
        assert torch.equal(token_ids(offline), ids)
        keys = offline.evaluate(
            "[...document.querySelectorAll('button[data-step]')]"
            ".map((element) => element.dataset.step)"
        )
        for key in keys:
            until(offline, f"document.querySelector('.step-values').dataset.step === '{key}'")
            assert offline.is_hidden("#error")
            offline.keyboard.press("ArrowRight")
        weights = weights_of(explorer, ids)
        show(offline, "attention")
        until(offline, "document.querySelectorAll('.thumbnails canvas[data-drawn]').length === 8")
        for choice, truth in (("head", weights[1, 0, 3]), ("mean", weights[1, :, 3].mean(dim=0))):
            press(offline, choice, f"decoder 1 0 {choice}")
            lines = line_weights(offline, 3)
            assert len(lines) > 1 and lines == pytest.approx(
                {column: truth[column].item() for column in lines}, abs=1e-6
            )
        show(offline, "experiments")
        for edit in ("layer:decoder.0", "head:decoder.1.attn.2"):
            offline.click(f"[data-edit='{edit}']")
        assert offline.evaluate(
            "[...document.querySelectorAll('[data-edit][aria-pressed=false]')]"
            ".map(({ dataset }) => dataset.edit)"
        ) == [edit]
        assert "one at a time" in offline.inner_text("[data-note=only-one]")
        until(
            offline,
            "document.querySelector('.change .bar') && document.querySelector('.beam .node') &&"
            " document.querySelector('.projection circle')",
        )
        assert offline.is_hidden("#error")


def explorers():
    """Other architectures: experts, latent attention, an encoder, and a model without attention."""
    tokens = tokenizer()
    plain = specs(tokens.vocab_size)["generator"]
    layer = replace(plain.decoder.layers[0], mixer=Recurrent())
    without = replace(
        plain, decoder=replace(plain.decoder, layers=(layer,)), positions=NoPositions()
    )
    return [*map(small, ("experts", "latent", "embedder")), explorer_of(without, tokens)]


def test_models_with_other_architectures_are_shown(browser):
    for explorer in explorers():
        with served(make_app(explorer)) as address, tab(browser, address) as page:
            keys = page.evaluate(
                "[...document.querySelectorAll('button[data-step]')]"
                ".map((element) => element.dataset.step)"
            )
            for key in {key.split(".")[-1]: key for key in keys}.values():  # one step of each kind
                page.evaluate(
                    "(key) => document.querySelector(`button[data-step='${key}']`).click()", key
                )
                until(page, f"document.querySelector('.step-values').dataset.step === '{key}'")
            show(page, "attention")
            show(page, "experiments")
            until(
                page,
                "document.querySelector('.ablation') && document.querySelector('.projection"
                " circle')",
            )
            assert page.is_hidden("#error")


def test_sentences_are_ranked_by_the_cosine_of_their_pooled_vectors(browser):
    explorer = small("embedder")
    tokens, model = explorer.explored.tokenizers["source"], explorer.explored.model
    texts = ["今天天气真好", "i love machine learning", "the weather is lower today"]
    with served(make_app(explorer)) as address, tab(browser, address) as page:
        ask(page, texts[0])
        show(page, "experiments")
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
        ask(page, texts[0])  # the sentences are the same for every text
        until(page, "document.querySelector('[data-card=nearest] .bar')")
        assert page.locator("[data-card=nearest] .bar").count() == 1
    with torch.no_grad():
        vectors = torch.stack(
            [
                model.encode(torch.tensor([explorer.explored.encode(text, "source")]))
                .states[0]
                .mean(dim=0)
                for text in texts
            ]
        )
    cosines = torch.cosine_similarity(vectors[0], vectors, dim=-1).tolist()
    assert tokens.encode(texts[0]) and shown[0] == [texts[0], pytest.approx(1, abs=1e-6)]
    assert dict(shown) == pytest.approx(dict(zip(texts, cosines, strict=True)), abs=1e-5)
