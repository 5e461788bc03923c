"""The walk tells every step of a pass, in order, with the numbers the model computed."""

from dataclasses import replace

import pytest
import torch
from small_explorers import TEXT, explorer_of, small, specs, tokenizer

from qkv.checkpoint.loaded_model import PoolingConfig
from qkv.explore.record import record
from qkv.model import spec as s
from qkv.model.positions import sinusoids
from qkv.textbook.feed_forward import silu

FAMILIES = ["translator", "generator", "embedder", "experts", "latent"]


def tensors_of(story):
    return [tensor for step in story["steps"] for tensor in step["tensors"]]


def recorded(explorer, story):
    """Everything an independent recording of the whole pass sees: one pass, every module."""
    model, sides = explorer.subject.model, story["sides"]
    ids = {side: torch.tensor([sides[side]["ids"]]) for side in sides}
    with torch.no_grad(), record(model, "*") as steps:
        memory = model.encode(ids["source"]) if "source" in ids else None
        if "target" in ids:
            model.decode(ids["target"], memory)
    return steps


@pytest.mark.parametrize("family", FAMILIES)
def test_every_number_of_a_module_is_what_a_recording_of_the_whole_pass_sees(family):
    explorer = small(family)
    story = explorer.open(TEXT)
    steps = recorded(explorer, story)
    named = [tensor for tensor in tensors_of(story) if tensor["path"]]
    assert len(named) > 25
    for tensor in named:
        ours = explorer.answer(f"pass/{story['id']}/tensor/{tensor['name']}")
        torch.testing.assert_close(
            ours, steps[tensor["path"]][0], rtol=0, atol=1e-10, msg=tensor["name"]
        )


@pytest.mark.parametrize("family", FAMILIES)
def test_every_tensor_has_the_shape_and_the_axes_that_the_story_tells(family):
    explorer = small(family)
    story = explorer.open(TEXT)
    for tensor in tensors_of(story):
        ours = explorer.answer(f"pass/{story['id']}/tensor/{tensor['name']}")
        assert list(ours.shape) == tensor["shape"] and len(tensor["axes"]) == ours.ndim, tensor
        for axis, side in tensor["labels"].items():
            assert (
                len(story["sides"][side]["tokens"]) == tensor["shape"][tensor["axes"].index(axis)]
            ), tensor


@pytest.mark.parametrize("family", FAMILIES)
def test_every_step_has_words_in_both_languages_and_a_name_of_its_own(family):
    explorer = small(family)
    kinds, story = explorer.answer("model")["kinds"], explorer.open(TEXT)
    for step in story["steps"]:
        words = kinds[step["kind"]]
        assert (
            words["title"]["en"]
            and words["title"]["zh"]
            and words["text"]["en"]
            and words["text"]["zh"]
            and words["formula"]
        )
    keys = [step["key"] for step in story["steps"]]
    names = [tensor["name"] for tensor in tensors_of(story)]
    assert len(set(keys)) == len(keys) and len(set(names)) == len(names)


def kinds_in(story, layer=0, stack=None, part=None):
    return [
        step["kind"]
        for step in story["steps"]
        if step["layer"] == layer
        and stack in (None, step["stack"])
        and part in (None, step["part"])
    ]


def test_todays_decoder_is_told_in_its_order():
    story = small("generator").open(TEXT)
    assert kinds_in(story) == [
        "norm",
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
        "activation",
        "down",
        "residual",
    ]
    assert [step["kind"] for step in story["steps"]][:3] == ["tokens", "ids", "embedding"]
    assert [step["kind"] for step in story["steps"]][-3:] == ["final_norm", "logits", "next"]


def test_the_translator_of_2017_is_told_in_the_six_steps_of_translation():
    story = small("translator").open(TEXT)
    assert [step["kind"] for step in story["steps"]][:5] == [
        "tokens",
        "ids",
        "embedding",
        "scaled",
        "positions",
    ]
    assert kinds_in(story, stack="decoder", part="cross") == [
        "q",
        "k",
        "v",
        "split",
        "scores",
        "mask",
        "softmax",
        "mixed",
        "joined",
        "output",
        "residual",
        "norm",
    ]
    assert [chapter["key"] for chapter in story["chapters"]] == [
        "encode",
        "attend",
        "repeat",
        "decode",
        "cross",
        "choose",
    ]
    for chapter in story["chapters"]:
        first = story["steps"][chapter["first"]]
        assert first["chapter"] == chapter["key"] and chapter["title"]["zh"]


