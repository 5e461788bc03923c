"""Parity with torch.nn.Transformer and, for the three families, with the textbook."""

from dataclasses import replace

import pytest
import torch
from small_models import assert_close, build, padded, random_ids
from torch import nn

from qkv.model import spec as s
from qkv.model.presets import decoder_only, encoder_decoder
from qkv.model.transformer import Transformer
from qkv.textbook.decoder_only import DecoderOnly
from qkv.textbook.transformer import EncoderOnly
from qkv.textbook.transformer import Transformer as TextbookTransformer

POST = encoder_decoder(29, 16, layers=2, n_heads=4, d_ff=24, dropout=0.0)


def with_norms(spec: s.Spec, norm: s.Norm) -> s.Spec:
    """The same model with other norms, and a final norm in each stack."""
    stacks = (
        replace(
            stack,
            layers=tuple(replace(layer, norm=norm) for layer in stack.layers),
            final_norm=True,
        )
        for stack in (spec.encoder, spec.decoder)
    )
    return replace(spec, **dict(zip(("encoder", "decoder"), stacks, strict=True)))


ENCODER_DECODERS = {
    "post-norm": POST,
    "post-norm with final norms": with_norms(POST, s.Norm("layer", "post")),
    "pre-norm": with_norms(POST, s.Norm("layer", "pre")),
}


def torch_model(spec: s.Spec) -> nn.Transformer:
    """torch's model of the same shape, with random weights."""
    layer = spec.decoder.layers[0]
    sizes = {
        "d_model": 16,
        "nhead": 4,
        "dim_feedforward": 24,
        "dropout": 0.0,
        "batch_first": True,
        "norm_first": layer.norm.placement == "pre",
    }
    last = (lambda: nn.LayerNorm(16)) if spec.decoder.final_norm else (lambda: None)
    encoder = nn.TransformerEncoder(
        nn.TransformerEncoderLayer(**sizes), 2, last(), enable_nested_tensor=False
    )
    decoder = nn.TransformerDecoder(nn.TransformerDecoderLayer(**sizes), 2, last())
    return nn.Transformer(
        16, 4, custom_encoder=encoder, custom_decoder=decoder, batch_first=True
    ).double()


def with_torch_names(ours: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Weights or gradients under torch's names; torch has q, k and v in one matrix."""
    theirs = {}
    for name, tensor in ours.items():
        sublayers = ("attn", "cross", "ffn") if name.startswith("decoder") else ("attn", "ffn")
        for old, new in (
            ("attn.branch", "self_attn"),
            ("cross.branch", "multihead_attn"),
            ("o_proj", "out_proj"),
            ("ffn.branch.up_proj", "linear1"),
            ("ffn.branch.down_proj", "linear2"),
            *((f"{sublayer}.norm", f"norm{n}") for n, sublayer in enumerate(sublayers, 1)),
        ):
            name = name.replace(old, new)
        theirs[name] = tensor
    for name in [name for name in theirs if ".q_proj." in name]:
        parts = [theirs.pop(name.replace(".q_proj.", f".{letter}_proj.")) for letter in "qkv"]
        theirs[name.replace("q_proj.", "in_proj_")] = torch.cat(parts)
    return {name: tensor for name, tensor in theirs.items() if not name.startswith("embed")}


@pytest.mark.parametrize("spec", ENCODER_DECODERS.values(), ids=ENCODER_DECODERS.keys())
def test_the_encoder_decoder_equals_torch_in_outputs_and_gradients(spec):
    ours, theirs = build(spec), torch_model(spec)
    theirs.load_state_dict(with_torch_names(ours.state_dict()))
    source, source_mask = padded([random_ids(spec, 1, n)[0] for n in (7, 4, 5)], "right", 7)
    target, attention_mask = padded([random_ids(spec, 1, n)[0] for n in (6, 6, 3)], "right", 6)

    out = ours.decode(target, ours.encode(source, source_mask), attention_mask=attention_mask)
    embeddings = [ours.embed.weight.detach()[ids] * 4 for ids in (source, target)]  # sqrt(16)
    inputs = [x + sinusoids(x.shape[1]) for x in embeddings]
    wanted = theirs(
        *inputs,
        tgt_mask=~torch.ones(6, 6).tril().bool(),
        src_key_padding_mask=~source_mask,
        tgt_key_padding_mask=~attention_mask,
        memory_key_padding_mask=~source_mask,
    )
    assert_close(out[attention_mask], wanted[attention_mask])

    out[attention_mask].sin().sum().backward()
    wanted[attention_mask].sin().sum().backward()
    got = with_torch_names({name: weight.grad for name, weight in ours.named_parameters()})
    for name, weight in theirs.named_parameters():
        assert_close(got[name], weight.grad)


def sinusoids(length: int) -> torch.Tensor:
    """The paper's formula, element by element."""
    angles = [[p / 10_000 ** (2 * (i // 2) / 16) for i in range(16)] for p in range(length)]
    angles = torch.tensor(angles, dtype=torch.float64)
    return torch.where(torch.arange(16) % 2 == 0, angles.sin(), angles.cos())


def in_both_dtypes(ours: Transformer, theirs: nn.Module):
    """Both models with the same weights, in float64 and in float32, with the tolerance."""
    theirs.load_state_dict(ours.state_dict())
    yield ours.double(), theirs.double().eval(), 1e-10
    yield ours.float(), theirs.float().eval(), 1e-5


@torch.no_grad()
def test_the_encoder_decoder_equals_the_textbook():
    source, source_mask = padded([random_ids(POST, 1, n)[0] for n in (7, 4)], "right", 7)
    target, attention_mask = padded([random_ids(POST, 1, n)[0] for n in (6, 3)], "right", 6)
    for ours, theirs, atol in in_both_dtypes(build(POST), TextbookTransformer(29, 16, 2, 4, 24)):
        logits = ours.logits(
            ours.decode(target, ours.encode(source, source_mask), attention_mask=attention_mask)
        )
        assert_close(
            logits[attention_mask],
            theirs(source, target, source_mask, attention_mask)[attention_mask],
            atol * logits.abs().max().item(),
        )


@torch.no_grad()
def test_the_decoder_only_model_equals_the_textbook():
    spec = decoder_only(29, 16, 2, s.Attention(4, 2, 4), s.Gated(24))
    ids = random_ids(spec, 3, 8)
    for ours, theirs, atol in in_both_dtypes(build(spec), DecoderOnly(29, 16, 2, 4, 2, 24)):
        logits = ours.logits(ours.decode(ids))
        assert_close(logits, theirs(ids), atol * logits.abs().max().item())


@torch.no_grad()
def test_the_encoder_only_model_equals_the_textbook():
    spec = replace(POST, decoder=None, head=None)
    ids, attention_mask = padded([random_ids(spec, 1, n)[0] for n in (7, 4)], "right", 7)
    for ours, theirs, atol in in_both_dtypes(build(spec), EncoderOnly(29, 16, 2, 4, 24)):
        assert_close(
            ours.encode(ids, attention_mask).states[attention_mask],
            theirs(ids, attention_mask)[attention_mask],
            atol,
        )
