"""Correct models pass every check; each injected fault fails exactly the check made for it."""

import runpy
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import qkv.check.checked_model
import qkv.model.transformer
from qkv.check.checked_model import CheckedModel
from qkv.check.invariants import CHECKS, run_checks
from qkv.messages import set_language
from qkv.model.attention import SdpaCore
from qkv.model.presets import decoder_only, encoder_decoder, encoder_only
from qkv.model.spec import Attention, Gated, Learned, LmHead, MixtureOfExperts
from qkv.model.transformer import LayerStack, Memory, Transformer
from qkv.text.train_tokenizer import train_tokenizer

SMALL = runpy.run_path(str(Path(__file__).resolve().parents[1] / "model" / "small_models.py"))


def stirred(spec):
    torch.manual_seed(7)
    return SMALL["randomize"](Transformer(replace(spec, dropout=0.0))).float()


def small_decoder(**changes):
    return stirred(replace(decoder_only(31, 16, 2, Attention(4, 2, 4), Gated(24)), **changes))


def small_encoder_decoder():
    return stirred(encoder_decoder(31, 16, 2, 4, 24))


def small_encoder():
    return stirred(encoder_only(31, 16, 2, 4, 24))


def reload(model, tokenizers):
    twin = Transformer(model.spec).to(model.embed.weight.dtype)
    twin.load_state_dict(model.state_dict())
    return twin, tokenizers


def failed_checks(model, **more):
    """Names of the checks that fail."""
    return {result.check for result in run_checks(model, **more) if result.passed is False}


def results_of(model, **more):
    return {result.check: result for result in run_checks(model, **more)}


@pytest.mark.parametrize("spec", SMALL["SPECS"].values(), ids=SMALL["SPECS"].keys())
def test_every_small_model_passes_every_check(spec):
    results = run_checks(SMALL["build"](spec), reload=reload)
    assert [result for result in results if result.passed is False] == []
    decoder = spec.decoder and spec.decoder.causal
    passed = {result.check for result in results if result.passed}
    assert passed >= {"finite", "padding", "batch", "saved"} | (
        {"causality", "cache"} if decoder else set()
    )
    assert all(result.difference < 1e-10 for result in results if result.difference is not None)


@pytest.mark.parametrize("length", [1, 2, 3, 8, 11])
def test_models_with_a_short_context_pass_every_check(length):
    small = replace(encoder_decoder(31, 16, 1, 4, 24), positions=Learned(), max_len=length)
    assert (
        failed_checks(stirred(small))
        == failed_checks(small_decoder(positions=Learned(), max_len=length))
        == set()
    )


# ---- causality ---------------------------------------------------------------


class AttendsNextToken(nn.Module):
    """Attention that also attends to the next token; padding is masked correctly."""

    def forward(self, q, k, v, mask, scale):
        allowed = mask.allowed
        if allowed is None:
            allowed = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool)[None, None].tril(
                k.shape[2] - q.shape[2]
            )
        is_next = torch.ones_like(allowed).triu(1).tril(1)
        allowed = allowed | (is_next & allowed.any(dim=-2, keepdim=True))
        return F.scaled_dot_product_attention(q, k, v, allowed, scale=scale, enable_gqa=True)


@pytest.mark.parametrize("make", [small_decoder, small_encoder_decoder])
def test_attention_to_the_next_token_fails_causality(make):
    model = make()
    model.decoder.layers[1].attn.branch.core = AttendsNextToken()
    results = results_of(model)
    assert {name for name, result in results.items() if result.passed is False} == {"causality"}
    assert results["causality"].message.startswith(
        "token 0 changes when only later tokens change: relative difference "
    )
    assert (results["cache"].passed, results["cache"].message) == (
        None,
        "skipped: this check failed: causality: later tokens have no effect",
    )


@pytest.mark.parametrize("make", [small_decoder, small_encoder_decoder])
def test_a_decoder_without_its_causal_mask_fails_causality(make):
    model = make()
    model.decoder.causal = False
    assert failed_checks(model) == {"causality"}


def test_causality_is_checked_in_float32_too(monkeypatch):
    monkeypatch.setattr(qkv.check.checked_model, "MAX_FLOAT64_PARAMETERS", 0)
    model = small_decoder()
    assert CheckedModel(model).dtype == torch.float32 and failed_checks(model) == set()
    model.decoder.layers[0].attn.branch.core = AttendsNextToken()
    assert failed_checks(model) == {"causality"}


# ---- padding -----------------------------------------------------------------


