"""Truths that hold for every model, in float64 to 1e-10: every preset scaled down, and every choice no preset makes."""

import pytest
import torch
from small_models import (
    ATTENTIVE,
    DECODERS,
    PAST,
    SPECS,
    assert_close,
    build,
    padded,
    random_ids,
    remembered,
    stream,
)

from qkv.model.attention import ExplainedCore, FusedCore
from qkv.model.transformer import Transformer

LENGTH = 9


def every(specs):
    return pytest.mark.parametrize("spec", specs.values(), ids=specs.keys())


@every(PAST)
@torch.no_grad()
def test_a_token_is_blind_to_its_future(spec):
    model, ids = build(spec), random_ids(spec, 2, LENGTH)
    memory, place = remembered(model, 2), 5
    other = ids.clone()
    other[:, place:] = (ids[:, place:] + 1) % spec.vocab_size
    before, after = stream(model, ids, memory), stream(model, other, memory)
    assert_close(before[:, :place], after[:, :place])
    assert not torch.allclose(before[:, place], after[:, place])


@every({name: spec for name, spec in SPECS.items() if name not in PAST})
@torch.no_grad()
def test_where_all_may_be_seen_the_next_token_is_seen(spec):
    model, ids = build(spec), random_ids(spec, 1, LENGTH)
    memory, other = remembered(model, 1), ids.clone()
    other[:, 5] = (ids[:, 5] + 1) % spec.vocab_size
    moved = (stream(model, ids, memory) - stream(model, other, memory)).abs().amax(-1)[0]
    assert moved[5] > 1e-6
    assert moved[4] > 1e-6 or "width=1" in repr(spec)


@every(PAST)
@pytest.mark.parametrize("cuts", [[LENGTH], [4, 3, 2], [1] * LENGTH, [5] + [1] * 4], ids=str)
@torch.no_grad()
def test_cached_steps_equal_one_full_pass(spec, cuts):
    model, ids = build(spec), random_ids(spec, 2, LENGTH)
    memory, cache = remembered(model, 2), model.new_cache()
    steps = [model.decode(piece, memory, cache) for piece in ids.split(cuts, dim=1)]
    assert_close(torch.cat(steps, dim=1), model.decode(ids, memory))
    assert cache.length == LENGTH


@every(PAST)
@pytest.mark.parametrize("side", ["left", "right"])
@torch.no_grad()
def test_cached_steps_after_padded_prompts_equal_each_sentence_alone(spec, side):
    model, rows = build(spec), [random_ids(spec, 1, n)[0] for n in (9, 6, 4)]
    memory, cache = remembered(model, 3), model.new_cache()
    prompts, real = padded([row[:-3] for row in rows], side, to=6)
    last = torch.stack([row[-3:] for row in rows])
    model.decode(prompts, memory, cache, real)
    steps = torch.cat([model.decode(last[:, t : t + 1], memory, cache) for t in range(3)], dim=1)
    for index, row in enumerate(rows):
        alone = memory and memory.keep(torch.tensor([index]))
        assert_close(steps[index], model.decode(row[None], alone)[0, -3:])


@every(SPECS)
@pytest.mark.parametrize("side", ["left", "right"])
@torch.no_grad()
def test_alone_equals_in_a_batch_and_padding_is_inert(spec, side):
    model, rows = build(spec), [random_ids(spec, 1, n)[0] for n in (LENGTH, 6, 1)]
    memory = remembered(model, 3)
    (ids, real), (other, _) = padded(rows, side, LENGTH + 2), padded(rows, side, LENGTH + 2, fill=7)
    together = stream(model, ids, memory, real)
    assert together.isfinite().all()
    assert_close(stream(model, other, memory, real)[real], together[real])
    for index, row in enumerate(rows):
        alone = stream(model, row[None], memory and memory.keep(torch.tensor([index])))
        assert_close(together[index][real[index]], alone[0])


@every({name: spec for name, spec in DECODERS.items() if spec.encoder})
@pytest.mark.parametrize("side", ["left", "right"])
@torch.no_grad()
def test_padding_of_the_source_is_inert(spec, side):
    model, rows = build(spec), [random_ids(spec, 1, n, source=True)[0] for n in (7, 4, 1)]
    target, (source, real) = random_ids(spec, 3, LENGTH), padded(rows, side, to=8)
    together = model.decode(target, model.encode(source, real))
    for index, row in enumerate(rows):
        assert_close(
            together[index], model.decode(target[index : index + 1], model.encode(row[None]))[0]
        )


def gradients(model: Transformer, out: torch.Tensor) -> list[torch.Tensor]:
    model.zero_grad()
    out.sin().sum().backward()
    return [weight.grad.clone() for weight in model.parameters() if weight.grad is not None]


@every(ATTENTIVE)
def test_fused_attention_equals_explained_attention(spec):
    model = build(spec)
    ids, real = padded([random_ids(spec, 1, n)[0] for n in (LENGTH, 5)], "left", LENGTH)
    source = random_ids(spec, 2, 5, source=True)

    def run():
        memory = model.encode(source) if model.encoder and model.decoder else None
        return stream(model, ids, memory, real)

    fused = run()
    wanted = gradients(model, fused)
    attentions = [
        module for module in model.modules() if isinstance(getattr(module, "core", None), FusedCore)
    ]
    assert attentions
    for module in attentions:
        module.core = ExplainedCore()
    explained = run()
    assert_close(explained, fused)
    for ours, theirs in zip(gradients(model, explained), wanted, strict=True):
        assert_close(ours, theirs, atol=1e-9)


@every(SPECS)
def test_a_sentence_of_nothing_but_padding_harms_nobody(spec):
    model, ids = build(spec), random_ids(spec, 2, 4)
    real = torch.tensor([[True] * 4, [False] * 4])
    source, source_real = random_ids(spec, 2, 4, source=True), real
    memory = model.encode(source, source_real) if model.encoder and model.decoder else None
    out = stream(model, ids, memory, real)
    assert out.isfinite().all()
    for gradient in gradients(model, out):
        assert gradient.isfinite().all()
