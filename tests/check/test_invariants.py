"""The checks hold of every sound model, and each planted fault is found by exactly the check made for it."""

import runpy
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import qkv.check.checked_model
import qkv.model.transformer
from qkv.check.checked_model import Subject
from qkv.check.invariants import CHECKS, prove
from qkv.messages import set_language
from qkv.model.attention import FusedCore
from qkv.model.presets import decoder_only, encoder_decoder, encoder_only
from qkv.model.spec import Experts, Gated, Heads, Learned, LmHead
from qkv.model.transformer import LayerStack, Memory, Transformer
from qkv.text.learn import learn

SMALL = runpy.run_path(str(Path(__file__).resolve().parents[1] / "model" / "small_models.py"))


def stirred(spec):
    torch.manual_seed(7)
    return SMALL["stirred"](Transformer(replace(spec, dropout=0.0))).float()


def a_writer(**changes):
    return stirred(replace(decoder_only(31, 16, 2, Heads(4, 2, 4), Gated(24)), **changes))


def a_translator():
    return stirred(encoder_decoder(31, 16, 2, 4, 24))


def a_reader():
    return stirred(encoder_only(31, 16, 2, 4, 24))


def reload(model, tokenizers):
    twin = Transformer(model.spec).to(model.embed.weight.dtype)
    twin.load_state_dict(model.state_dict())
    return twin, tokenizers


def fails(model, **more):
    """The checks that fail."""
    return {finding.check for finding in prove(model, **more) if finding.holds is False}


def verdicts(model, **more):
    return {finding.check: finding for finding in prove(model, **more)}


@pytest.mark.parametrize("spec", SMALL["SPECS"].values(), ids=SMALL["SPECS"].keys())
def test_every_small_model_holds_every_check(spec):
    findings = prove(SMALL["build"](spec), reload=reload)
    assert [finding for finding in findings if finding.holds is False] == []
    decoder = spec.decoder and spec.decoder.sees == "past"
    asked = {finding.check for finding in findings if finding.holds}
    assert asked >= {"finite", "padding", "batch", "saved"} | (
        {"future", "cache"} if decoder else set()
    )
    assert all(finding.difference < 1e-10 for finding in findings if finding.difference is not None)


@pytest.mark.parametrize("length", [1, 2, 3, 8, 11])
def test_models_that_read_very_little_hold_too(length):
    small = replace(encoder_decoder(31, 16, 1, 4, 24), positions=Learned(), max_len=length)
    assert fails(stirred(small)) == fails(a_writer(positions=Learned(), max_len=length)) == set()


# ---- leaks ---------------------------------------------------------------------------------------------------------


class OneAhead(nn.Module):
    """Attention that also sees the next token, and is right about padding."""

    def forward(self, q, k, v, sight, scale):
        visible = sight.visible
        if visible is None:
            visible = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool)[None, None].tril(
                k.shape[2] - q.shape[2]
            )
        is_next = torch.ones_like(visible).triu(1).tril(1)
        visible = visible | (is_next & visible.any(dim=-2, keepdim=True))
        return F.scaled_dot_product_attention(q, k, v, visible, scale=scale, enable_gqa=True)


@pytest.mark.parametrize("make", [a_writer, a_translator])
def test_a_leak_from_the_next_token_is_found(make):
    model = make()
    model.decoder.layers[1].attn.branch.core = OneAhead()
    found = verdicts(model)
    assert {name for name, finding in found.items() if finding.holds is False} == {"future"}
    assert found["future"].words.startswith(
        "when only later tokens change, token 0 is not the same, the result differs"
    )
    assert (found["cache"].holds, found["cache"].words) == (
        None,
        "not asked before this is mended: blind to the future",
    )


@pytest.mark.parametrize("make", [a_writer, a_translator])
def test_a_decoder_that_sees_all_though_the_spec_says_past_is_found(make):
    model = make()
    model.decoder.sees = "all"
    assert fails(model) == {"future"}


def test_a_leak_is_found_in_float32_too(monkeypatch):
    monkeypatch.setattr(qkv.check.checked_model, "SMALL", 0)
    model = a_writer()
    assert Subject(model).dtype == torch.float32 and fails(model) == set()
    model.decoder.layers[0].attn.branch.core = OneAhead()
    assert fails(model) == {"future"}


# ---- padding -------------------------------------------------------------------------------------------------------


