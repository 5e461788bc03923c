"""What the model would say on the page is what the model says."""

import math

import numpy as np
import pytest
import torch
from small_explorers import TEXT, small

from qkv.explore.problem import Problem
from qkv.generate.decode import greedy
from qkv.textbook.beam import beam_search
from qkv.textbook.positions import frequencies, sinusoidal


def opened(family, text=TEXT):
    explorer = small(family)
    story = explorer.open(text)
    return explorer, story, f"pass/{story['id']}"


def next_logits(explorer, ids, source=None):
    """The logits after these ids, by a plain pass."""
    model = explorer.subject.model
    with torch.no_grad():
        memory = None if source is None else model.encode(torch.tensor([source]))
        return model.logits(model.decode(torch.tensor([list(ids)]), memory))[0, -1]


def test_the_top_tokens_are_the_largest_probabilities():
    explorer, story, this = opened("generator")
    ids = story["sides"]["target"]["ids"]
    for place in (0, 3, len(ids) - 1):
        logits = next_logits(explorer, ids[: place + 1])
        chances = logits.softmax(-1)
        top = explorer.answer(f"{this}/top/{place}", {"k": "7"})
        assert [one["id"] for one in top["tokens"]] == chances.argsort(descending=True)[:7].tolist()
        for one in top["tokens"]:
            assert one["p"] == pytest.approx(float(chances[one["id"]]), abs=1e-6)
            assert one["logit"] == pytest.approx(float(logits[one["id"]]), abs=1e-5)
            assert (
                one["token"]
                == explorer.subject.tokenizers["target"].tokens_for_people([one["id"]])[0]
            )
        torch.testing.assert_close(
            explorer.answer(f"{this}/logits/{place}"), logits, rtol=0, atol=1e-10
        )
        predicted = story["sides"]["target"]
        assert predicted["predicted_ids"][place] == top["tokens"][0]["id"]
        assert predicted["predicted_p"][place] == pytest.approx(top["tokens"][0]["p"], abs=1e-6)


def test_the_lens_sends_each_layers_stream_through_the_last_norm_and_the_head():
    explorer, story, this = opened("generator")
    model, place = explorer.subject.model, 2
    streams = []
    hooks = [
        layer.register_forward_pre_hook(lambda module, given: streams.append(given[0]))
        for layer in model.decoder.layers
    ]
    last = next_logits(explorer, story["sides"]["target"]["ids"][: place + 1])
    for hook in hooks:
        hook.remove()
    lens = explorer.answer(f"{this}/lens/{place}", {"k": "3"})["layers"]
    assert [layer["name"] for layer in lens] == ["embedding", "decoder.0", "decoder.1"]
    for layer, logits in zip(
        lens, [model.logits(model.decoder.norm(x))[0, place] for x in streams] + [last], strict=True
    ):
        best = logits.softmax(-1).topk(3)
        assert [one["id"] for one in layer["tokens"]] == best.indices.tolist()
        assert [one["p"] for one in layer["tokens"]] == pytest.approx(
            best.values.tolist(), abs=1e-6
        )


def test_a_continuation_is_the_likeliest_token_again_and_again():
    explorer, story, this = opened("generator")
    ids = list(story["sides"]["target"]["ids"])
    said = []
    for _ in range(6):
        said.append(int(next_logits(explorer, ids + said).argmax()))
        if said[-1] == explorer.subject.eos_id:
            break
    assert explorer.answer(f"{this}/say", {"tokens": "6"})["ids"] == said


def test_a_translation_is_that_of_greedy_search():
    explorer, story, this = opened("translator", "机器学习很有趣")
    t, ids = explorer.subject.tokenizers["target"], torch.tensor([story["sides"]["source"]["ids"]])
    theirs = greedy(
        explorer.subject.model,
        ids,
        None,
        bos_id=t.bos_id,
        eos_id=t.eos_id,
        pad_id=t.pad_id,
        max_len=2 * ids.shape[1] + 20,
    )[0]
    assert explorer.answer(f"{this}/say")["ids"] == theirs
    assert story["said"]["text"] == t.decode(theirs)


def test_what_is_said_is_its_text_and_bytes_that_make_no_character_are_named():
    subject = small("generator").subject
    t = subject.tokenizers["target"]
    whole = t.encode("i love 学习")
    assert subject.text_of(whole) == t.decode(whole) == "i love 学习"
    half = t.encode("龘")[:2]
    assert "\ufffd" in t.decode([*whole, *half])
    assert subject.text_of([*whole, *half, t.eos_id]) == "i love 学习<E9><BE>"


