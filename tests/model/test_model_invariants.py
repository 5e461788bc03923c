"""Invariants of every model, in float64: causality, KV cache, padding, batch invariance."""

import pytest
import torch
from small_models import (
    CAUSAL,
    DECODERS,
    SPECS,
    WITH_ATTENTION,
    assert_close,
    build,
    hidden_states,
    padded,
    random_ids,
    random_memory,
)

from qkv.model.attention import EagerCore, SdpaCore
from qkv.model.transformer import Transformer

LENGTH = 9


def every(specs):
    return pytest.mark.parametrize("spec", specs.values(), ids=specs.keys())


@every(CAUSAL)
@torch.no_grad()
def test_a_token_does_not_depend_on_later_tokens(spec):
    model, ids = build(spec), random_ids(spec, 2, LENGTH)
    memory, position = random_memory(model, 2), 5
    other = ids.clone()
    other[:, position:] = (ids[:, position:] + 1) % spec.vocab_size
    before, after = hidden_states(model, ids, memory), hidden_states(model, other, memory)
    assert_close(before[:, :position], after[:, :position])
    assert not torch.allclose(before[:, position], after[:, position])


@every({name: spec for name, spec in SPECS.items() if name not in CAUSAL})
@torch.no_grad()
def test_without_a_causal_mask_a_token_depends_on_a_later_one(spec):
    model, ids = build(spec), random_ids(spec, 1, LENGTH)
    memory, other = random_memory(model, 1), ids.clone()
    other[:, 5] = (ids[:, 5] + 1) % spec.vocab_size
    change = (
        (hidden_states(model, ids, memory) - hidden_states(model, other, memory)).abs().amax(-1)[0]
    )
    assert change[5] > 1e-6
    assert change[:5].amax() > 1e-6 or "width=1" in repr(spec)


@every(CAUSAL)
@pytest.mark.parametrize("cuts", [[LENGTH], [4, 3, 2], [1] * LENGTH, [5] + [1] * 4], ids=str)
@torch.no_grad()
def test_cached_steps_equal_one_full_pass(spec, cuts):
    model, ids = build(spec), random_ids(spec, 2, LENGTH)
    memory, cache = random_memory(model, 2), model.new_cache()
    steps = [model.decode(piece, memory, cache) for piece in ids.split(cuts, dim=1)]
    assert_close(torch.cat(steps, dim=1), model.decode(ids, memory))
    assert cache.length == LENGTH


@every(CAUSAL)
@pytest.mark.parametrize("side", ["left", "right"])
@torch.no_grad()
def test_cached_steps_after_padded_prompts_equal_each_row_alone(spec, side):
    model, rows = build(spec), [random_ids(spec, 1, n)[0] for n in (9, 6, 4)]
    memory, cache = random_memory(model, 3), model.new_cache()
    prompts, attention_mask = padded([row[:-3] for row in rows], side, to=6)
    last = torch.stack([row[-3:] for row in rows])
    model.decode(prompts, memory, cache, attention_mask)
    steps = torch.cat([model.decode(last[:, t : t + 1], memory, cache) for t in range(3)], dim=1)
    for index, row in enumerate(rows):
        alone = memory and memory.reorder(torch.tensor([index]))
        assert_close(steps[index], model.decode(row[None], alone)[0, -3:])


@every(SPECS)
@pytest.mark.parametrize("side", ["left", "right"])
@torch.no_grad()
def test_results_are_batch_invariant_and_padding_has_no_effect(spec, side):
    model, rows = build(spec), [random_ids(spec, 1, n)[0] for n in (LENGTH, 6, 1)]
    memory = random_memory(model, 3)
    (ids, attention_mask), (other, _) = (
        padded(rows, side, LENGTH + 2),
        padded(rows, side, LENGTH + 2, fill=7),
    )
    together = hidden_states(model, ids, memory, attention_mask)
    assert together.isfinite().all()
    assert_close(
        hidden_states(model, other, memory, attention_mask)[attention_mask],
        together[attention_mask],
    )
    for index, row in enumerate(rows):
        alone = hidden_states(model, row[None], memory and memory.reorder(torch.tensor([index])))
        assert_close(together[index][attention_mask[index]], alone[0])


@every({name: spec for name, spec in DECODERS.items() if spec.encoder})
@pytest.mark.parametrize("side", ["left", "right"])
@torch.no_grad()
def test_padding_of_the_source_has_no_effect(spec, side):
    model, rows = build(spec), [random_ids(spec, 1, n, source=True)[0] for n in (7, 4, 1)]
    target, (source, attention_mask) = random_ids(spec, 3, LENGTH), padded(rows, side, to=8)
    together = model.decode(target, model.encode(source, attention_mask))
    for index, row in enumerate(rows):
        assert_close(
            together[index], model.decode(target[index : index + 1], model.encode(row[None]))[0]
        )


def gradients(model: Transformer, out: torch.Tensor) -> list[torch.Tensor]:
    model.zero_grad()
    out.sin().sum().backward()
    return [weight.grad.clone() for weight in model.parameters() if weight.grad is not None]


@every(WITH_ATTENTION)
def test_sdpa_attention_equals_eager_attention(spec):
    model = build(spec)
    ids, attention_mask = padded([random_ids(spec, 1, n)[0] for n in (LENGTH, 5)], "left", LENGTH)
    source = random_ids(spec, 2, 5, source=True)

    def run():
        memory = model.encode(source) if model.encoder and model.decoder else None
        return hidden_states(model, ids, memory, attention_mask)[attention_mask]

    fused = run()
    wanted = gradients(model, fused)
    attentions = [
        module for module in model.modules() if isinstance(getattr(module, "core", None), SdpaCore)
    ]
    assert attentions
    for module in attentions:
        module.core = EagerCore()
    eager = run()
    assert_close(eager, fused)
    for ours, theirs in zip(gradients(model, eager), wanted, strict=True):
        assert_close(ours, theirs, atol=1e-9)


@every(SPECS)
def test_a_row_of_padding_only_gives_finite_results_and_gradients(spec):
    model, ids = build(spec), random_ids(spec, 2, 4)
    attention_mask = torch.tensor([[True] * 4, [False] * 4])
    source, source_mask = random_ids(spec, 2, 4, source=True), attention_mask
    memory = model.encode(source, source_mask) if model.encoder and model.decoder else None
    out = hidden_states(model, ids, memory, attention_mask)
    assert out.isfinite().all()
    for gradient in gradients(model, out):
        assert gradient.isfinite().all()
