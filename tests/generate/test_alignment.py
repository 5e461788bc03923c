"""Word pairs: weights as the model has them, pieces put together as people see them."""

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest
import torch

from qkv.engine.stepper import PackedStepper, make_stepper
from qkv.explore.record import record
from qkv.generate.alignment import (
    Link,
    Unit,
    align,
    cross_weights,
    source_units,
    target_units,
    unit_spans,
    units,
)
from qkv.model.guided import AlignmentHead
from qkv.model.presets import encoder_decoder
from qkv.model.transformer import Transformer
from qkv.text.learn import learn

TEXTS = [
    "我爱机器学习。 I love machine learning very much, don't I?",
    "今天天气真好 the weather is nice",
    "lower newest",
] * 3


@pytest.mark.parametrize("layers, chosen", [(1, 0), (2, 0), (4, 2)])
def test_the_weights_are_those_of_the_last_but_one_layer_averaged_over_heads(layers, chosen):
    torch.manual_seed(3)
    model = Transformer(encoder_decoder(20, 16, layers, n_heads=2, d_ff=16)).double().eval()
    source, begun = [5, 6, 7, 2], [1, 9, 8]
    ours = cross_weights(model, source, begun)
    with record(model, "decoder.layers.*.cross.branch.core.weights") as steps, torch.no_grad():
        model.decode(torch.tensor([begun]), model.encode(torch.tensor([source])))
    recorded = steps[f"decoder.layers.{chosen}.cross.branch.core.weights"][0].mean(dim=0)
    torch.testing.assert_close(ours, recorded, rtol=0, atol=1e-12)
    assert ours.shape == (3, 4) and torch.allclose(
        ours.sum(dim=1), torch.ones(3, dtype=torch.float64)
    )


def test_the_weights_of_a_chosen_head_are_those_of_that_head():
    torch.manual_seed(3)
    model = Transformer(encoder_decoder(20, 16, 3, n_heads=4, d_ff=16)).double().eval()
    with record(model, "decoder.layers.*.cross.branch.core.weights") as steps, torch.no_grad():
        model.decode(torch.tensor([[1, 9, 8]]), model.encode(torch.tensor([[5, 6, 7, 2]])))
    for layer, head in ((0, 3), (2, 1)):
        ours = cross_weights(model, [5, 6, 7, 2], [1, 9, 8], AlignmentHead(layer, head))
        torch.testing.assert_close(
            ours,
            steps[f"decoder.layers.{layer}.cross.branch.core.weights"][0, head],
            rtol=0,
            atol=1e-12,
        )


def test_threads_that_look_at_the_weights_of_one_model_leave_each_other_and_its_translations_alone():
    torch.manual_seed(3)
    model = Transformer(encoder_decoder(20, 16, 3, n_heads=2, d_ff=16)).eval()
    asked, core = (
        [([5, 6, 7, 2], [1, 9, 8]), ([9, 2], [1, 4])],
        model.decoder.layers[1].cross.branch.core,
    )
    expected = [cross_weights(model, *one) for one in asked]
    meeting = Barrier(3)  # both passes stand at the decoder's door, and a translation begins

    def at_the_door(module, given):
        meeting.wait(60)
        meeting.wait(60)

    door = model.decoder.layers[0].register_forward_pre_hook(at_the_door)
    with ThreadPoolExecutor(2) as threads:
        begun = [threads.submit(cross_weights, model, *one) for one in asked]
        meeting.wait(60)
        stepper, meanwhile = make_stepper(model), model.decoder.layers[1].cross.branch.core
        meeting.wait(60)
        found = [one.result(timeout=60) for one in begun]
    door.remove()
    assert (
        isinstance(stepper, PackedStepper)
        and meanwhile is core
        and model.decoder.layers[1].cross.branch.core is core
    )
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0)


def test_a_target_word_is_linked_to_the_source_word_its_pieces_look_at_most():
    weights = torch.tensor([[0.1, 0.5, 0.3, 0.1], [0.6, 0.2, 0.1, 0.1], [0.2, 0.2, 0.5, 0.1]])
    source = [Unit("我", [0]), Unit("机器", [1, 2])]
    target = [Unit("machine", [0, 2]), Unit("I", [1])]
    assert align(weights, source, target) == [Link("机器", "machine", 0.75), Link("我", "I", 0.6)]
    assert align(weights, [], target) == []


def test_with_null_links_a_word_that_attends_most_to_eos_has_no_link():
    weights = torch.tensor(
        [[0.6, 0.3, 0.1], [0.3, 0.2, 0.5], [0.2, 0.4, 0.4]]
    )  # the third source token is <eos>
    source, target = (
        [Unit("街", [0]), Unit("道", [1])],
        [Unit("street", [0]), Unit("the", [1]), Unit("road", [2])],
    )
    assert align(weights, source, target, null=True) == [
        Link("街", "street", 0.6),
        Link("道", "road", 0.4),
    ]
    assert [link.target for link in align(weights, source, target)] == ["street", "the", "road"]


def test_units_are_found_in_the_text_they_were_made_from():
    text = " the the 天 the"
    assert unit_spans(
        text, [Unit("the", [0]), Unit("the", [1]), Unit("天", [2]), Unit("the", [3])]
    ) == [(1, 4), (5, 8), (9, 10), (11, 14)]


@pytest.mark.parametrize("kind", ["word", "char", "bpe", "bytes", "wordpiece"])
def test_pieces_are_put_together_into_words(kind):
    tokenizer = learn(kind, TEXTS, 300 if kind == "bytes" else 70)
    text = "the weather love, newest"
    assert [unit.text for unit in source_units(tokenizer, text)] == [
        "the",
        "weather",
        "love",
        ",",
        "newest",
    ]
    assert [unit.text for unit in target_units(tokenizer, tokenizer.encode(text))] == [
        "the",
        "weather",
        "love",
        ",",
        "newest",
    ]


def test_chinese_words_are_the_pieces_and_halves_of_a_character_are_put_together():
    assert [
        unit.text for unit in units("我爱机器学习。", [(0, 1), (1, 2), (2, 4), (4, 6), (6, 7)])
    ] == ["我", "爱", "机器", "学习", "。"]
    tokenizer = learn("bytes", ["a b"], 260)  # no Chinese character is a piece: each is three bytes
    assert [unit.text for unit in source_units(tokenizer, "天才 a")] == ["天", "才", "a"]
    assert [unit.text for unit in target_units(tokenizer, tokenizer.encode("天才 a"))] == [
        "天",
        "才",
        "a",
    ]


def test_a_piece_that_reaches_over_two_words_joins_them():
    assert units("New York is", [(0, 8), (8, 11)]) == [Unit("New York", [0]), Unit("is", [1])]
