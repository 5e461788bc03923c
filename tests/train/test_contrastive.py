"""Contrastive loss (InfoNCE) with in-batch negatives, and gradient checkpointing."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from qkv.model.pooling import pool
from qkv.model.presets import encoder_only
from qkv.model.transformer import Transformer
from qkv.train import contrastive
from qkv.train.contrastive import contrastive_loss, group_labels, mini_batches


def some_vectors(n=9, width=5, seed=0):
    torch.manual_seed(seed)
    return F.normalize(torch.randn(n, width, dtype=torch.float64), dim=-1)


def by_hand(vectors, pairs, labels, temperature):
    """-log(e^s+ / (e^s+ + sum of e^s-)), term by term, the mean of both directions."""
    total = 0.0
    for pair in pairs:
        for anchor, positive in (pair, pair[::-1]):
            powers = [
                float(torch.exp(vectors[anchor] @ vector / temperature)) for vector in vectors
            ]
            others = zip(powers, labels, strict=True)
            negatives = sum(power for power, label in others if label != labels[anchor])
            total -= np.log(powers[positive] / (powers[positive] + negatives)) / 2
    return total


@pytest.mark.parametrize(
    "labels",
    [
        [0, 1, 2, 3, 0, 1, 2, 3, 4],  # four pairs and a hard negative
        [0, 1, 2, 0, 0, 1, 2, 0, 4],  # two pairs with the same label
        [0, 0, 0, 0, 0, 0, 0, 0, 0],  # no negatives
    ],
)
def test_the_loss_is_the_cross_entropy_of_the_positive_among_all_negatives(labels):
    vectors, pairs = some_vectors(), [[0, 4], [1, 5], [2, 6], [3, 7]]
    found = contrastive_loss(vectors, torch.tensor(pairs), torch.tensor(labels), 0.1)
    assert float(found) == pytest.approx(by_hand(vectors, pairs, labels, 0.1), rel=1e-10, abs=1e-12)


def test_the_loss_of_two_pairs_equals_torch_cross_entropy():
    vectors, own = some_vectors(4), torch.tensor([0])
    scores = vectors @ vectors.T / 0.05
    rows = [
        scores[anchor, [positive, *negatives]]
        for anchor, positive, negatives in (
            (0, 1, (2, 3)),
            (1, 0, (2, 3)),
            (2, 3, (0, 1)),
            (3, 2, (0, 1)),
        )
    ]
    expected = sum(F.cross_entropy(row[None], own) for row in rows) / 2
    torch.testing.assert_close(
        contrastive_loss(vectors, torch.tensor([[0, 1], [2, 3]]), torch.tensor([0, 0, 1, 1]), 0.05),
        expected,
    )


def test_the_order_within_a_pair_does_not_matter():
    vectors, pairs, labels = (
        some_vectors(),
        torch.tensor([[0, 4], [1, 5], [2, 6], [3, 7]]),
        torch.tensor([0, 1, 2, 3, 0, 1, 2, 3, 4]),
    )
    torch.testing.assert_close(
        contrastive_loss(vectors, pairs.flip(1), labels, 0.1),
        contrastive_loss(vectors, pairs, labels, 0.1),
    )


def test_without_negatives_the_gradient_is_zero_and_not_nan():
    vectors = some_vectors(4).requires_grad_()
    contrastive_loss(
        vectors, torch.tensor([[0, 1], [2, 3]]), torch.zeros(4, dtype=torch.long), 0.05
    ).backward()
    assert vectors.grad is not None and not vectors.grad.any()


def test_computing_the_similarities_in_blocks_gives_the_same_loss_and_gradient(monkeypatch):
    pairs, labels, results = torch.arange(20).view(10, 2), torch.arange(20) // 2, []
    for rows in (1_024, 7):
        monkeypatch.setattr(contrastive, "BLOCK_ROWS", rows)
        vectors = some_vectors(20).requires_grad_()
        loss = contrastive_loss(vectors, pairs, labels, 0.05)
        loss.backward()
        results.append((loss.detach(), vectors.grad))
    for first, second in zip(*results, strict=True):
        torch.testing.assert_close(first, second, rtol=1e-12, atol=1e-12)


def test_groups_that_share_a_text_have_the_same_label_transitively():
    def rows(*texts):
        return [np.frombuffer(text.encode(), np.uint8) for text in texts]

    found = group_labels(
        rows("a", "x", "b", "q", "c", "y", "a", "b", "z", "y"), [0, 0, 1, 1, 2, 2, 3, 3, 4, 5]
    ).tolist()
    # Group 3 has "a" of group 0 and "b" of group 1; the hard negative 5 is a text of group 2.
    assert found == [0, 0, 0, 0, 2, 2, 0, 0, 4, 2]


# ── large batches ─────────────────────────────────────────────────────────────────────────────────


def model_and_rows(dropout, sentences=24, seed=3):
    torch.manual_seed(seed)
    model = Transformer(
        replace(encoder_only(50, 16, 2, 2, 32), dropout=dropout, head=None)
    ).double()
    draws = np.random.default_rng(seed)
    return model, [draws.integers(1, 50, draws.integers(2, 12)) for _ in range(sentences)]


def unit_vectors(model, ids, attention_mask):
    states = model.encode(ids, attention_mask).states
    return F.normalize(pool(states, attention_mask, "mean"), dim=-1)


def gradients(model, rows, size, gradient_checkpointing, seed=5):
    encode = partial(unit_vectors, model)
    torch.manual_seed(seed)
    vectors = mini_batches(rows, size, 0).vectors(
        encode, torch.device("cpu"), gradient_checkpointing
    )
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
def test_gradients_of_mini_batches_equal_those_of_the_whole_batch(size):
    model, rows = model_and_rows(dropout=0.0)
    (whole, expected), (split_loss, found) = (
        gradients(model, rows, 24, False),
        gradients(model, rows, size, True),
    )
    torch.testing.assert_close(split_loss, whole, rtol=1e-12, atol=0)
    assert expected.keys() == found.keys() and len(found) > 20
    for name, grad in expected.items():
        torch.testing.assert_close(
            found[name], grad, rtol=0, atol=1e-6 * max(1.0, float(grad.abs().max()))
        )


def test_recomputed_activations_have_the_same_dropout():
    model, rows = model_and_rows(dropout=0.3)
    stored, recomputed, other = (
        gradients(model, rows, 5, *how) for how in ((False,), (True,), (True, 6))
    )
    for name, grad in stored[1].items():
        torch.testing.assert_close(recomputed[1][name], grad, rtol=0, atol=1e-12)
    assert float((stored[0] - other[0]).abs()) > 1e-3, "another seed should give other dropout"


def test_vectors_are_in_the_order_of_the_inputs():
    model, rows = model_and_rows(dropout=0.0)
    encode = partial(unit_vectors, model)
    found = mini_batches(rows, 5, 0).vectors(encode, torch.device("cpu"), False)
    for row, vector in zip(rows, found, strict=True):
        torch.testing.assert_close(
            vector, encode(torch.from_numpy(row)[None], None)[0], rtol=0, atol=1e-10
        )


def bytes_held(sentences, gradient_checkpointing):
    """Bytes stored for the backward pass besides the weights, each storage counted once."""
    model, rows = model_and_rows(dropout=0.1, sentences=sentences)
    weights, kept = {weight.untyped_storage().data_ptr() for weight in model.parameters()}, {}

    def keep(tensor):
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    encode = partial(unit_vectors, model)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        vectors = mini_batches(rows, 8, 0).vectors(
            encode, torch.device("cpu"), gradient_checkpointing
        )
        contrastive_loss(
            vectors, torch.arange(sentences).view(-1, 2), torch.arange(sentences) // 2, 0.05
        )
    return sum(size for pointer, size in kept.items() if pointer not in weights)


def test_gradient_checkpointing_needs_the_memory_of_one_mini_batch():
    mini_batch, stored, recomputed = (
        bytes_held(8, False),
        bytes_held(160, False),
        bytes_held(160, True),
    )
    assert stored > 10 * mini_batch, "twenty mini-batches"
    assert recomputed < mini_batch