def test_an_encoder_ends_in_the_vector_of_the_sentence():
    explorer = small("embedder", pooling=PoolingConfig("mean", normalize=True))
    story = explorer.open(TEXT)
    assert [step["kind"] for step in story["steps"]][-3:] == ["vectors", "pooling", "sentence"]
    states = (
        explorer.subject.model.encode(torch.tensor([story["sides"]["source"]["ids"]]))
        .states[0]
        .detach()
    )
    vector = explorer.answer(f"pass/{story['id']}/tensor/sentence")
    torch.testing.assert_close(vector, states.mean(0) / states.mean(0).norm(), rtol=0, atol=1e-10)


def test_what_no_module_gives_is_what_the_formulas_give():
    explorer = small("translator")
    story, model = explorer.open(TEXT), explorer.subject.model

    def get(name):
        return explorer.answer(f"pass/{story['id']}/tensor/{name}")

    ids = torch.tensor(story["sides"]["source"]["ids"])
    x = model.embed.weight[ids].detach() * 4.0  # sqrt(16)
    torch.testing.assert_close(get("encoder.scaled"), x, rtol=0, atol=1e-12)
    x = x + sinusoids(torch.arange(len(ids))[None], 16)[0]
    torch.testing.assert_close(get("encoder.positions"), x, rtol=0, atol=1e-12)
    joined = get("encoder.0.attn.mixed").transpose(0, 1).flatten(1)  # (length, heads * d_head)
    torch.testing.assert_close(get("encoder.0.attn.joined"), joined, rtol=0, atol=1e-12)
    torch.testing.assert_close(
        get("encoder.0.attn.residual"), x + get("encoder.0.attn.output"), rtol=0, atol=1e-10
    )
    torch.testing.assert_close(
        get("encoder.0.ffn.activation"), get("encoder.0.ffn.up").clamp(min=0), rtol=0, atol=0
    )
    split = get("decoder.0.cross.k").unflatten(-1, (4, 4)).transpose(0, 1)
    torch.testing.assert_close(get("decoder.0.cross.split.k"), split, rtol=0, atol=0)


def test_a_gated_bend_is_the_gate_times_the_rest():
    explorer = small("generator")
    this = f"pass/{explorer.open(TEXT)['id']}/tensor/decoder.1.ffn"
    gate, up, bend = (explorer.answer(f"{this}.{kind}") for kind in ("gate", "up", "activation"))
    torch.testing.assert_close(bend, silu(gate) * up, rtol=0, atol=1e-12)


def test_the_experts_that_were_chosen_are_those_of_the_highest_scores():
    explorer = small("experts")
    this = f"pass/{explorer.open(TEXT)['id']}/tensor/decoder.0.ffn.router"
    scores, chosen, weights = (
        explorer.answer(f"{this}.{kind}") for kind in ("scores", "chosen", "weights")
    )
    assert torch.equal(chosen.sort().values, scores.topk(2).indices.sort().values)
    torch.testing.assert_close(weights.sum(-1), torch.ones(len(weights), dtype=torch.float64))


def test_tokens_show_characters_and_mark_their_pieces():
    side = small("generator").open("今天天气真好龘😀")["sides"]["target"]
    assert "\ufffd" not in "".join(side["tokens"])
    assert any(side["partial"]) and not all(side["partial"])
    for token, partial in zip(side["tokens"], side["partial"], strict=True):
        assert partial == ("/" in token), token
    assert (
        "".join(word["text"] for word in side["words"] if not word["text"].startswith("<"))
        == "今天天气真好龘😀"
    )
    assert sorted(token for word in side["words"] for token in word["tokens"]) == list(
        range(len(side["tokens"]))
    )


def test_some_rows_or_one_head_are_cut_out_of_the_whole():
    explorer = small("generator")
    this = f"pass/{explorer.open(TEXT)['id']}/tensor"
    whole = explorer.answer(f"{this}/decoder.0.attn.scores")
    assert torch.equal(explorer.answer(f"{this}/decoder.0.attn.scores", {"index": "2"}), whole[2])
    assert torch.equal(
        explorer.answer(f"{this}/decoder.0.attn.scores", {"index": "2", "rows": "1:3"}),
        whole[2, 1:3],
    )
    logits = explorer.answer(f"{this}/logits")
    torch.testing.assert_close(
        explorer.answer(f"{this}/logits", {"rows": "2:4"}), logits[2:4], rtol=0, atol=1e-12
    )
    torch.testing.assert_close(
        explorer.answer(f"{this}/logits", {"index": "3"}), logits[3], rtol=0, atol=1e-12
    )


