"""A broken KV cache fails the cache check of `qkv check`, and no other."""

import runpy
from pathlib import Path

import pytest
import torch

import qkv.model.transformer
from qkv.check.invariants import run_checks
from qkv.model.cache import Cache, FixedCache, GrowingCache, WindowCache
from qkv.model.presets import decoder_only, encoder_decoder
from qkv.model.spec import Attention, Gated, LatentAttention
from qkv.model.transformer import Transformer

SMALL = runpy.run_path(str(Path(__file__).resolve().parents[1] / "model" / "small_models.py"))
SMALL_WINDOW = 5


def stirred(spec):
    torch.manual_seed(7)
    return SMALL["randomize"](Transformer(spec)).float()


def small_decoder():
    return stirred(decoder_only(31, 16, 2, Attention(4, 2, 4), Gated(24)))


def small_windowed_decoder():
    return stirred(decoder_only(31, 16, 2, Attention(4, 2, 4, SMALL_WINDOW), Gated(24)))


def small_latent_decoder():
    return stirred(decoder_only(31, 16, 2, LatentAttention(2, 6, 4, 4, 5), Gated(8)))


def small_encoder_decoder():
    return stirred(encoder_decoder(31, 16, 2, 4, 24))


def results_of(model):
    return {result.check: result for result in run_checks(model)}


def failed_checks(model):
    """Names of the checks that fail."""
    return {name for name, result in results_of(model).items() if result.passed is False}


class ReordersTheWrongRows(Cache):
    def reorder(self, rows):
        super().reorder(rows.flip(0))


class DoesNotReorder(Cache):
    def reorder(self, rows):
        pass


class IgnoresPadding(Cache):
    def append_mask(self, attention_mask, batch, length):
        super().append_mask(None, batch, length)


class OverwritesAKey(GrowingCache):
    """A key is overwritten by its neighbor."""

    def extend(self, *new):
        kept = super().extend(*new)
        if self.length > 8:
            self.buffers[0][:, :, 5] = self.buffers[0][:, :, 6]
        return kept


class LosesAKeyWhenItGrows(GrowingCache):
    def _grow(self, capacity, new):
        super()._grow(capacity, new)
        if self.length:
            self.buffers[0][:, :, self.length - 1] = 0


class ForgetsTooSoon(WindowCache):
    """The window is one token shorter than the model's."""

    def __init__(self):
        super().__init__(SMALL_WINDOW - 1)


class DoesNotReorderMemory(FixedCache):
    def reorder(self, rows):
        pass


def with_parts(attn=GrowingCache, cross=FixedCache):
    class Parts(Cache):
        def __init__(self, n_layers):
            super().__init__(n_layers)
            self.layers[-1].attn, self.layers[-1].cross = attn(), cross()

    return Parts


CACHES = {
    "wrong-rows": ReordersTheWrongRows,
    "no-rows": DoesNotReorder,
    "padding": IgnoresPadding,
    "overwritten-key": with_parts(attn=OverwritesAKey),
    "lost-key": with_parts(attn=LosesAKeyWhenItGrows),
}


def break_cache(model, kind):
    model.__class__ = type(
        "Broken", (Transformer,), {"new_cache": lambda self: kind(len(self.decoder.layers))}
    )
    return model


@pytest.mark.parametrize("kind", CACHES.values(), ids=CACHES.keys())
@pytest.mark.parametrize("make", [small_decoder, small_encoder_decoder, small_latent_decoder])
def test_a_broken_cache_fails_cache(make, kind):
    assert failed_checks(break_cache(make(), kind)) == {"cache"}


@pytest.mark.parametrize("make", [small_decoder, small_encoder_decoder])
def test_positions_off_by_one_after_the_first_step_fail_cache(make, monkeypatch):
    position_ids_of = qkv.model.transformer.position_ids_of

    def off_by_one(length, past, attention_mask, device):
        return position_ids_of(length, past, attention_mask, device) + (past > 0)

    monkeypatch.setattr(qkv.model.transformer, "position_ids_of", off_by_one)
    results = results_of(make())
    assert {name for name, result in results.items() if result.passed is False} == {"cache"}
    assert "relative difference" in results["cache"].message


def test_a_memory_that_is_not_reordered_fails_cache():
    assert failed_checks(
        break_cache(small_encoder_decoder(), with_parts(cross=DoesNotReorderMemory))
    ) == {"cache"}


def test_a_window_that_is_too_short_fails_cache():
    assert failed_checks(small_windowed_decoder()) == set()
    assert failed_checks(
        break_cache(small_windowed_decoder(), with_parts(attn=ForgetsTooSoon))
    ) == {"cache"}
