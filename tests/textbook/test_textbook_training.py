"""The textbook's losses, schedules and poolings against torch and their definitions."""

import math

import pytest
import torch
import torch.nn.functional as F

from qkv.textbook import schedule
from qkv.textbook.loss import contrastive, cross_entropy, log_softmax, perplexity
from qkv.textbook.pooling import cls_pooling, max_pooling, mean_pooling


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(4)


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.5])
@pytest.mark.parametrize("pad_id", [None, 0])
def test_cross_entropy_and_its_gradient_equal_torch(smoothing, pad_id):
    logits = (torch.randn(3, 6, 11, dtype=torch.float64) * 30).requires_grad_()
    targets = torch.randint(0, 4, (3, 6))
    ours = cross_entropy(logits, targets, pad_id, smoothing)
    theirs = F.cross_entropy(
        logits.flatten(0, 1),
        targets.flatten(),
        label_smoothing=smoothing,
        ignore_index=-100 if pad_id is None else pad_id,
    )
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)
    ours, theirs = (torch.autograd.grad(loss, logits)[0] for loss in (ours, theirs))
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)


def test_log_softmax_equals_torch_where_exponentials_overflow():
    logits = torch.randn(5, 9, dtype=torch.float64) * 1e4
    torch.testing.assert_close(
        log_softmax(logits), torch.log_softmax(logits, dim=-1), rtol=0, atol=1e-12
    )


def test_padding_has_no_effect_and_a_batch_of_padding_has_loss_zero():
    logits, targets = torch.randn(2, 3, 5), torch.tensor([[1, 2, 0], [3, 0, 0]])
    loss = cross_entropy(logits, targets, pad_id=0)
    logits[targets == 0] = 1e3
    assert cross_entropy(logits, targets, pad_id=0).equal(loss)
    assert cross_entropy(logits, torch.zeros_like(targets), pad_id=0).item() == 0


def test_perplexity_of_a_uniform_prediction_is_the_vocabulary_size():
    loss = cross_entropy(torch.zeros(4, 37, dtype=torch.float64), torch.arange(4))
    assert perplexity(loss.item()) == pytest.approx(37)


def test_contrastive_loss_is_symmetric_cross_entropy_of_cosines():
    a, b = torch.randn(6, 8, dtype=torch.float64), torch.randn(6, 8, dtype=torch.float64)
    cosines = F.cosine_similarity(a[:, None], b[None], dim=-1) / 0.1
    positives = torch.arange(6)
    expected = (F.cross_entropy(cosines, positives) + F.cross_entropy(cosines.T, positives)) / 2
    torch.testing.assert_close(contrastive(a, b, 0.1), expected, rtol=0, atol=1e-12)
    assert contrastive(a, a, 0.01) < 1e-3 < contrastive(a, a.roll(1, dims=0), 0.01)


def test_inverse_sqrt_is_the_papers_schedule_with_another_peak():
    for step in (1, 10, 399, 400, 401, 5000):
        same = schedule.inverse_sqrt(step, peak=(64 * 400) ** -0.5, warmup_steps=400)
        assert same == pytest.approx(schedule.paper(step, d_model=64, warmup_steps=400))


def test_cosine_after_the_warm_up_equals_torch():
    parameter = torch.zeros(1, requires_grad=True)
    optimizer = torch.optim.SGD([parameter], lr=0.3)
    theirs = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=90, eta_min=0.02)
    for step in range(10, 101):
        ours = schedule.cosine(step, peak=0.3, warmup_steps=10, total=100, floor=0.02)
        assert ours == pytest.approx(theirs.get_last_lr()[0], abs=1e-12)
        optimizer.step()
        theirs.step()


@pytest.mark.parametrize("warmup_steps", [0, 1, 20])
def test_schedules_rise_to_the_peak_and_decay_to_the_floor(warmup_steps):
    stable = [
        schedule.warmup_stable_decay(step, 2.0, warmup_steps, 30, 100, 0.5)
        for step in range(1, 101)
    ]
    cosine = [schedule.cosine(step, 2.0, warmup_steps, 100, 0.5) for step in range(1, 101)]
    for rates in (stable, cosine):
        warmup, decay = rates[:warmup_steps], rates[warmup_steps:]
        assert warmup == sorted(warmup) and decay == sorted(decay, reverse=True)
        assert max(rates) <= 2.0 and rates[-1] == pytest.approx(0.5)
    assert stable[max(warmup_steps - 1, 0) : 70] == [2.0] * (70 - max(warmup_steps - 1, 0))
    assert stable[84] == pytest.approx(1.25)  # half of the decay at step 85


def test_pooling_equals_that_of_each_sentence_alone():
    x, lengths = torch.randn(3, 5, 4), (5, 3, 1)
    right = torch.arange(5)[None] < torch.tensor(lengths)[:, None]
    for mask in (right, right.flip(1)):  # padded on the right, padded on the left
        for vectors, row_mask, cls, mean, top in zip(
            x, mask, cls_pooling(x, mask), mean_pooling(x, mask), max_pooling(x, mask), strict=True
        ):
            alone = vectors[row_mask]
            assert cls.equal(alone[0]) and top.equal(alone.max(dim=0).values)
            torch.testing.assert_close(mean, alone.mean(dim=0), rtol=0, atol=1e-6)


@pytest.mark.parametrize("pooling", [cls_pooling, mean_pooling, max_pooling])
def test_a_sentence_of_padding_only_is_an_error(pooling):
    with pytest.raises(ValueError, match="a row has no token, so there is nothing to pool"):
        pooling(torch.zeros(2, 3, 4), torch.tensor([[True] * 3, [False] * 3]))


def test_cosine_starts_at_its_peak():
    assert schedule.cosine(7, 1.0, 7, 20) == 1.0 and math.isclose(
        schedule.cosine(20, 1.0, 7, 20), 0, abs_tol=1e-12
    )