class Unmasked(LayerStack):
    """A stack that ignores the attention mask."""

    def forward(self, x, attention_mask, memory=None, cache=None):
        return super().forward(x, None, memory, cache)


@pytest.mark.parametrize(
    ("make", "stack"),
    [
        (small_decoder, "decoder"),
        (small_encoder_decoder, "encoder"),
        (small_encoder_decoder, "decoder"),
        (small_encoder, "encoder"),
    ],
)
def test_an_ignored_attention_mask_fails_padding(make, stack):
    model = make()
    getattr(model, stack).__class__ = Unmasked
    assert failed_checks(model) == {"padding"}
    assert results_of(model)["batch"].message == (
        "skipped: this check failed: padding: its tokens have no effect"
    )


class IgnoresSourcePadding(Transformer):
    def encode(self, ids, attention_mask=None, types=None):
        return Memory(super().encode(ids, attention_mask, types).states, None)


def test_cross_attention_to_padding_fails_padding():
    model = small_encoder_decoder()
    model.__class__ = IgnoresSourcePadding
    assert failed_checks(model) == {"padding"}


def inverted(mask):
    return mask if mask.allowed is None else replace(mask, allowed=~mask.allowed)


class Inverted(nn.Module):
    """A mask in which True means masked out."""

    def forward(self, q, k, v, mask, scale):
        return SdpaCore()(q, k, v, inverted(mask), scale)


def test_an_inverted_mask_fails_padding():
    model = small_encoder()
    model.encoder.layers[0].attn.branch.core = Inverted()
    assert failed_checks(model) == {"padding"}


@pytest.mark.parametrize(
    "make", [lambda: small_decoder(positions=Learned()), small_encoder_decoder, small_encoder]
)
def test_positions_that_count_left_padding_fail_batch_invariance(make, monkeypatch):
    def counted(length, past, attention_mask, device):
        return torch.arange(past, past + length, device=device)[None]

    monkeypatch.setattr(qkv.model.transformer, "position_ids_of", counted)
    results = results_of(make())
    assert {name for name, result in results.items() if result.passed is False} == {"batch"}
    assert results["batch"].message.startswith("padding on the left: relative difference ")


class NanForMaskedRows(nn.Module):
    """A softmax over no keys: 0 / 0."""

    def forward(self, q, k, v, mask, scale):
        mixed = SdpaCore()(q, k, v, mask, scale)
        return (
            mixed
            if mask.allowed is None
            else mixed.masked_fill(~mask.allowed.any(-1, keepdim=True), torch.nan)
        )


def test_nan_in_padding_fails_padding():
    model = small_decoder()
    model.decoder.layers[1].attn.branch.core = NanForMaskedRows()
    assert results_of(model)["padding"].message == "padding on the left: NaN or infinity"


# ---- weights and files -------------------------------------------------------


class Unscaled(SdpaCore):
    def forward(self, q, k, v, mask, scale):
        return super().forward(q, k, v, mask, 1.0)


@pytest.mark.parametrize("make", [small_decoder, small_encoder_decoder, small_encoder])
def test_a_fused_kernel_with_another_result_fails_fused(make):
    model = make()
    next(iter((model.decoder or model.encoder).layers)).attn.branch.core = Unscaled()
    assert failed_checks(model) == {"fused"}


def test_one_nan_fails_finite_only():
    model = small_encoder_decoder()
    model.decoder.layers[1].ffn.norm.bias.data[3] = torch.nan
    results = results_of(model, reload=reload)
    assert {name for name, result in results.items() if result.passed is False} == {"finite"}
    assert (
        results["finite"].message
        == "NaN or infinity in decoder.layers.1.ffn.norm.bias: 1; use an earlier checkpoint"
    )
    assert results["causality"].message == "skipped: this check failed: all weights are finite"
    assert results["saved"].passed is True


def test_a_head_that_is_not_tied_as_in_the_spec_fails_tied():
    model = small_encoder_decoder()
    model.lm_head.weight = nn.Parameter(torch.randn(31, 16))
    assert failed_checks(model) == {"tied"}
    untied = small_decoder(head=LmHead(tied=False))
    assert failed_checks(untied) == set()
    untied.lm_head.weight.data.copy_(untied.embed.weight)
    assert failed_checks(untied) == {"tied"}
    untied.lm_head.weight = untied.embed.weight
    assert results_of(untied)["tied"].message == (
        "not tied in model.json, but head and embedding are equal; set head.tied to true"
    )


