"""Cache and memory can drop, reorder and repeat rows, as beam search needs."""

import pytest
import torch
from small_models import CAUSAL, assert_close, build, hidden_states, padded, random_ids

from qkv.model.cache import GrowingCache
from qkv.model.transformer import Memory

ROWS = [[2, 0], [1, 1, 0, 2, 2], [0], [2, 1, 0]]
MODELS = {
    name: CAUSAL[name]
    for name in (
        "tiny",
        "marian",
        "gpt2",
        "mistral",
        "mixtral",
        "deepseek",
        "decoder-lstm",
        "decoder-convolution-3",
        "both-token-mlp",
    )
}


@pytest.mark.parametrize("spec", MODELS.values(), ids=MODELS.keys())
@pytest.mark.parametrize("rows", ROWS, ids=str)
@torch.no_grad()
def test_steps_after_reordering_equal_a_full_pass(spec, rows):
    model, order = build(spec), torch.tensor(rows)
    prompts, attention_mask = padded([random_ids(spec, 1, n)[0] for n in (5, 3, 4)], "left", 5)
    source = padded([random_ids(spec, 1, n, source=True)[0] for n in (4, 6, 2)], "right", 6)
    memory = model.encode(*source) if model.encoder else None
    cache = model.new_cache()
    model.decode(prompts[:, :3], memory, cache, attention_mask[:, :3])
    model.decode(prompts[:, 3:], memory, cache, attention_mask[:, 3:])
    cache.reorder(order)
    memory = memory and memory.reorder(order)
    new = random_ids(spec, len(rows), 2)
    steps = torch.cat([model.decode(new[:, t : t + 1], memory, cache) for t in range(2)], dim=1)
    whole, mask = (
        torch.cat([prompts[order], new], 1),
        torch.cat([attention_mask[order], torch.ones_like(new).bool()], 1),
    )
    assert_close(steps, hidden_states(model, whole, memory, mask)[:, -2:])


def test_rows_can_be_reordered_with_gradients_enabled():
    model, ids = build(CAUSAL["llama"]), random_ids(CAUSAL["llama"], 2, 4)
    cache = model.new_cache()
    model.decode(ids[:, :3], cache=cache)
    cache.reorder(torch.tensor([1, 1]))
    step = model.decode(ids[[1, 1], 3:], cache=cache)
    assert_close(step, model.decode(ids[[1, 1]])[:, 3:])


@torch.no_grad()
def test_cross_attention_keys_and_values_are_computed_once():
    model = build(CAUSAL["tiny"])
    memory, cache, calls = model.encode(random_ids(model.spec, 2, 5)), model.new_cache(), []
    for layer in model.decoder.layers:
        layer.cross.branch.k_proj.register_forward_hook(lambda *_: calls.append(1))
    for _ in range(4):
        model.decode(random_ids(model.spec, 2, 1), memory, cache)
    assert len(calls) == len(model.decoder.layers)


@torch.no_grad()
def test_the_cache_grows_beyond_its_first_buffer():
    model, ids = build(CAUSAL["llama"]), random_ids(CAUSAL["llama"], 2, 150)
    cache = model.new_cache()
    steps = [model.decode(piece, cache=cache) for piece in ids.split(7, dim=1)]
    assert_close(torch.cat(steps, dim=1), model.decode(ids))


def test_a_step_copies_only_new_tokens():
    cache, moved = GrowingCache(), 0
    for _ in range(1_000):
        before = cache.buffers
        cache.extend(torch.zeros(1, 1, 1, 2))
        moved += cache.length if cache.buffers is not before else 0
    assert cache.length == 1_000 and moved < 2_500


@pytest.mark.parametrize("padding", [False, True])
def test_a_reordered_memory_has_its_rows_and_their_padding(padding):
    states, attention_mask = torch.randn(3, 4, 2), torch.rand(3, 4) > 0.5 if padding else None
    memory = Memory(states, attention_mask).reorder(torch.tensor([2, 2, 0]))
    assert torch.equal(memory.states, states[[2, 2, 0]])
    if attention_mask is None:
        assert memory.attention_mask is None
    else:
        assert torch.equal(memory.attention_mask, attention_mask[[2, 2, 0]])


@torch.no_grad()
def test_the_bytes_of_a_cache_are_those_of_its_keys_and_values():
    model, cache = build(CAUSAL["llama3-8b"]), build(CAUSAL["llama3-8b"]).new_cache()
    model.decode(random_ids(model.spec, 3, 5), cache=cache)
    # layers, k and v, rows, kv_heads, tokens, d_head, float64
    assert cache.bytes == 2 * 2 * 3 * 1 * 5 * 4 * 8