class Unmasked(LayerStack):
    """A stack that forgets which tokens are padding."""

    def forward(self, x, real, memory=None, cache=None):
        return super().forward(x, None, memory, cache)


@pytest.mark.parametrize(
    ("make", "stack"),
    [
        (a_writer, "decoder"),
        (a_translator, "encoder"),
        (a_translator, "decoder"),
        (a_reader, "encoder"),
    ],
)
def test_a_forgotten_padding_mask_is_found(make, stack):
    model = make()
    getattr(model, stack).__class__ = Unmasked
    assert fails(model) == {"padding"}
    assert verdicts(model)["batch"].words == "not asked before this is mended: padding is inert"


class ForgetsSourcePadding(Transformer):
    def encode(self, ids, real=None, types=None):
        return Memory(super().encode(ids, real, types).states, None)


def test_cross_attention_to_padding_is_found():
    model = a_translator()
    model.__class__ = ForgetsSourcePadding
    assert fails(model) == {"padding"}


def inverted(sight):
    return sight if sight.visible is None else sight._replace(visible=~sight.visible)


class Inverted(nn.Module):
    """A mask whose True means "hidden"."""

    def forward(self, q, k, v, sight, scale):
        return FusedCore()(q, k, v, inverted(sight), scale)


def test_an_inverted_mask_is_found():
    model = a_reader()
    model.encoder.layers[0].attn.branch.core = Inverted()
    assert fails(model) == {"padding"}


@pytest.mark.parametrize("make", [lambda: a_writer(positions=Learned()), a_translator, a_reader])
def test_places_that_count_the_padding_on_the_left_are_found(make, monkeypatch):
    def counted(length, past, real, device):
        return torch.arange(past, past + length, device=device)[None]

    monkeypatch.setattr(qkv.model.transformer, "places_of", counted)
    found = verdicts(make())
    assert {name for name, finding in found.items() if finding.holds is False} == {"batch"}
    assert found["batch"].words.startswith("padded on the left, the result differs by ")


class NanForBlindRows(nn.Module):
    """A softmax over nothing: 0 / 0."""

    def forward(self, q, k, v, sight, scale):
        mixed = FusedCore()(q, k, v, sight, scale)
        return (
            mixed
            if sight.visible is None
            else mixed.masked_fill(~sight.visible.any(-1, keepdim=True), torch.nan)
        )


def test_padding_that_makes_nan_is_found():
    model = a_writer()
    model.decoder.layers[1].attn.branch.core = NanForBlindRows()
    assert verdicts(model)["padding"].words == "padded on the left, padding gives NaN or infinity"


# ---- the rest ------------------------------------------------------------------------------------------------------


class Unscaled(FusedCore):
    def forward(self, q, k, v, sight, scale):
        return super().forward(q, k, v, sight, 1.0)


@pytest.mark.parametrize("make", [a_writer, a_translator, a_reader])
def test_a_fused_kernel_that_computes_something_else_is_found(make):
    model = make()
    next(iter((model.decoder or model.encoder).layers)).attn.branch.core = Unscaled()
    assert fails(model) == {"fused"}


def test_one_number_that_is_not_finite_is_found_and_nothing_else_is_blamed():
    model = a_translator()
    model.decoder.layers[1].ffn.norm.bias.data[3] = torch.nan
    found = verdicts(model, reload=reload)
    assert {name for name, finding in found.items() if finding.holds is False} == {"finite"}
    assert (
        found["finite"].words
        == "NaN or infinity in decoder.layers.1.ffn.norm.bias: 1; take an earlier checkpoint"
    )
    assert found["future"].words == "not asked before this is mended: every weight is finite"
    assert found["saved"].holds is True


def test_a_head_that_is_not_tied_as_stated_is_found():
    model = a_translator()
    model.lm_head.weight = nn.Parameter(torch.randn(31, 16))
    assert fails(model) == {"tied"}
    apart = a_writer(head=LmHead(tied=False))
    assert fails(apart) == set()
    apart.lm_head.weight.data.copy_(apart.embed.weight)
    assert fails(apart) == {"tied"}
    apart.lm_head.weight = apart.embed.weight
    assert verdicts(apart)["tied"].words == (
        "model.json says two tables, but they are the same numbers; set head.tied to true"
    )


