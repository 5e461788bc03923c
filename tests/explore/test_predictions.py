"""Predictions, logit lens, beam tree and embeddings agree with the model."""

import math

import numpy as np
import pytest
import torch
from small_explorers import TEXT, small

from qkv.generate.beam import BeamSearchConfig
from qkv.generate.decode import greedy
from qkv.textbook.beam import beam_search
from qkv.textbook.positions import frequencies, sinusoidal
from qkv.web.api_errors import ApiError


def opened(family, text=TEXT):
    explorer = small(family)
    trace = explorer.open(text)
    return explorer, trace, f"pass/{trace['id']}"


def next_logits(explorer, ids, source=None):
    """The logits after these ids, by a plain forward pass."""
    model = explorer.explored.model
    with torch.no_grad():
        memory = None if source is None else model.encode(torch.tensor([source]))
        return model.logits(model.decode(torch.tensor([list(ids)]), memory))[0, -1]


def test_the_top_tokens_are_the_largest_probabilities():
    explorer, trace, this = opened("generator")
    ids = trace["sides"]["target"]["ids"]
    for position in (0, 3, len(ids) - 1):
        logits = next_logits(explorer, ids[: position + 1])
        probs = logits.softmax(-1)
        top = explorer.answer(f"{this}/top/{position}", {"k": "7"})
        ids_by_prob = probs.argsort(descending=True)[:7].tolist()
        assert [token["id"] for token in top["tokens"]] == ids_by_prob
        for token in top["tokens"]:
            assert token["p"] == pytest.approx(float(probs[token["id"]]), abs=1e-6)
            assert token["logit"] == pytest.approx(float(logits[token["id"]]), abs=1e-5)
            assert (
                token["token"]
                == explorer.explored.tokenizers["target"].display_tokens([token["id"]])[0]
            )
        torch.testing.assert_close(
            explorer.answer(f"{this}/logits/{position}"), logits, rtol=0, atol=1e-10
        )
        predicted = trace["sides"]["target"]
        assert predicted["predicted_ids"][position] == top["tokens"][0]["id"]
        assert predicted["predicted_p"][position] == pytest.approx(top["tokens"][0]["p"], abs=1e-6)


def test_the_logit_lens_applies_the_final_norm_and_lm_head_to_each_layers_stream():
    explorer, trace, this = opened("generator")
    model, position = explorer.explored.model, 2
    streams = []
    hooks = [
        layer.register_forward_pre_hook(lambda module, given: streams.append(given[0]))
        for layer in model.decoder.layers
    ]
    last = next_logits(explorer, trace["sides"]["target"]["ids"][: position + 1])
    for hook in hooks:
        hook.remove()
    lens = explorer.answer(f"{this}/logit_lens/{position}", {"k": "3"})["layers"]
    assert [layer["name"] for layer in lens] == [
        "embedding",
        "decoder.layers.0",
        "decoder.layers.1",
    ]
    for layer, logits in zip(
        lens,
        [model.logits(model.decoder.norm(x))[0, position] for x in streams] + [last],
        strict=True,
    ):
        best = logits.softmax(-1).topk(3)
        assert [token["id"] for token in layer["tokens"]] == best.indices.tolist()
        assert [token["p"] for token in layer["tokens"]] == pytest.approx(
            best.values.tolist(), abs=1e-6
        )


def test_a_continuation_is_greedy():
    explorer, trace, this = opened("generator")
    ids = list(trace["sides"]["target"]["ids"])
    generated = []
    for _ in range(6):
        generated.append(int(next_logits(explorer, ids + generated).argmax()))
        if generated[-1] == explorer.explored.eos_id:
            break
    assert explorer.answer(f"{this}/generate", {"tokens": "6"})["ids"] == generated


def test_a_translation_is_that_of_greedy_search():
    explorer, trace, this = opened("translator", "机器学习很有趣")
    t, ids = explorer.explored.tokenizers["target"], trace["sides"]["source"]["ids"]
    config = BeamSearchConfig(t.bos_id, t.eos_id, t.pad_id)
    theirs = greedy(explorer.explored.model, [ids], config, [2 * len(ids) + 20])[0]
    assert explorer.answer(f"{this}/generate")["ids"] == theirs
    assert trace["generated"]["text"] == t.decode(theirs)


def test_decoded_text_shows_incomplete_characters_as_bytes():
    explored = small("generator").explored
    t = explored.tokenizers["target"]
    whole = t.encode("i love 学习")
    assert explored.text_of(whole) == t.decode(whole) == "i love 学习"
    half = t.encode("龘")[:2]
    assert "\ufffd" in t.decode([*whole, *half])
    assert explored.text_of([*whole, *half, t.eos_id]) == "i love 学习<E9><BE>"


