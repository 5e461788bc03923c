"""Every way a cache can be wrong is found by `qkv check`, and by the check made for it alone."""

import runpy
from pathlib import Path

import pytest
import torch

import qkv.model.transformer
from qkv.check.invariants import prove
from qkv.model.cache import Cache, FixedCache, GrowingCache
from qkv.model.presets import decoder_only, encoder_decoder
from qkv.model.spec import Gated, Heads, Latent
from qkv.model.transformer import Transformer

SMALL = runpy.run_path(str(Path(__file__).resolve().parents[1] / "model" / "small_models.py"))


def stirred(spec):
    torch.manual_seed(7)
    return SMALL["stirred"](Transformer(spec)).float()


def a_writer():
    return stirred(decoder_only(31, 16, 2, Heads(4, 2, 4), Gated(24)))


def a_latent_writer():
    return stirred(decoder_only(31, 16, 2, Latent(2, 6, 4, 4, 5), Gated(8)))


def a_translator():
    return stirred(encoder_decoder(31, 16, 2, 4, 24))


def verdicts(model):
    return {finding.check: finding for finding in prove(model)}


def fails(model):
    """The checks that fail."""
    return {name for name, finding in verdicts(model).items() if finding.holds is False}


class KeepsTheWrongRows(Cache):
    def keep(self, rows):
        super().keep(rows.flip(0))


class KeepsNoRows(Cache):
    def keep(self, rows):
        pass


class ForgetsPadding(Cache):
    def note(self, real, batch, length):
        super().note(None, batch, length)


class LosesAToken(GrowingCache):
    """A key is overwritten by its neighbour."""

    def extend(self, *new):
        kept = super().extend(*new)
        if self.length > 8:
            self.buffers[0][:, :, 5] = self.buffers[0][:, :, 6]
        return kept


class LosesWhatItGrewFrom(GrowingCache):
    def _grow(self, capacity, new):
        super()._grow(capacity, new)
        if self.length:
            self.buffers[0][:, :, self.length - 1] = 0


class KeepsTheWrongMemory(FixedCache):
    def keep(self, rows):
        pass


def with_parts(attn=GrowingCache, cross=FixedCache):
    class Parts(Cache):
        def __init__(self, n_layers):
            super().__init__(n_layers)
            self.layers[-1].attn, self.layers[-1].cross = attn(), cross()

    return Parts


CACHES = {
    "wrong-rows": KeepsTheWrongRows,
    "no-rows": KeepsNoRows,
    "padding": ForgetsPadding,
    "lost-token": with_parts(attn=LosesAToken),
    "lost-growth": with_parts(attn=LosesWhatItGrewFrom),
}


def break_cache(model, kind):
    model.__class__ = type(
        "Broken", (Transformer,), {"new_cache": lambda self: kind(len(self.decoder.layers))}
    )
    return model


@pytest.mark.parametrize("kind", CACHES.values(), ids=CACHES.keys())
@pytest.mark.parametrize("make", [a_writer, a_translator, a_latent_writer])
def test_a_broken_cache_is_found(make, kind):
    assert fails(break_cache(make(), kind)) == {"cache"}


@pytest.mark.parametrize("make", [a_writer, a_translator])
def test_places_that_are_off_by_one_after_the_first_step_are_found(make, monkeypatch):
    places_of = qkv.model.transformer.places_of

    def one_too_far(length, past, real, device):
        return places_of(length, past, real, device) + (past > 0)

    monkeypatch.setattr(qkv.model.transformer, "places_of", one_too_far)
    found = verdicts(make())
    assert {name for name, finding in found.items() if finding.holds is False} == {"cache"}
    assert "the result differs by" in found["cache"].words


def test_a_memory_that_is_not_reordered_is_found():
    assert fails(break_cache(a_translator(), with_parts(cross=KeepsTheWrongMemory))) == {"cache"}