def test_a_tokenizer_of_another_size_is_found():
    tokenizer = learn("char", ["abcdefghijklmnopqrstuvwxyz0123456789"], vocab_size=60)
    size = tokenizer.vocab_size
    assert size > 31 and fails(a_writer(), tokenizers={"tokenizer": tokenizer}) == {"vocabulary"}
    assert verdicts(a_writer(), tokenizers={"tokenizer": tokenizer})["vocabulary"].words == (
        f"tokenizer: {size} tokens, but the model has only 31 rows; it is another model's tokenizer"
    )
    assert fails(a_writer(vocab_size=size), tokenizers={"tokenizer": tokenizer}) == set()
    assert (
        fails(a_writer(vocab_size=128), tokenizers={"tokenizer": tokenizer}) == set()
    )  # rounded up
    assert fails(a_writer(vocab_size=2_000), tokenizers={"tokenizer": tokenizer}) == {"vocabulary"}


def test_each_side_is_compared_with_its_own_tokenizer():
    source, target = (
        learn("char", ["abc"], vocab_size=60),
        learn("char", ["abcdefgh"], vocab_size=60),
    )
    spec = replace(
        encoder_decoder(target.vocab_size, 16, 1, 4, 24), source_vocab_size=source.vocab_size
    )
    assert fails(stirred(spec), tokenizers={"source": source, "target": target}) == set()
    assert fails(stirred(spec), tokenizers={"source": target, "target": source}) == {"vocabulary"}


@pytest.mark.parametrize("harm", ["bit", "type", "spec", "tokenizer", "missing"])
def test_a_model_that_comes_back_changed_is_found(harm):
    tokenizer, other = (learn("char", [text], vocab_size=60) for text in ("abc", "xyz"))

    def careless(model, tokenizers):
        twin, tokenizers = reload(model, tokenizers)
        if harm == "bit":
            twin.decoder.norm.weight.data.view(torch.int32)[5] ^= 1
        if harm == "spec":
            twin.spec = replace(twin.spec, max_len=7)
        twin = twin.double() if harm == "type" else twin
        return twin, {"bit": tokenizers, "tokenizer": {"tokenizer": other}, "missing": {}}.get(
            harm, tokenizers
        )

    model = a_writer(vocab_size=20)
    assert fails(model, tokenizers={"tokenizer": tokenizer}, reload=careless) == {"saved"}
    assert fails(model, tokenizers={"tokenizer": tokenizer}, reload=reload) == set()


def test_a_pass_that_stops_is_a_check_that_fails():
    class Stops(nn.Module):
        def forward(self, q, k, v, sight, scale):
            raise RuntimeError("the kernel is missing\nsecond line")

    model = a_writer()
    model.decoder.layers[0].attn.branch.core = Stops()
    found = verdicts(model)
    assert found["future"].words == "the pass stops with RuntimeError: the kernel is missing"
    assert found["finite"].holds and found["tied"].holds


def test_what_does_not_apply_is_said_to_be_so():
    found = verdicts(a_reader())
    assert {name: finding.words for name, finding in found.items() if finding.holds is None} == {
        "tied": "this model has no head over the vocabulary",
        "vocabulary": "there is no tokenizer in the folder",
        "future": "it sees the whole text, as model.json says",
        "cache": "it does not decode step by step",
        "saved": "no way to save was given",
    }


def test_the_model_is_left_as_it_was():
    model = stirred(decoder_only(31, 16, 2, Heads(4, 2, 4), Experts(4, 2, Gated(8)))).train()
    model.loss(
        model.decode(torch.randint(0, 31, (2, 4))), torch.zeros(2, 4, dtype=torch.long)
    ).backward()
    weights = {
        name: (id(one), one.clone()) for name, one in model.state_dict(keep_vars=True).items()
    }
    parts, chance = [(id(part), part.training) for part in model.modules()], torch.get_rng_state()
    assert fails(model, reload=None) == set()
    after = model.state_dict(keep_vars=True)
    assert all(
        id(after[name]) == number and torch.equal(after[name], one)
        for name, (number, one) in weights.items()
    )
    assert parts == [(id(part), part.training) for part in model.modules()]
    assert torch.equal(chance, torch.get_rng_state())


def test_findings_speak_chinese_too():
    set_language("zh")
    try:
        titles = [finding.title for finding in prove(a_writer())]
    finally:
        set_language("en")
    assert titles[3] == "看不到未来" and len(titles) == len(CHECKS)
