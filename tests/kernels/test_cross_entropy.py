"""Chunked cross-entropy and R-Drop equal torch: loss and gradients, any chunk size and head."""

import pytest
import torch
import torch.nn.functional as F
from small_models import assert_close, build, decoder, encoder, random_ids

from qkv.errors import QkvError
from qkv.kernels import cross_entropy as losses
from qkv.model import spec as s
from qkv.textbook.loss import r_drop_loss

HEADS = {
    "tied": decoder(head=s.LmHead(tied=True)),
    "untied": decoder(head=s.LmHead(tied=False)),
    "biased": decoder(head=s.LmHead(tied=True, bias=True)),
    "untied-biased": decoder(head=s.LmHead(tied=False, bias=True)),
    "masked": encoder(head=s.MaskedHead("gelu")),
}


@pytest.fixture(autouse=True)
def always_chunked(monkeypatch):
    """Use chunks for small vocabularies too."""
    monkeypatch.setattr(losses, "MIN_CHUNKED_VOCAB", 0)


@pytest.mark.parametrize("r_drop", [0.0, 0.5])
@pytest.mark.parametrize(
    "dtype, chunked",
    [(torch.float32, True), (torch.float64, True), (torch.float16, False), (torch.bfloat16, False)],
)
def test_half_precision_is_not_chunked(monkeypatch, dtype, chunked, r_drop):
    for name, result in {"_ChunkedCrossEntropy.apply": True, "_from_logits": False}.items():
        monkeypatch.setattr(
            f"qkv.kernels.cross_entropy.{name}",
            lambda *args, result=result: (torch.tensor(result), None),
        )
    # Some CPUs cannot multiply in half precision.
    monkeypatch.setattr(F, "linear", lambda x, weight, bias: x)
    model, targets = build(HEADS["tied"]).to(dtype), random_ids(HEADS["tied"], 2, 3)
    assert bool(model.loss(torch.zeros(2, 3, 16, dtype=dtype), targets, r_drop=r_drop)) == chunked


@pytest.mark.parametrize("spec", HEADS.values(), ids=HEADS.keys())
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_small_vocabularies_have_the_same_loss(monkeypatch, spec, smoothing):
    model, targets = build(spec), random_ids(spec, 3, 7)
    x = torch.randn(3, 7, 16, dtype=torch.float64)
    chunked = model.loss(x, targets, None, smoothing)
    monkeypatch.setattr(losses, "MIN_CHUNKED_VOCAB", 512)
    assert_close(model.loss(x, targets, None, smoothing), chunked)


def assert_same_with_gradients(ours, theirs, parameters):
    assert_close(ours, theirs)
    found, expected = (
        torch.autograd.grad(2.5 * loss, parameters, allow_unused=True) for loss in (ours, theirs)
    )
    for our_grad, their_grad in zip(found, expected, strict=True):
        assert (our_grad is None) == (their_grad is None)
        if our_grad is not None:
            assert_close(our_grad, their_grad)


@pytest.mark.parametrize("spec", HEADS.values(), ids=HEADS.keys())
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize(
    "n_logits", [1, 23 * 4, 1 << 20], ids=["row by row", "chunks of 4", "at once"]
)
@pytest.mark.parametrize("padding", [False, True])
def test_loss_and_gradients_equal_torchs_cross_entropy(
    monkeypatch, spec, smoothing, n_logits, padding
):
    monkeypatch.setattr(losses, "CHUNK_LOGITS", n_logits)
    model, targets = build(spec), random_ids(spec, 3, 7)
    x = torch.randn(3, 7, 16, dtype=torch.float64, requires_grad=True)
    attention_mask = torch.rand(3, 7) > 0.3 if padding else None

    ours = model.loss(x, targets, attention_mask, smoothing)
    ignored = targets
    if attention_mask is not None:
        ignored = targets.masked_fill(~attention_mask, -100)
    logits = model.logits(x).flatten(0, 1)
    theirs = F.cross_entropy(
        logits, ignored.flatten(), reduction="sum", label_smoothing=smoothing, ignore_index=-100
    )
    assert_same_with_gradients(ours, theirs, [x, *model.parameters()])


@pytest.mark.parametrize("r_drop", [0.0, 0.7])
@pytest.mark.parametrize(
    "dtype, tolerance", [(torch.float64, 1e-10), (torch.float32, 1e-5)], ids=str
)
def test_chunks_of_a_large_vocabulary_equal_torch_in_float64(dtype, tolerance, r_drop):
    inputs = [torch.randn(40, 16), 0.3 * torch.randn(40_000, 16), 0.3 * torch.randn(40_000)]
    targets, results = torch.randint(40_000, (20,)).repeat(2), []
    for function, in_dtype in ((losses.cross_entropy, dtype), (plain_cross_entropy, torch.float64)):
        leaves = [tensor.to(in_dtype).requires_grad_() for tensor in inputs]
        loss = function(*leaves, targets, 0.1, r_drop)
        results.append([loss, *torch.autograd.grad(loss, leaves)])
    assert type(results[0][0].grad_fn).__name__ == "_ChunkedCrossEntropyBackward"
    for found, expected in zip(*results, strict=True):
        torch.testing.assert_close(found.double(), expected, rtol=tolerance, atol=tolerance)


