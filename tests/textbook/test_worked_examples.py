"""Worked examples: numbers printed in papers and course notes."""

import math

import pytest
import torch

from qkv.textbook import schedule
from qkv.textbook.attention import (
    MultiHeadAttention,
    scaled_dot_product_attention,
    softmax,
    split_heads,
)
from qkv.textbook.bleu import brevity_penalty, clipped_matches, n_grams
from qkv.textbook.decoder_only import DecoderOnly
from qkv.textbook.loss import cross_entropy, smooth_labels
from qkv.textbook.masks import causal_mask, combined_mask, padding_mask
from qkv.textbook.positions import LearnedPositions, sinusoidal
from qkv.textbook.transformer import Transformer

T, F = True, False


def test_softmax_of_one_two_three():
    assert softmax(torch.tensor([1.0, 2.0, 3.0])).tolist() == pytest.approx(
        [0.0900, 0.2447, 0.6652], abs=5e-5
    )


def test_softmax_of_three_one_minus_three_has_its_maximum_at_the_first():
    probs = softmax(torch.tensor([3.0, 1.0, -3.0], dtype=torch.float64))
    assert (
        probs.sum().item() == pytest.approx(1) and probs.argmax().item() == 0 and (probs > 0).all()
    )


def test_the_cat_sat_scores_are_divided_by_eight():
    raw = torch.tensor([[12.5, 30.8, 25.1]], dtype=torch.float64)
    scaled = raw / math.sqrt(64)
    assert scaled[0].tolist() == pytest.approx([1.56, 3.85, 3.14], abs=6e-3)
    # q . k equals the raw score: q has a single 1, k the score at its index; both are 64 wide.
    q, k = torch.zeros(1, 64, dtype=torch.float64), torch.zeros(3, 64, dtype=torch.float64)
    q[0, 0], k[:, 0] = 1, raw[0]
    _, weights = scaled_dot_product_attention(q, k, torch.eye(3, dtype=torch.float64))
    e = [math.exp(x / 8) for x in (12.5, 30.8, 25.1)]
    assert weights[0].tolist() == pytest.approx([x / sum(e) for x in e], abs=1e-12)
    assert weights.argmax().item() == 1  # cat attends most to cat


def test_padding_mask_as_printed():
    ids = torch.tensor([[5, 7, 9, 0, 0], [8, 6, 0, 0, 0]])
    assert padding_mask(ids != 0).tolist() == [[[[T, T, T, F, F]]], [[[T, T, F, F, F]]]]


def test_causal_mask_as_printed():
    assert causal_mask(5).tolist() == [
        [T, F, F, F, F],
        [T, T, F, F, F],
        [T, T, T, F, F],
        [T, T, T, T, F],
        [T, T, T, T, T],
    ]


def test_combined_mask_as_printed():
    # Printed for [1, 2, 3, 0, 0], but the printed formula gives it for one padding token.
    assert combined_mask(torch.tensor([[1, 2, 3, 4, 0]])).tolist() == [
        [[[T, F, F, F, F], [T, T, F, F, F], [T, T, T, F, F], [T, T, T, T, F], [T, T, T, T, F]]]
    ]
    ids = torch.tensor([[1, 2, 3, 0, 0]])
    assert combined_mask(ids).equal(torch.ones(5, 5).tril().bool() & (ids != 0)[:, None, None])
    assert combined_mask(ids)[0, 0, 4].tolist() == [T, T, T, F, F]


def test_the_target_is_shifted_right():
    target = ["<sos>", "I", "love", "NLP", "<eos>"]
    assert target[:-1] == ["<sos>", "I", "love", "NLP"] and target[1:] == [
        "I",
        "love",
        "NLP",
        "<eos>",
    ]
    rows = [["<bos>", "i", "love", "machine", "learning"]] * 5
    inputs = [
        [word for word, allowed in zip(row, mask, strict=True) if allowed]
        for row, mask in zip(rows, causal_mask(5).tolist(), strict=True)
    ]
    assert inputs == [rows[0][:n] for n in range(1, 6)]  # the five printed inputs, in one pass


def test_wo_ai_ni_is_masked_before_the_softmax():
    scores = torch.tensor([[10.0, 8, 5], [9, 12, 11], [4, 7, 9]], dtype=torch.float64)
    weights = softmax(scores, causal_mask(3))
    added = scores + torch.tensor(
        [[0, -math.inf, -math.inf], [0, 0, -math.inf], [0, 0, 0]], dtype=torch.float64
    )
    torch.testing.assert_close(weights, torch.softmax(added, dim=-1), rtol=0, atol=1e-15)
    assert weights[0].tolist() == [1.0, 0.0, 0.0] and weights[1, 2].item() == 0.0
    # Printed rows two and three are rounded (0.2 0.8 0.0; 0.1 0.4 0.5); the order is the same.
    assert weights[1, 1] > weights[1, 0] and weights[2, 2] > weights[2, 1] > weights[2, 0]
    assert weights[1].tolist() == pytest.approx([0.0474, 0.9526, 0.0], abs=5e-5)


