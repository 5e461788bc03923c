"""The contrastive loss: each sentence finds its own among all; and any batch in the memory of one chunk."""

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from qkv.model.pooling import pool
from qkv.model.presets import encoder_only
from qkv.model.transformer import Transformer
from qkv.train import contrast
from qkv.train.contrast import contrastive_loss, cut_chunks, meanings


def some_vectors(n=9, width=5, seed=0):
    torch.manual_seed(seed)
    return F.normalize(torch.randn(n, width, dtype=torch.float64), dim=-1)


def by_hand(vectors, pairs, meaning, temperature):
    """- log(e^(s partner) / (e^(s partner) + sum of e^s over other meanings)), number by number, the mean of both ways."""
    total = 0.0
    for pair in pairs:
        for one, other in (pair, pair[::-1]):
            powers = [float(torch.exp(vectors[one] @ vector / temperature)) for vector in vectors]
            wrong = sum(
                power for power, its in zip(powers, meaning, strict=True) if its != meaning[one]
            )
            total -= np.log(powers[other] / (powers[other] + wrong)) / 2
    return total


@pytest.mark.parametrize(
    "meaning",
    [
        [
            0,
            1,
            2,
            3,
            0,
            1,
            2,
            3,
            4,
        ],  # four pairs, and a sentence that belongs to none: a hard negative
        [0, 1, 2, 0, 0, 1, 2, 0, 4],  # two pairs of one meaning
        [0, 0, 0, 0, 0, 0, 0, 0, 0],  # nobody is wrong
    ],
)
def test_the_loss_is_that_of_the_partner_among_all_wrong_answers(meaning):
    vectors, pairs = some_vectors(), [[0, 4], [1, 5], [2, 6], [3, 7]]
    found = contrastive_loss(vectors, torch.tensor(pairs), torch.tensor(meaning), 0.1)
    assert float(found) == pytest.approx(
        by_hand(vectors, pairs, meaning, 0.1), rel=1e-10, abs=1e-12
    )


def test_of_two_pairs_alone_it_is_torch_s_cross_entropy_with_both_sides_as_answers():
    vectors, own = some_vectors(4), torch.tensor([0])
    scores = vectors @ vectors.T / 0.05
    rows = [
        scores[one, [other, *wrong]]
        for one, other, wrong in ((0, 1, (2, 3)), (1, 0, (2, 3)), (2, 3, (0, 1)), (3, 2, (0, 1)))
    ]
    expected = sum(F.cross_entropy(row[None], own) for row in rows) / 2
    torch.testing.assert_close(
        contrastive_loss(vectors, torch.tensor([[0, 1], [2, 3]]), torch.tensor([0, 0, 1, 1]), 0.05),
        expected,
    )


def test_the_order_within_a_pair_does_not_matter():
    vectors, pairs, meaning = (
        some_vectors(),
        torch.tensor([[0, 4], [1, 5], [2, 6], [3, 7]]),
        torch.tensor([0, 1, 2, 3, 0, 1, 2, 3, 4]),
    )
    torch.testing.assert_close(
        contrastive_loss(vectors, pairs.flip(1), meaning, 0.1),
        contrastive_loss(vectors, pairs, meaning, 0.1),
    )


def test_where_nobody_is_wrong_there_is_no_gradient_and_no_nan():
    vectors = some_vectors(4).requires_grad_()
    contrastive_loss(
        vectors, torch.tensor([[0, 1], [2, 3]]), torch.zeros(4, dtype=torch.long), 0.05
    ).backward()
    assert vectors.grad is not None and not vectors.grad.any()


def test_many_sentences_compared_in_blocks_give_the_same_loss_and_gradient(monkeypatch):
    pairs, meaning, results = torch.arange(20).view(10, 2), torch.arange(20) // 2, []
    for rows in (1_024, 7):
        monkeypatch.setattr(contrast, "ROWS", rows)
        vectors = some_vectors(20).requires_grad_()
        loss = contrastive_loss(vectors, pairs, meaning, 0.05)
        loss.backward()
        results.append((loss.detach(), vectors.grad))
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