def plain_cross_entropy(x, weight, bias, targets, smoothing, r_drop):
    log_probs = (x @ weight.T + bias).log_softmax(dim=-1)
    p, q = log_probs.chunk(2)
    divergence = ((p.exp() - q.exp()) * (p - q)).sum() / 2  # (KL(p || q) + KL(q || p)) / 2
    return (
        -(1 - smoothing) * log_probs[range(len(x)), targets].sum()
        - smoothing * log_probs.mean(dim=-1).sum()
        + r_drop * divergence
    )


@pytest.mark.parametrize("spec", HEADS.values(), ids=HEADS.keys())
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize(
    "n_logits", [1, 23 * 4, 1 << 20], ids=["row by row", "two rows", "at once"]
)
def test_r_drop_and_its_gradients_equal_the_textbook(monkeypatch, spec, smoothing, n_logits):
    monkeypatch.setattr(losses, "R_DROP_CHUNK_LOGITS", n_logits)
    model, targets = build(spec), random_ids(spec, 3, 7).repeat(2, 1)
    x = torch.randn(6, 7, 16, dtype=torch.float64, requires_grad=True)
    attention_mask = (torch.rand(3, 7) > 0.3).repeat(2, 1)

    ours = model.loss(x, targets, attention_mask, smoothing, r_drop=5.0)
    first, second = model.logits(x)[attention_mask].chunk(2)
    first_targets = targets[attention_mask].chunk(2)[0]
    theirs = r_drop_loss(first, second, first_targets, 5.0, smoothing) * 2 * len(first)
    assert_same_with_gradients(ours, theirs, [x, *model.parameters()])


def test_the_loss_of_padding_alone_is_zero_with_zero_gradients():
    model, x = build(HEADS["tied"]), torch.randn(2, 3, 16, dtype=torch.float64, requires_grad=True)
    loss = model.loss(x, random_ids(model.spec, 2, 3), torch.zeros(2, 3, dtype=torch.bool))
    loss.backward()
    assert loss == 0 and x.grad.eq(0).all() and model.embed.weight.grad.eq(0).all()


def test_large_logits_do_not_overflow():
    model = build(HEADS["untied"]).float()
    x = torch.full((1, 2, 16), 1e4, requires_grad=True)
    targets = random_ids(model.spec, 1, 2)
    loss = model.loss(x, targets)
    torch.testing.assert_close(
        loss, F.cross_entropy(model.logits(x)[0], targets[0], reduction="sum")
    )
    loss.backward()
    assert x.grad.isfinite().all()


def test_frozen_weights_and_evaluation_compute_no_gradients(monkeypatch):
    needs_grad = []
    part = losses._softmax_part
    monkeypatch.setattr(
        losses, "_softmax_part", lambda *args: needs_grad.append(args[3]) or part(*args)
    )
    model, targets = build(HEADS["biased"]), random_ids(HEADS["biased"], 1, 3)
    x = torch.randn(1, 3, 16, dtype=torch.float64)
    with torch.no_grad():
        evaluated = model.loss(x, targets)
    model.requires_grad_(False)
    assert_close(model.loss(x, targets), evaluated)
    assert needs_grad == [False, False]


def test_a_second_derivative_raises():
    model, x = build(HEADS["tied"]), torch.randn(1, 3, 16, dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(
        model.loss(x, random_ids(model.spec, 1, 3)) ** 2, x, create_graph=True
    )
    with pytest.raises(RuntimeError, match="once_differentiable"):
        slope.sum().backward()


@pytest.mark.parametrize("wrong", [-100, 23])
@torch.no_grad()
def test_a_target_outside_the_vocabulary_raises(wrong):
    model, x = build(HEADS["tied"]), torch.randn(1, 3, 16, dtype=torch.float64)
    with pytest.raises(QkvError) as caught:
        model.loss(x, torch.tensor([[1, wrong, 2]]))
    assert str(caught.value) == (
        f"targets: {wrong} is out of range; this vocabulary ends at 22;"
        " is the tokenizer the model's own?"
    )


@pytest.mark.parametrize("chunked", [0, 10_000], ids=["chunked", "whole"])
@pytest.mark.parametrize("r_drop", [0.0, 0.5])
@pytest.mark.parametrize("spec", HEADS.values(), ids=HEADS.keys())
def test_the_loss_without_smoothing_comes_with_the_smoothed_one(monkeypatch, spec, r_drop, chunked):
    monkeypatch.setattr(losses, "MIN_CHUNKED_VOCAB", chunked)
    model, targets = build(spec), random_ids(spec, 4, 7)
    x = torch.randn(4, 7, 16, dtype=torch.float64)
    smoothed, unsmoothed = model.losses(x, targets, None, 0.2, r_drop)
    logits = model.logits(x).flatten(0, 1)
    assert_close(unsmoothed, F.cross_entropy(logits, targets.flatten(), reduction="sum"))
    assert smoothed.requires_grad and not unsmoothed.requires_grad
    assert not torch.allclose(smoothed, unsmoothed)