@pytest.mark.parametrize(
    "printed",
    [
        [[1.0, 0, 0], [0.4543, 0.5457, 0], [0.0393, 0.2787, 0.6820]],
        [[1.0, 0, 0], [0.6347, 0.3653, 0], [0.3787, 0.2274, 0.3938]],
        [[1.0, 0, 0], [0.2770, 0.7230, 0], [0.2145, 0.3288, 0.4567]],
        [[1.0, 0, 0], [0.9932, 0.0068, 0], [0.1146, 0.4249, 0.4605]],
    ],
)
def test_printed_attention_weights_follow_from_their_scores(printed):
    weights = torch.tensor(printed, dtype=torch.float64)
    # any constant cancels; masked scores may be large
    scores = torch.where(weights > 0, weights.log() + 7, 99)
    q, k = scores * math.sqrt(3), torch.eye(3, dtype=torch.float64)
    _, found = scaled_dot_product_attention(q, k, k, causal_mask(3))
    torch.testing.assert_close(found, weights, rtol=0, atol=1e-4)
    assert found.triu(1).abs().max() == 0


def test_the_embedding_example_takes_rows_zero_two_and_four():
    printed = torch.tensor(
        [
            [0.3367, 0.1288, 0.2345],
            [0.2303, -1.1229, -0.1863],
            [2.2082, -0.6380, 0.4617],
            [0.2674, 0.5349, 0.8094],
            [1.1103, -1.6898, -0.9890],
        ]
    )
    table = Transformer(5, 3, 0, 1, 1).embed
    table.weight.data = printed
    assert table(torch.tensor([0, 2, 4])).equal(printed[[0, 2, 4]])
    positions = LearnedPositions(5, 3)
    positions.weight.data = printed
    assert positions(2).equal(printed[:2])


def test_the_cross_entropy_example():
    loss = cross_entropy(torch.tensor([[2.0, 0.5], [0.5, 2.0]]), torch.tensor([0, 1]))
    assert loss.item() == pytest.approx(0.2014133334159851, abs=1e-7)


def test_a_shift_of_sinusoidal_positions_is_linear():
    table = sinusoidal(60, 8)
    for i in range(4):
        w = 10000 ** (-2 * i / 8)
        for pos, k in ((0, 1), (3, 4), (20, 39)):
            sin, cos = table[pos, 2 * i].item(), table[pos, 2 * i + 1].item()
            shifted = sin * math.cos(k * w) + cos * math.sin(k * w)
            assert table[pos + k, 2 * i].item() == pytest.approx(shifted, abs=1e-14)


def test_the_learning_rate_is_highest_at_the_last_warm_up_step():
    rates = [schedule.paper(step, d_model=512, warmup_steps=4000) for step in range(1, 9000)]
    assert max(rates) == rates[3999] == pytest.approx(512**-0.5 * 4000**-0.5)
    assert rates[999] == pytest.approx(rates[3999] / 4)  # linear warm-up
    assert rates[7999] == pytest.approx(rates[3999] / math.sqrt(2))


def test_smoothed_labels_are_the_printed_formula():
    row = smooth_labels(torch.tensor([2]), n_classes=5, smoothing=0.1)[0].tolist()
    assert row == pytest.approx([0.1 / 5, 0.1 / 5, 1 - 0.1 + 0.1 / 5, 0.1 / 5, 0.1 / 5])


def test_n_grams_of_thank_you_so_much():
    words = ["Thank", "you", "so", "much"]
    assert [[" ".join(gram) for gram in n_grams(words, n)] for n in (1, 2, 3, 4)] == [
        ["Thank", "you", "so", "much"],
        ["Thank you", "you so", "so much"],
        ["Thank you so", "you so much"],
        ["Thank you so much"],
    ]
    assert not n_grams(["so", "much", "Thank", "you"], 4) & n_grams(words, 4)


def test_clipped_precisions_and_the_brevity_penalty():
    reference = [["Thank", "you", "so", "much", "my", "brother"]]
    assert clipped_matches(["Thank", "you", "so", "much", "Chris"], reference, 1) == 4  # of 5
    assert clipped_matches(["Thank", "Thank", "Thank"], reference, 1) == 1  # of 3, not 3 of 3
    assert clipped_matches(["Thank", "you"], reference, 1) == 2  # of 2, hence the penalty
    assert (
        brevity_penalty(2, 6) == pytest.approx(math.exp(-2))
        and brevity_penalty(6, 6) == brevity_penalty(7, 6) == 1
    )


def test_the_decoder_only_example_has_the_printed_shapes():
    model = DecoderOnly(
        vocab_size=1000, d_model=512, n_layers=1, n_heads=8, n_kv_heads=8, d_ff=2048
    )
    ids = torch.tensor([[123, 456, 789, 234]])  # 今天天气真好
    attention: MultiHeadAttention = model.decoder.layers[0].attn.branch
    x = model.embed(ids)
    q, k, v = (
        split_heads(proj(x), 8) for proj in (attention.q_proj, attention.k_proj, attention.v_proj)
    )
    mixed, weights = scaled_dot_product_attention(q, k, v, causal_mask(4))
    assert (x.shape, q.shape, weights.shape, mixed.shape) == (
        (1, 4, 512),
        (1, 8, 4, 64),
        (1, 8, 4, 4),
        (1, 8, 4, 64),
    )
    assert model(ids).shape == (1, 4, 1000)


def test_a_layer_has_twelve_d_squared_weights_two_thirds_of_them_in_the_feed_forward():
    d = 64
    layer = Transformer(10, d, 1, 4, 4 * d).encoder.layers[0]
    matrices = {name: p.numel() for name, p in layer.named_parameters() if p.dim() == 2}
    assert sum(matrices.values()) == 12 * d * d
    assert sum(n for name, n in matrices.items() if name.startswith("ffn")) * 3 == 2 * sum(
        matrices.values()
    )
