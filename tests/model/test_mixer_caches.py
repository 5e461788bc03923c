"""Caches of recurrences, convolutions and pooling: the same results at a constant cost."""

import pytest
import torch
from small_models import assert_close, build, decoder, padded, random_ids
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from qkv.model import spec as s
from qkv.model.attention_context import AttentionContext
from qkv.model.cache import StateCache, WindowCache
from qkv.plan import cost
from qkv.plan.pieces import Workload
from qkv.textbook.recurrence import gru_step, lstm_step

MIXERS = {
    "lstm": s.Recurrent("lstm"),
    "gru": s.Recurrent("gru"),
    "convolution": s.Convolution(3),
    "dilated": s.Convolution(3, dilation=4),
    "pooling": s.Pooling(5),
    "window": s.Attention(4, 2, 4, window=6),
}


class ElementCounter(TorchDispatchMode):
    """Counts the elements that all operations write."""

    def __init__(self):
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        out = operation(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, tuple | list) else [out]:
            self.elements += tensor.numel() if isinstance(tensor, torch.Tensor) else 0
        return out


@pytest.mark.parametrize("name", MIXERS)
@torch.no_grad()
def test_a_step_costs_the_same_at_64_and_at_512_tokens(name):
    spec = decoder(MIXERS[name], positions=s.NoPositions(), max_len=600)
    model = build(spec)
    cache, ids, measured = model.new_cache(), random_ids(spec, 1, 513), {}
    states = []
    for position in range(513):
        with ElementCounter() as counter, FlopCounterMode(display=False) as flops:
            states.append(model.decode(ids[:, position : position + 1], cache=cache))
        storage = sum(
            tensor.untyped_storage().nbytes()
            for layer in cache.layers
            for tensor in layer.attn.tensors
        )
        measured[position] = counter.elements, flops.get_total_flops(), cache.bytes, storage
    assert measured[64] == measured[512]
    assert measured[512][2] == 2 * cost.memory(spec, Workload(1, 0, 513)).cache  # float64
    assert_close(torch.cat(states, dim=1), model.decode(ids))


@pytest.mark.parametrize("name", MIXERS)
@pytest.mark.parametrize("side", ["left", "right"])
@torch.no_grad()
def test_chunks_with_padding_anywhere_equal_each_row_alone(name, side):
    spec = decoder(MIXERS[name], max_len=60)
    model, rows = build(spec), [random_ids(spec, 1, n)[0] for n in (30, 17, 1)]
    cache, order = model.new_cache(), torch.tensor([2, 0, 1, 0])
    prompts, mask = padded(rows, side, to=31)  # the last row has chunks without a token
    for piece, piece_mask in zip(prompts.split(7, 1), mask.split(7, 1), strict=True):
        model.decode(piece, cache=cache, attention_mask=piece_mask)
    cache.reorder(order)
    later, later_mask = padded([random_ids(spec, 1, n)[0] for n in (4, 9, 2, 1)], side, to=9)
    states = model.decode(later, cache=cache, attention_mask=later_mask)
    last = model.decode(later[:, :1], cache=cache)
    for index, row in enumerate(order.tolist()):
        new = torch.cat([later[index][later_mask[index]], later[index, :1]])
        alone = model.decode(torch.cat([rows[row], new])[None])[0, -len(new) :]
        assert_close(states[index][later_mask[index]], alone[:-1])
        assert_close(last[index], alone[-1:])


@pytest.mark.parametrize("cell", ["lstm", "gru"])
@torch.no_grad()
def test_the_cached_state_is_that_of_the_textbook(cell):
    mixer = build(decoder(s.Recurrent(cell))).decoder.layers[0].attn.branch
    cache, x = mixer.new_cache(), torch.randn(2, 5, 16).double()
    from_x, from_h, bias_x, bias_h = (getattr(mixer.onward, name) for name in (
        "weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0",
    ))  # fmt: skip
    state = torch.zeros(2, 2, 16).double().unbind()
    assert isinstance(cache, StateCache)
    for t in range(5):
        y = mixer(x[:, t : t + 1], AttentionContext(1, t, causal=True), cache)
        if cell == "lstm":
            state = lstm_step(x[:, t], state, from_x, from_h, bias_x + bias_h)
        else:
            state = (gru_step(x[:, t], state[0], from_x, from_h, (bias_x, bias_h)),)
        assert_close(y[:, 0], state[0])
        for ours, theirs in zip(cache.tensors, state, strict=True):
            assert_close(ours, theirs)


def test_a_window_cache_keeps_the_last_tokens_of_each_row():
    cache, mask = WindowCache(3), torch.tensor([[True] * 5, [True, True, False, False, False]])
    x = torch.arange(10.0).view(2, 1, 5, 1)
    (every,), context = cache.extend_with(AttentionContext(5, 0, True, mask), x)
    assert torch.equal(every, x) and torch.equal(context.attention_mask, mask)
    assert cache.tensors[0][0].flatten().tolist() == [2.0, 3.0, 4.0]
    assert cache.tensors[0][1].flatten().tolist()[1:] == [5.0, 6.0]  # padding, then its tokens
    mask = torch.cat([mask, torch.ones(2, 1, dtype=torch.bool)], dim=1)
    (every,), context = cache.extend_with(AttentionContext(1, 5, True, mask), x[:, :, :1])
    assert every[:, 0, :, 0].tolist() == [[3.0, 4.0, 0.0], [5.0, 6.0, 5.0]]
    assert context.attention_mask.all() and context.past == 2
