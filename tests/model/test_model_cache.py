"""The cache and the memory drop, reorder and repeat sentences: what beam search asks of them."""

import pytest
import torch
from small_models import PAST, assert_close, build, padded, random_ids, stream

from qkv.model.cache import GrowingCache
from qkv.model.transformer import Memory

KEEPS = [[2, 0], [1, 1, 0, 2, 2], [0], [2, 1, 0]]
CHOSEN = {
    name: PAST[name]
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


@pytest.mark.parametrize("spec", CHOSEN.values(), ids=CHOSEN.keys())
@pytest.mark.parametrize("rows", KEEPS, ids=str)
@torch.no_grad()
def test_kept_rows_go_on_as_if_they_had_always_stood_there(spec, rows):
    model, kept = build(spec), torch.tensor(rows)
    begun, real = padded([random_ids(spec, 1, n)[0] for n in (5, 3, 4)], "left", 5)
    source = padded([random_ids(spec, 1, n, source=True)[0] for n in (4, 6, 2)], "right", 6)
    memory = model.encode(*source) if model.encoder else None
    cache = model.new_cache()
    model.decode(begun[:, :3], memory, cache, real[:, :3])
    model.decode(begun[:, 3:], memory, cache, real[:, 3:])
    cache.keep(kept)
    memory = memory and memory.keep(kept)
    new = random_ids(spec, len(rows), 2)
    steps = torch.cat([model.decode(new[:, t : t + 1], memory, cache) for t in range(2)], dim=1)
    whole, all_real = (
        torch.cat([begun[kept], new], 1),
        torch.cat([real[kept], torch.ones_like(new).bool()], 1),
    )
    assert_close(steps, stream(model, whole, memory, all_real)[:, -2:])


def test_rows_can_be_kept_even_where_gradients_are_on():
    model, ids = build(PAST["llama"]), random_ids(PAST["llama"], 2, 4)
    cache = model.new_cache()
    model.decode(ids[:, :3], cache=cache)
    cache.keep(torch.tensor([1, 1]))
    step = model.decode(ids[[1, 1], 3:], cache=cache)
    assert_close(step, model.decode(ids[[1, 1]])[:, 3:])


@torch.no_grad()
def test_the_memorys_keys_and_values_are_worked_out_once():
    model = build(PAST["tiny"])
    memory, cache, calls = model.encode(random_ids(model.spec, 2, 5)), model.new_cache(), []
    for layer in model.decoder.layers:
        layer.cross.branch.k_proj.register_forward_hook(lambda *_: calls.append(1))
    for _ in range(4):
        model.decode(random_ids(model.spec, 2, 1), memory, cache)
    assert len(calls) == len(model.decoder.layers)


@torch.no_grad()
def test_the_cache_grows_far_beyond_its_first_buffer():
    model, ids = build(PAST["llama"]), random_ids(PAST["llama"], 2, 150)
    cache = model.new_cache()
    steps = [model.decode(piece, cache=cache) for piece in ids.split(7, dim=1)]
    assert_close(torch.cat(steps, dim=1), model.decode(ids))


def test_a_step_copies_only_what_is_new():
    cache, moved = GrowingCache(), 0
    for _ in range(1_000):
        before = cache.buffers
        cache.extend(torch.zeros(1, 1, 1, 2))
        moved += cache.length if cache.buffers is not before else 0
    assert cache.length == 1_000 and moved < 2_500


@pytest.mark.parametrize("padding", [False, True])
def test_a_memory_keeps_its_rows_and_their_padding(padding):
    states, real = torch.randn(3, 4, 2), torch.rand(3, 4) > 0.5 if padding else None
    kept = Memory(states, real).keep(torch.tensor([2, 2, 0]))
    assert torch.equal(kept.states, states[[2, 2, 0]])
    assert kept.real is None if real is None else torch.equal(kept.real, real[[2, 2, 0]])


@torch.no_grad()
def test_the_bytes_of_a_cache_are_those_of_its_keys_and_values():
    model, cache = build(PAST["llama3-8b"]), build(PAST["llama3-8b"]).new_cache()
    model.decode(random_ids(model.spec, 3, 5), cache=cache)
    assert (
        cache.bytes == 2 * 2 * 3 * 1 * 5 * 4 * 8
    )  # layers, k and v, rows, kv_heads, tokens, d_head, float64
