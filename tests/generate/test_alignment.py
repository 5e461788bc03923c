"""Word alignment: cross-attention weights of the model, tokens grouped into words."""

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
from qkv.text.train_tokenizer import train_tokenizer

TEXTS = [
    "我爱机器学习。 I love machine learning very much, don't I?",
    "今天天气真好 the weather is nice",
    "lower newest",
] * 3


@pytest.mark.parametrize("layers, layer", [(1, 0), (2, 0), (4, 2)])
def test_weights_are_the_mean_over_heads_of_the_last_layer_but_one(layers, layer):
    torch.manual_seed(3)
    model = Transformer(encoder_decoder(20, 16, layers, n_heads=2, d_ff=16)).double().eval()
    source, decoder_ids = [5, 6, 7, 2], [1, 9, 8]
    ours = cross_weights(model, source, decoder_ids)
    with record(model, "decoder.layers.*.cross.branch.core.weights") as steps, torch.no_grad():
        model.decode(torch.tensor([decoder_ids]), model.encode(torch.tensor([source])))
    recorded = steps[f"decoder.layers.{layer}.cross.branch.core.weights"][0].mean(dim=0)
    torch.testing.assert_close(ours, recorded, rtol=0, atol=1e-12)
    assert ours.shape == (3, 4) and torch.allclose(
        ours.sum(dim=1), torch.ones(3, dtype=torch.float64)
    )


def test_weights_of_an_alignment_head_are_those_of_that_head():
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


def test_concurrent_cross_weights_do_not_affect_each_other_or_decoding():
    torch.manual_seed(3)
    model = Transformer(encoder_decoder(20, 16, 3, n_heads=2, d_ff=16)).eval()
    pairs = [([5, 6, 7, 2], [1, 9, 8]), ([9, 2], [1, 4])]
    core = model.decoder.layers[1].cross.branch.core
    expected = [cross_weights(model, *pair) for pair in pairs]
    barrier = Barrier(3)  # both passes are in the decoder while the main thread makes a stepper

    def wait(module, inputs):
        barrier.wait(60)
        barrier.wait(60)

    hook = model.decoder.layers[0].register_forward_pre_hook(wait)
    with ThreadPoolExecutor(2) as threads:
        futures = [threads.submit(cross_weights, model, *pair) for pair in pairs]
        barrier.wait(60)
        stepper, core_meanwhile = make_stepper(model), model.decoder.layers[1].cross.branch.core
        barrier.wait(60)
        found = [future.result(timeout=60) for future in futures]
    hook.remove()
    assert isinstance(stepper, PackedStepper) and core_meanwhile is core
    assert model.decoder.layers[1].cross.branch.core is core
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0)


def test_a_target_word_is_linked_to_the_source_word_of_the_largest_weight():
    weights = torch.tensor([[0.1, 0.5, 0.3, 0.1], [0.6, 0.2, 0.1, 0.1], [0.2, 0.2, 0.5, 0.1]])
    source = [Unit("我", [0]), Unit("机器", [1, 2])]
    target = [Unit("machine", [0, 2]), Unit("I", [1])]
    assert align(weights, source, target) == [Link("机器", "machine", 0.75), Link("我", "I", 0.6)]
    assert align(weights, [], target) == []


def test_with_null_links_a_word_that_attends_most_to_eos_has_no_link():
    # The third source token is <eos>.
    weights = torch.tensor([[0.6, 0.3, 0.1], [0.3, 0.2, 0.5], [0.2, 0.4, 0.4]])
    source = [Unit("街", [0]), Unit("道", [1])]
    target = [Unit("street", [0]), Unit("the", [1]), Unit("road", [2])]
    assert align(weights, source, target, null=True) == [
        Link("街", "street", 0.6),
        Link("道", "road", 0.4),
    ]
    assert [link.target for link in align(weights, source, target)] == ["street", "the", "road"]


def test_unit_spans_are_those_of_the_text():
    text = " the the 天 the"
    assert unit_spans(
        text, [Unit("the", [0]), Unit("the", [1]), Unit("天", [2]), Unit("the", [3])]
    ) == [(1, 4), (5, 8), (9, 10), (11, 14)]


@pytest.mark.parametrize("kind", ["word", "char", "bpe", "byte_bpe", "wordpiece"])
def test_tokens_are_grouped_into_words(kind):
    tokenizer = train_tokenizer(kind, TEXTS, 300 if kind == "byte_bpe" else 70)
    text = "the weather love, newest"
    words = ["the", "weather", "love", ",", "newest"]
    assert [unit.text for unit in source_units(tokenizer, text)] == words
    assert [unit.text for unit in target_units(tokenizer, tokenizer.encode(text))] == words


def test_chinese_units_are_tokens_and_bytes_of_a_character_are_grouped():
    assert [
        unit.text for unit in units("我爱机器学习。", [(0, 1), (1, 2), (2, 4), (4, 6), (6, 7)])
    ] == ["我", "爱", "机器", "学习", "。"]
    tokenizer = train_tokenizer("byte_bpe", ["a b"], 260)  # a Chinese character is three tokens
    assert [unit.text for unit in source_units(tokenizer, "天才 a")] == ["天", "才", "a"]
    assert [unit.text for unit in target_units(tokenizer, tokenizer.encode("天才 a"))] == [
        "天",
        "才",
        "a",
    ]


def test_a_token_that_spans_two_words_joins_them():
    assert units("New York is", [(0, 8), (8, 11)]) == [Unit("New York", [0]), Unit("is", [1])]
