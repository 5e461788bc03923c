"""The contrastive loss: each sentence finds its own among all; and any batch in the memory of one chunk."""

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from qkv.model.pooling import pool
from qkv.model.presets import reader
from qkv.model.transformer import Transformer
from qkv.train.contrast import alike_groups, contrastive_loss, cut_chunks


def some_vectors(n=7, width=5, seed=0):
    torch.manual_seed(seed)
    return F.normalize(torch.randn(n, width, dtype=torch.float64), dim=-1)


def nobody(n, m=None):
    return torch.zeros(n, n if m is None else m, dtype=torch.bool)


def by_hand(queries, answers, temperature, allowed):
    """- sum_i log(e^(q_i a_i / t) / sum_j e^(q_i a_j / t)), number by number."""
    total = 0.0
    for i, query in enumerate(queries):
        powers = [float(torch.exp(query @ answer / temperature)) for answer in answers]
        total -= np.log(powers[i] / sum(power for j, power in enumerate(powers) if allowed(i, j)))
    return total


def test_the_loss_is_the_mean_of_both_directions_summed_over_pairs():
    a, b = some_vectors(), some_vectors(seed=1)
    expected = (by_hand(a, b, 0.1, lambda i, j: True) + by_hand(b, a, 0.1, lambda i, j: True)) / 2
    assert float(contrastive_loss(a, b, 0.1, nobody(7))) == pytest.approx(expected, rel=1e-12)


def test_the_loss_is_symmetric_in_its_sides():
    a, b = some_vectors(), some_vectors(seed=1)
    torch.testing.assert_close(contrastive_loss(a, b, 0.1, nobody(7)), contrastive_loss(b, a, 0.1, nobody(7)))


def test_what_means_the_same_is_no_wrong_answer():
    a, b, alike = some_vectors(), some_vectors(seed=1), nobody(7)
    alike[2, 5] = alike[5, 2] = True
    allowed = lambda i, j: {i, j} != {2, 5}  # noqa: E731
    expected = (by_hand(a, b, 0.1, allowed) + by_hand(b, a, 0.1, allowed)) / 2
    assert float(contrastive_loss(a, b, 0.1, alike | torch.eye(7, dtype=torch.bool))) == pytest.approx(expected, rel=1e-12)


def test_hard_negatives_are_more_wrong_answers_to_every_first_sentence():
    a, b, odd, not_odd = some_vectors(), some_vectors(seed=1), some_vectors(3, seed=2), nobody(7, 3)
    not_odd[4, 1] = True
    there = by_hand(a, torch.cat([b, odd]), 0.1, lambda i, j: (i, j) != (4, 7 + 1))
    back = by_hand(b, a, 0.1, lambda i, j: True)
    assert float(contrastive_loss(a, b, 0.1, nobody(7), (odd, not_odd))) == pytest.approx((there + back) / 2, rel=1e-12)


def test_groups_that_share_a_text_are_found_to_be_alike():
    rows = lambda *texts: [np.frombuffer(text.encode(), np.uint8) for text in texts]  # noqa: E731
    sentences = rows("a", "x", "b", "a", "c", "y", "a", "z", "w")
    seats = np.array([[0, 1, -1], [2, 3, -1], [4, 5, -1], [6, 7, 8]])
    alike, odd = alike_groups(sentences, seats, rows("y", "q"))
    # 0 and 3 have "a" as their first, 1 as its second; 2 shares nothing, but its second is also a hard negative.
    assert alike.tolist() == [[True, True, False, True], [True, True, False, True], [False, False, True, False],
                              [True, True, False, True]]
    assert odd.tolist() == [[False, False], [False, False], [True, False], [False, False]]


# ---- large batches -------------------------------------------------------------------------------------------------

def model_and_rows(dropout, sentences=24, seed=3):
    torch.manual_seed(seed)
    model = Transformer(replace(reader(50, 16, 2, 2, 32), dropout=dropout, head=None)).double()
    draws = np.random.default_rng(seed)
    return model, [draws.integers(1, 50, draws.integers(2, 12)) for _ in range(sentences)]


def gradients(model, rows, size, recompute, seed=5):
    encode = lambda ids, real: F.normalize(pool(model.encode(ids, real).states, real, "mean"), dim=-1)  # noqa: E731
    torch.manual_seed(seed)
    vectors = cut_chunks(rows, size, 0).vectors(encode, torch.device("cpu"), recompute)
    first, second = vectors.chunk(2)
    loss = contrastive_loss(first, second, 0.05, nobody(len(first)))
    model.zero_grad(set_to_none=True)
    loss.backward()
    return loss.detach(), {name: weight.grad.clone() for name, weight in model.named_parameters() if weight.grad is not None}


@pytest.mark.parametrize("size", [1, 5, 24])
def test_chunked_gradients_equal_those_of_the_whole_batch(size):
    model, rows = model_and_rows(dropout=0.0)
    (whole, expected), (chunked, found) = gradients(model, rows, 24, False), gradients(model, rows, size, True)
    torch.testing.assert_close(chunked, whole, rtol=1e-12, atol=0)
    assert expected.keys() == found.keys() and len(found) > 20
    for name, grad in expected.items():
        torch.testing.assert_close(found[name], grad, rtol=0, atol=1e-6 * max(1.0, float(grad.abs().max())))


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
        torch.testing.assert_close(vector, encode(torch.from_numpy(row)[None], None)[0], rtol=0, atol=1e-10)


def bytes_held(sentences, recompute):
    """All that the graph keeps for the backward pass besides the weights, each storage counted once."""
    model, rows = model_and_rows(dropout=0.1, sentences=sentences)
    weights, kept = {weight.untyped_storage().data_ptr() for weight in model.parameters()}, {}

    def keep(tensor):
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    encode = lambda ids, real: F.normalize(pool(model.encode(ids, real).states, real, "mean"), dim=-1)  # noqa: E731
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        first, second = cut_chunks(rows, 8, 0).vectors(encode, torch.device("cpu"), recompute).chunk(2)
        contrastive_loss(first, second, 0.05, nobody(len(first)))
    return sum(size for place, size in kept.items() if place not in weights)


def test_a_batch_of_any_size_needs_the_memory_of_one_chunk():
    chunk, held, again = bytes_held(8, False), bytes_held(160, False), bytes_held(160, True)
    assert held > 10 * chunk, "held whole, twenty chunks need the memory of twenty"
    assert again < chunk