@pytest.mark.parametrize(
    ("family", "size", "alpha"),
    [("translator", 4, 0.6), ("translator", 1, 0.0), ("generator", 3, 1.0)],
)
def test_the_beam_tree_is_the_textbooks_search(family, size, alpha):
    explorer, story, this = opened(family, "机器")
    t = explorer.subject.tokenizers["target"]
    source = story["sides"].get("source", {}).get("ids")
    begun = [t.bos_id] if source else story["sides"]["target"]["ids"]

    def log_probs(ids):
        logits = next_logits(explorer, [*begun, *ids], source).clone()
        logits[[t.bos_id, t.pad_id]] = -math.inf
        return logits.log_softmax(-1).tolist()

    deep = 2 * len(source) + 20 if source else 12
    theirs = beam_search(log_probs, t.eos_id, deep, size, alpha)
    tree = explorer.answer(f"{this}/beam", {"size": str(size), "alpha": str(alpha)})
    nodes = tree["nodes"]
    assert [one["log_prob"] for one in tree["hypotheses"]] == pytest.approx(
        [one.log_prob for one in theirs], abs=1e-8
    )
    for ours, one in zip(tree["hypotheses"], theirs, strict=True):
        assert ours["text"] == explorer.subject.text_of(one.ids) and nodes[ours["node"]][
            "depth"
        ] == len(one.ids)
        assert ours["score"] == pytest.approx(
            one.log_prob / ((5 + len(one.ids)) / 6) ** alpha, abs=1e-8
        )
    for node in nodes[1:]:
        above = nodes[node["parent"]]
        assert node["depth"] == above["depth"] + 1 and node["log_prob"] == pytest.approx(
            above["log_prob"] + node["gain"]
        )
        assert above["state"] == "live"
    way = [node for node in nodes if node["wins"]]
    assert [node["depth"] for node in way] == list(range(len(theirs[0].ids) + 1))
    assert way[-1]["id"] == tree["hypotheses"][0]["node"] and way[-1]["state"] == "finished"


def test_waves_are_those_the_model_adds_or_turns_by():
    explorer = small("translator")
    np.testing.assert_allclose(explorer.answer("waves/numbers"), sinusoidal(64, 16), atol=1e-6)
    assert explorer.answer("waves")["frequencies"] == pytest.approx(frequencies(16).tolist())
    turned = small("generator")
    angles = torch.outer(torch.arange(64).double(), frequencies(4))
    np.testing.assert_allclose(turned.answer("waves/numbers"), angles.cos(), atol=1e-6)
    learned = small("embedder")
    assert torch.equal(
        learned.answer("waves/numbers"), learned.subject.model.encoder.positions.weight
    )
    assert (
        learned.answer("waves")["shape"] == [64, 16]
        and learned.answer("waves")["kind"] == "learned"
    )


def test_neighbours_are_those_of_the_largest_cosine():
    explorer = small("generator")
    table = explorer.subject.model.embed.weight.detach().numpy()
    unit = table / np.linalg.norm(table, axis=1, keepdims=True)
    cosines = unit @ unit[70]
    order = [int(id) for id in np.argsort(-cosines) if id != 70][:5]
    found = explorer.answer("neighbours/target/70", {"k": "5"})["neighbours"]
    assert [one["id"] for one in found] == order
    assert [one["cosine"] for one in found] == pytest.approx(cosines[order].tolist(), abs=1e-5)


def test_the_map_keeps_the_two_directions_of_most_variance():
    explorer, story, this = opened("generator")
    found = explorer.answer(f"{this}/map/target")
    ids = [point["id"] for point in found["points"]]
    here = {point["id"] for point in found["points"] if point["here"]}
    assert here == set(story["sides"]["target"]["ids"]) and len(ids) > len(here)
    table = explorer.subject.model.embed.weight.detach().numpy()[ids]
    centred = table - table.mean(0)
    values, vectors = np.linalg.eigh(centred.T @ centred)
    points = np.array([[point["x"], point["y"]] for point in found["points"]])
    for axis in range(2):
        theirs = centred @ vectors[:, -1 - axis]
        np.testing.assert_allclose(np.abs(points[:, axis]), np.abs(theirs), atol=1e-4)
        assert found["explained"][axis] == pytest.approx(values[-1 - axis] / values.sum(), abs=1e-5)


def test_nearest_sentences_are_ordered_by_cosine():
    explorer, _, this = opened("embedder")
    others = ["i love machine learning", "今天天气真好", TEXT]
    assert explorer.compare_with(others) == {"count": 3}

    def vector(text):
        ids = torch.tensor([explorer.subject.read(text, "source")])
        return explorer.subject.model.encode(ids).states[0].mean(0).detach()

    cosines = {
        text: float(torch.nn.functional.cosine_similarity(vector(text), vector(TEXT), dim=0))
        for text in others
    }
    nearest = explorer.answer(f"{this}/nearest")["nearest"]
    assert [one["text"] for one in nearest] == sorted(others, key=lambda text: -cosines[text])
    assert nearest[0]["text"] == TEXT and nearest[0]["cosine"] == pytest.approx(1)
    assert {one["text"]: one["cosine"] for one in nearest} == pytest.approx(cosines)


@pytest.mark.parametrize("name", ["top/0", "lens/0", "logits/0", "say", "beam"])
def test_a_model_of_vectors_says_that_it_does_not_speak(name):
    explorer, _, this = opened("embedder")
    with pytest.raises(Problem) as problem:
        explorer.answer(f"{this}/{name}")
    assert problem.value.status == 404