@pytest.mark.parametrize(
    ("family", "size", "alpha"),
    [("translator", 4, 0.6), ("translator", 1, 0.0), ("generator", 3, 1.0)],
)
def test_the_beam_tree_is_the_textbooks_search(family, size, alpha):
    explorer, trace, this = opened(family, "机器")
    t = explorer.explored.tokenizers["target"]
    source = trace["sides"].get("source", {}).get("ids")
    prefix = [t.bos_id] if source else trace["sides"]["target"]["ids"]

    def logprobs(ids):
        logits = next_logits(explorer, [*prefix, *ids], source).clone()
        logits[[t.bos_id, t.pad_id]] = -math.inf
        return logits.log_softmax(-1).tolist()

    max_depth = 2 * len(source) + 20 if source else 12
    theirs = beam_search(logprobs, t.eos_id, max_depth, size, alpha)
    tree = explorer.answer(f"{this}/beam", {"size": str(size), "alpha": str(alpha)})
    nodes = tree["nodes"]
    assert [entry["log_prob"] for entry in tree["hypotheses"]] == pytest.approx(
        [entry.log_prob for entry in theirs], abs=1e-8
    )
    for ours, entry in zip(tree["hypotheses"], theirs, strict=True):
        assert ours["text"] == explorer.explored.text_of(entry.ids) and nodes[ours["node"]][
            "depth"
        ] == len(entry.ids)
        assert ours["score"] == pytest.approx(
            entry.log_prob / ((5 + len(entry.ids)) / 6) ** alpha, abs=1e-8
        )
    for node in nodes[1:]:
        parent = nodes[node["parent"]]
        assert node["depth"] == parent["depth"] + 1 and node["log_prob"] == pytest.approx(
            parent["log_prob"] + node["token_log_prob"]
        )
        assert parent["state"] == "live"
    path = [node for node in nodes if node["on_best_path"]]
    assert [node["depth"] for node in path] == list(range(len(theirs[0].ids) + 1))
    assert path[-1]["id"] == tree["hypotheses"][0]["node"] and path[-1]["state"] == "finished"


def test_position_encodings_are_those_of_the_model():
    explorer = small("translator")
    np.testing.assert_allclose(explorer.answer("positions/values"), sinusoidal(64, 16), atol=1e-6)
    assert explorer.answer("positions")["frequencies"] == pytest.approx(frequencies(16).tolist())
    rotary = small("generator")
    angles = torch.outer(torch.arange(64).double(), frequencies(4))
    np.testing.assert_allclose(rotary.answer("positions/values"), angles.cos(), atol=1e-6)
    learned = small("embedder")
    assert torch.equal(
        learned.answer("positions/values"), learned.explored.model.encoder.positions.weight
    )
    assert (
        learned.answer("positions")["shape"] == [64, 16]
        and learned.answer("positions")["kind"] == "learned"
    )


def test_neighbors_have_the_largest_cosine():
    explorer = small("generator")
    table = explorer.explored.model.embed.weight.detach().numpy()
    unit = table / np.linalg.norm(table, axis=1, keepdims=True)
    cosines = unit @ unit[70]
    order = [int(id) for id in np.argsort(-cosines) if id != 70][:5]
    found = explorer.answer("neighbors/target/70", {"k": "5"})["neighbors"]
    assert [entry["id"] for entry in found] == order
    assert [entry["cosine"] for entry in found] == pytest.approx(cosines[order].tolist(), abs=1e-5)


def test_the_projection_has_the_first_two_principal_components():
    explorer, trace, this = opened("generator")
    found = explorer.answer(f"{this}/projection/target")
    ids = [point["id"] for point in found["points"]]
    in_text = {point["id"] for point in found["points"] if point["in_text"]}
    assert in_text == set(trace["sides"]["target"]["ids"]) and len(ids) > len(in_text)
    table = explorer.explored.model.embed.weight.detach().numpy()[ids]
    centered = table - table.mean(0)
    values, vectors = np.linalg.eigh(centered.T @ centered)
    points = np.array([[point["x"], point["y"]] for point in found["points"]])
    for axis in range(2):
        theirs = centered @ vectors[:, -1 - axis]
        np.testing.assert_allclose(np.abs(points[:, axis]), np.abs(theirs), atol=1e-4)
        assert found["explained"][axis] == pytest.approx(values[-1 - axis] / values.sum(), abs=1e-5)


def test_nearest_sentences_are_ordered_by_cosine():
    explorer, _, this = opened("embedder")
    others = ["i love machine learning", "今天天气真好", TEXT]
    assert explorer.compare_with(others) == {"count": 3}

    def vector(text):
        ids = torch.tensor([explorer.explored.encode(text, "source")])
        return explorer.explored.model.encode(ids).states[0].mean(0).detach()

    cosines = {
        text: float(torch.nn.functional.cosine_similarity(vector(text), vector(TEXT), dim=0))
        for text in others
    }
    nearest = explorer.answer(f"{this}/nearest")["nearest"]
    assert [entry["text"] for entry in nearest] == sorted(others, key=lambda text: -cosines[text])
    assert nearest[0]["text"] == TEXT and nearest[0]["cosine"] == pytest.approx(1)
    assert {entry["text"]: entry["cosine"] for entry in nearest} == pytest.approx(cosines)


@pytest.mark.parametrize("name", ["top/0", "logit_lens/0", "logits/0", "generate", "beam"])
def test_an_encoder_only_model_has_no_predictions(name):
    explorer, _, this = opened("embedder")
    with pytest.raises(ApiError) as error:
        explorer.answer(f"{this}/{name}")
    assert error.value.status == 404