def test_groups_that_share_a_text_mean_the_same_also_through_a_third():
    rows = lambda *texts: [np.frombuffer(text.encode(), np.uint8) for text in texts]  # noqa: E731
    found = meanings(
        rows("a", "x", "b", "q", "c", "y", "a", "b", "z", "y"), [0, 0, 1, 1, 2, 2, 3, 3, 4, 5]
    ).tolist()
    # Group 3 has "a" of group 0 and "b" of group 1; the hard negative 5 is a text of group 2; "z" is alone.
    assert found == [0, 0, 0, 0, 2, 2, 0, 0, 4, 2]


# ---- large batches -------------------------------------------------------------------------------------------------


def model_and_rows(dropout, sentences=24, seed=3):
    torch.manual_seed(seed)
    model = Transformer(
        replace(encoder_only(50, 16, 2, 2, 32), dropout=dropout, head=None)
    ).double()
    draws = np.random.default_rng(seed)
    return model, [draws.integers(1, 50, draws.integers(2, 12)) for _ in range(sentences)]


def gradients(model, rows, size, recompute, seed=5):
    encode = lambda ids, real: F.normalize(
        pool(model.encode(ids, real).states, real, "mean"), dim=-1
    )  # noqa: E731
    torch.manual_seed(seed)
    vectors = cut_chunks(rows, size, 0).vectors(encode, torch.device("cpu"), recompute)
    loss = contrastive_loss(
        vectors, torch.arange(len(rows)).view(-1, 2), torch.arange(len(rows)) // 2, 0.05
    )
    model.zero_grad(set_to_none=True)
    loss.backward()
    return loss.detach(), {
        name: weight.grad.clone()
        for name, weight in model.named_parameters()
        if weight.grad is not None
    }


@pytest.mark.parametrize("size", [1, 5, 24])
def test_chunked_gradients_equal_those_of_the_whole_batch(size):
    model, rows = model_and_rows(dropout=0.0)
    (whole, expected), (chunked, found) = (
        gradients(model, rows, 24, False),
        gradients(model, rows, size, True),
    )
    torch.testing.assert_close(chunked, whole, rtol=1e-12, atol=0)
    assert expected.keys() == found.keys() and len(found) > 20
    for name, grad in expected.items():
        torch.testing.assert_close(
            found[name], grad, rtol=0, atol=1e-6 * max(1.0, float(grad.abs().max()))
        )


def test_what_is_worked_out_again_has_the_same_dropout():
    model, rows = model_and_rows(dropout=0.3)
    held, again, other = (gradients(model, rows, 5, *how) for how in ((False,), (True,), (True, 6)))
    for name, grad in held[1].items():
        torch.testing.assert_close(again[1][name], grad, rtol=0, atol=1e-12)
    assert float((held[0] - other[0]).abs()) > 1e-3, "another seed should give other dropout"


def test_vectors_come_back_in_the_order_given_whatever_their_length():
    model, rows = model_and_rows(dropout=0.0)
    encode = lambda ids, real: pool(model.encode(ids, real).states, real, "mean")  # noqa: E731
    found = cut_chunks(rows, 5, 0).vectors(encode, torch.device("cpu"), False)
    for row, vector in zip(rows, found, strict=True):
        torch.testing.assert_close(
            vector, encode(torch.from_numpy(row)[None], None)[0], rtol=0, atol=1e-10
        )


def bytes_held(sentences, recompute):
    """All that the graph keeps for the backward pass besides the weights, each storage counted once."""
    model, rows = model_and_rows(dropout=0.1, sentences=sentences)
    weights, kept = {weight.untyped_storage().data_ptr() for weight in model.parameters()}, {}

    def keep(tensor):
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    encode = lambda ids, real: F.normalize(
        pool(model.encode(ids, real).states, real, "mean"), dim=-1
    )  # noqa: E731
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        vectors = cut_chunks(rows, 8, 0).vectors(encode, torch.device("cpu"), recompute)
        contrastive_loss(
            vectors, torch.arange(sentences).view(-1, 2), torch.arange(sentences) // 2, 0.05
        )
    return sum(size for place, size in kept.items() if place not in weights)


def test_a_batch_of_any_size_needs_the_memory_of_one_chunk():
    chunk, held, again = bytes_held(8, False), bytes_held(160, False), bytes_held(160, True)
    assert held > 10 * chunk, "held whole, twenty chunks need the memory of twenty"
    assert again < chunk