def test_a_tokenizer_of_another_size_fails_vocabulary():
    tokenizer = train_tokenizer("char", ["abcdefghijklmnopqrstuvwxyz0123456789"], vocab_size=60)
    size = tokenizer.vocab_size
    assert size > 31 and failed_checks(small_decoder(), tokenizers={"tokenizer": tokenizer}) == {
        "vocabulary"
    }
    assert results_of(small_decoder(), tokenizers={"tokenizer": tokenizer})[
        "vocabulary"
    ].message == (
        f"tokenizer: {size} tokens, but the embedding has 31 rows; it is another model's tokenizer"
    )
    assert (
        failed_checks(small_decoder(vocab_size=size), tokenizers={"tokenizer": tokenizer}) == set()
    )
    assert (
        failed_checks(small_decoder(vocab_size=128), tokenizers={"tokenizer": tokenizer}) == set()
    )  # padded to a multiple
    assert failed_checks(small_decoder(vocab_size=2_000), tokenizers={"tokenizer": tokenizer}) == {
        "vocabulary"
    }


def test_source_and_target_vocabularies_are_compared_separately():
    source, target = (
        train_tokenizer("char", ["abc"], vocab_size=60),
        train_tokenizer("char", ["abcdefgh"], vocab_size=60),
    )
    spec = replace(
        encoder_decoder(target.vocab_size, 16, 1, 4, 24), source_vocab_size=source.vocab_size
    )
    assert failed_checks(stirred(spec), tokenizers={"source": source, "target": target}) == set()
    assert failed_checks(stirred(spec), tokenizers={"source": target, "target": source}) == {
        "vocabulary"
    }


@pytest.mark.parametrize("fault", ["bit", "type", "spec", "tokenizer", "missing"])
def test_a_model_that_changes_when_saved_fails_saved(fault):
    tokenizer, other = (train_tokenizer("char", [text], vocab_size=60) for text in ("abc", "xyz"))

    def broken_reload(model, tokenizers):
        twin, tokenizers = reload(model, tokenizers)
        if fault == "bit":
            twin.decoder.norm.weight.data.view(torch.int32)[5] ^= 1
        if fault == "spec":
            twin.spec = replace(twin.spec, max_len=7)
        twin = twin.double() if fault == "type" else twin
        return twin, {"bit": tokenizers, "tokenizer": {"tokenizer": other}, "missing": {}}.get(
            fault, tokenizers
        )

    model = small_decoder(vocab_size=20)
    assert failed_checks(model, tokenizers={"tokenizer": tokenizer}, reload=broken_reload) == {
        "saved"
    }
    assert failed_checks(model, tokenizers={"tokenizer": tokenizer}, reload=reload) == set()


def test_an_exception_is_a_failure():
    class Raises(nn.Module):
        def forward(self, q, k, v, mask, scale):
            raise RuntimeError("the kernel is missing\nsecond line")

    model = small_decoder()
    model.decoder.layers[0].attn.branch.core = Raises()
    results = results_of(model)
    assert results["causality"].message == "the pass raised RuntimeError: the kernel is missing"
    assert results["finite"].passed and results["tied"].passed


def test_checks_that_do_not_apply_say_why():
    results = results_of(small_encoder())
    assert {name: result.message for name, result in results.items() if result.passed is None} == {
        "tied": "this model has no output head",
        "vocabulary": "there is no tokenizer in the folder",
        "causality": "attention is bidirectional, as in model.json",
        "cache": "there is no causal decoder",
        "saved": "no function to save and load was given",
    }


def test_the_model_is_left_unchanged():
    model = stirred(
        decoder_only(31, 16, 2, Attention(4, 2, 4), MixtureOfExperts(4, 2, Gated(8)))
    ).train()
    model.loss(
        model.decode(torch.randint(0, 31, (2, 4))), torch.zeros(2, 4, dtype=torch.long)
    ).backward()
    weights = {
        name: (id(tensor), tensor.clone())
        for name, tensor in model.state_dict(keep_vars=True).items()
    }
    modules = [(id(module), module.training) for module in model.modules()]
    rng_state = torch.get_rng_state()
    assert failed_checks(model, reload=None) == set()
    after = model.state_dict(keep_vars=True)
    assert all(
        id(after[name]) == number and torch.equal(after[name], tensor)
        for name, (number, tensor) in weights.items()
    )
    assert modules == [(id(module), module.training) for module in model.modules()]
    assert torch.equal(rng_state, torch.get_rng_state())


def test_results_are_in_chinese_too():
    set_language("zh")
    try:
        titles = [result.title for result in run_checks(small_decoder())]
    finally:
        set_language("en")
    assert titles[3] == "因果性：后面的词元没有影响" and len(titles) == len(CHECKS)