def test_the_same_text_has_the_same_name_and_is_run_once():
    explorer = small("generator")
    first = explorer.open(TEXT)
    kept = explorer.passes[first["id"]]
    assert explorer.open(TEXT) == first and explorer.passes[first["id"]] is kept
    assert explorer.open(TEXT + "!")["id"] != first["id"]
    assert explorer.answer(f"pass/{first['id']}") == first


def test_only_the_last_texts_are_remembered():
    explorer = small("generator")
    ids = [explorer.open(f"text {n}")["id"] for n in range(9)]
    assert (
        len(explorer.passes) == 6 and ids[-1] in explorer.passes and ids[0] not in explorer.passes
    )


def test_the_words_of_a_translation_are_those_of_greedy_search():
    explorer = small("translator")
    story = explorer.open("机器学习很有趣")
    target = story["sides"]["target"]
    assert target["ids"][1:] == target["predicted_ids"][: len(target["ids"]) - 1]
    assert target["ids"][0] == explorer.subject.tokenizers["target"].bos_id
    assert story["said"]["text"] == explorer.subject.tokenizers["target"].decode(
        explorer.passes[story["id"]].said
    )


RMS = s.Norm("rms", "pre")
OTHERS = {
    "recurrent": s.Stack((s.Layer(s.Recurrent("gru"), s.Dense(20), RMS),), "past"),
    "convolution": s.Stack((s.Layer(s.Convolution(3), s.Dense(20), RMS),), "past"),
    "token mlp": s.Stack((s.Layer(s.TokenMlp(), s.Dense(20), RMS),), "past"),
    "pooling": s.Stack(
        (s.Layer(s.Pooling(3), s.Dense(20), RMS), s.Layer(s.Heads(4, 1, 4), s.Dense(20), RMS)),
        "past",
    ),
    "window": s.Stack(
        (s.Layer(s.Heads(4, 4, 4, window=2), s.Gated(20), s.Norm("batch", "pre")),), "past", True
    ),
    "latent": s.Stack((s.Layer(s.Latent(2, 6, 4, 4, 5, q_rank=6), s.Gated(20), RMS),), "past"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_mixers_are_told_as_far_as_they_have_steps(name):
    tokens = tokenizer()
    positions = (
        s.NoPositions() if name == "pooling" else s.Learned() if name == "recurrent" else s.Rotary()
    )
    explorer = explorer_of(
        s.Spec(tokens.vocab_size, 16, decoder=OTHERS[name], positions=positions, max_len=64), tokens
    )
    story = explorer.open(TEXT)
    steps = recorded(explorer, story)
    for tensor in tensors_of(story):
        ours = explorer.answer(f"pass/{story['id']}/tensor/{tensor['name']}")
        assert list(ours.shape) == tensor["shape"]
        if tensor["path"]:
            torch.testing.assert_close(ours, steps[tensor["path"]][0], rtol=0, atol=1e-10)
    for what in ("top/0", "lens/0", "say", "beam", "map/target"):
        assert explorer.answer(f"pass/{story['id']}/{what}")


def test_a_translator_that_sees_all_at_once_is_told_too():
    tokens = tokenizer()
    spec = specs(tokens.vocab_size)["translator"]
    explorer = explorer_of(replace(spec, decoder=replace(spec.decoder, sees="all")), tokens)
    story = explorer.open(TEXT)
    steps = recorded(explorer, story)
    ours = explorer.answer(f"pass/{story['id']}/tensor/decoder.1.attn.softmax")
    torch.testing.assert_close(
        ours, steps["decoder.layers.1.attn.branch.core.weights"][0], rtol=0, atol=1e-10
    )
    assert ours.triu(1).any()


def test_a_masked_encoder_says_what_stands_at_each_place():
    tokens = tokenizer()
    spec = replace(specs(tokens.vocab_size)["embedder"], head=s.MaskedHead())
    explorer = explorer_of(spec, tokens)
    story = explorer.open(TEXT)
    model, ids = explorer.subject.model, torch.tensor([story["sides"]["source"]["ids"]])
    theirs = model.logits(model.encode(ids).states)[0].detach()
    assert story["positions"] == ids.shape[1]
    torch.testing.assert_close(
        explorer.answer(f"pass/{story['id']}/logits/2"), theirs[2], rtol=0, atol=1e-10
    )


def test_no_example_is_shown_twice_with_other_capitals():
    examples = small("translator").answer("model")["examples"]
    plain = [text.lower().rstrip(".") for text in examples]
    assert (
        len(plain) == len(set(plain))
        and "a little girl climbs into a house" in plain
        and "机器学习很有趣" in plain
    )
