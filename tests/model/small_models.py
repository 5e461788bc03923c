"""Small models for the tests: every preset scaled down, and a spec for each choice of no preset."""

from dataclasses import fields, is_dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from qkv.model import spec as s
from qkv.model.presets import PRESETS, preset
from qkv.model.transformer import Memory, Transformer

SMALL = {
    "vocab_size": 23,
    "source_vocab_size": 19,
    "d_model": 16,
    "max_len": 24,
    "d_head": 4,
    "d_ff": 20,
    "window": 3,
    "kv_lora_rank": 6,
    "q_lora_rank": 6,
    "qk_nope_head_dim": 4,
    "qk_rope_head_dim": 4,
    "v_head_dim": 5,
    "original_max_len": 8,
}


def shrink(part: Any) -> Any:
    """The same spec with small sizes; the choices of types stay."""
    if isinstance(part, tuple):
        return tuple(shrink(member) for member in part)
    if not is_dataclass(part):
        return part
    new = {field.name: shrink(getattr(part, field.name)) for field in fields(part)}
    new |= {name: size for name, size in SMALL.items() if new.get(name) is not None}
    match part:
        case s.Attention():
            new |= {"n_heads": 4, "n_kv_heads": max(1, 4 * part.n_kv_heads // part.n_heads)}
        case s.LatentAttention():
            new |= {"n_heads": 3}
        case s.MixtureOfExperts():
            new |= {
                "n_experts": min(part.n_experts, 6),
                "n_experts_per_token": min(part.n_experts_per_token, 3),
            }
        case s.Layer():
            new |= {"repeat": min(part.repeat, 2)}
    return type(part)(**new)


HEADS = s.Attention(4, 2, 4)
RMS = s.Norm("rms", "pre")


def decoder(
    mixer: s.Mixer = HEADS, ff: s.FeedForward | None = s.Gated(20), norm: s.Norm = RMS, **more: Any
) -> s.Spec:
    """A decoder-only model of two layers."""
    causal = more.pop("causal", True)
    layers = (s.Layer(mixer, ff, norm, repeat=2),)
    return s.Spec(
        23, 16, decoder=s.Stack(layers, causal, final_norm=True), **({"max_len": 24} | more)
    )


def encoder(
    mixer: s.Mixer = HEADS, ff: s.FeedForward | None = s.Gated(20), norm: s.Norm = RMS, **more: Any
) -> s.Spec:
    """An encoder-only model of two layers."""
    layers = (s.Layer(mixer, ff, norm, repeat=2),)
    return s.Spec(23, 16, encoder=s.Stack(layers, embed_norm=True), **({"max_len": 24} | more))


def both(mixer: s.Mixer = HEADS, norm: s.Norm = RMS, causal: bool = True, **more: Any) -> s.Spec:
    """An encoder-decoder with two vocabularies."""
    layer = s.Layer(mixer, s.Dense(20, "gelu", bias=True), norm, repeat=2)
    stacks = (
        s.Stack((layer,), final_norm=True),
        s.Stack((replace(layer, cross=s.Attention(4, 1, 4)),), causal),
    )  # type: ignore[arg-type]
    return s.Spec(23, 16, *stacks, **({"source_vocab_size": 19, "max_len": 24} | more))


def without_residual(spec: s.Spec) -> s.Spec:
    """The same model without residual connections."""
    stacks = {
        side: replace(stack, layers=tuple(replace(layer, residual=False) for layer in stack.layers))
        for side in ("encoder", "decoder")
        if (stack := getattr(spec, side))
    }
    return replace(spec, **stacks)


MIXERS = {
    "multi-head": s.Attention(3, 3, 6, bias=True, out_bias=True),
    "multi-query": s.Attention(4, 1, 4, qk_norm=True),
    "window": s.Attention(4, 2, 4, window=2),
    "attention-dropout": s.Attention(4, 2, 4, dropout=0.2),
    "lstm": s.Recurrent("lstm"),
    "gru": s.Recurrent("gru"),
    "convolution-3": s.Convolution(3),
    "convolution-4": s.Convolution(4),
    "convolution-1": s.Convolution(1),
    "convolution-dilated": s.Convolution(3, dilation=2),
    "convolution-4-dilated": s.Convolution(4, dilation=3),
    "token-mlp": s.TokenMlp(),
    "pooling-3": s.Pooling(3),
    "pooling-4": s.Pooling(4),
    "pooling-1": s.Pooling(1),
}
POSITIONS = {
    "sinusoidal": s.Sinusoidal(),
    "sinusoidal-halves": s.Sinusoidal("halves"),
    "learned-from-2": s.Learned(first=2),
    "no-positions": s.NoPositions(),
    "alibi": s.ALiBi(),
    "rotary-half": s.Rotary(partial_rotary_factor=0.5),
    "rotary-interleaved": s.Rotary(interleaved=True),
    "rotary-linear": s.Rotary(scaling=s.LinearScaling(4.0)),
    "rotary-llama3": s.Rotary(scaling=s.LlamaScaling(8.0, 1.0, 4.0, 64)),
    "rotary-yarn": s.Rotary(scaling=s.YarnScaling(4.0, 64, attention_factor=1.1)),
}
FEED_FORWARDS: dict[str, s.FeedForward] = {
    "relu2": s.Dense(20, "relu2"),
    "gelu-tanh": s.Dense(20, "gelu_tanh", bias=True),
    "gated-gelu": s.Gated(20, "gelu", bias=True),
    "dense-experts": s.MixtureOfExperts(4, 1, s.Dense(12, "relu")),
    "sigmoid-experts": s.MixtureOfExperts(
        6,
        3,
        s.Gated(12),
        s.Dense(8),
        "sigmoid",
        routed_scaling_factor=2.5,
        score_correction_bias=True,
    ),
    "grouped-experts": s.MixtureOfExperts(
        6, 2, s.Gated(12), n_groups=3, n_active_groups=2, norm_topk_prob=False
    ),
    "grouped-biased": s.MixtureOfExperts(
        8,
        3,
        s.Gated(12),
        None,
        "sigmoid",
        n_groups=4,
        n_active_groups=2,
        score_correction_bias=True,
    ),
    "all-experts": s.MixtureOfExperts(3, 3, s.Gated(12)),
}
NORMS = {
    f"{kind}-{placement}": s.Norm(kind, placement)
    for kind in ("layer", "rms", "batch")
    for placement in ("pre", "post")
}  # type: ignore[arg-type]

SPECS: dict[str, s.Spec] = {name: shrink(preset(name)) for name in PRESETS}
SPECS |= {f"decoder-{name}": decoder(mixer) for name, mixer in MIXERS.items()}
SPECS |= {f"encoder-{name}": encoder(mixer) for name, mixer in MIXERS.items()}
SPECS |= {f"both-{name}": both(mixer) for name, mixer in MIXERS.items()}
SPECS |= {f"decoder-{name}": decoder(positions=positions) for name, positions in POSITIONS.items()}
SPECS |= {f"both-{name}": both(positions=positions) for name, positions in POSITIONS.items()}
SPECS |= {f"decoder-{name}": decoder(ff=part) for name, part in FEED_FORWARDS.items()}
SPECS |= {f"decoder-norm-{name}": decoder(norm=norm) for name, norm in NORMS.items()}
SPECS |= {f"both-norm-{name}": both(norm=norm) for name, norm in NORMS.items()}
SPECS |= {
    "decoder-no-residual": without_residual(decoder()),
    "encoder-no-residual-post": without_residual(encoder(norm=s.Norm("layer", "post"))),
    "both-no-residual": replace(without_residual(both()), decoder=both().decoder),
    "decoder-no-feed-forward": decoder(ff=None),
    "encoder-no-feed-forward": encoder(ff=None, norm=s.Norm("layer", "post")),
    "encoder-alibi": encoder(positions=s.ALiBi()),
    "alibi-window": decoder(s.Attention(3, 1, 4, window=2), positions=s.ALiBi()),
    "latent-query-rank": decoder(
        s.LatentAttention(3, 6, 4, 4, 5, q_lora_rank=6), positions=s.Rotary(interleaved=True)
    ),
    "latent-one-head": decoder(s.LatentAttention(1, 6, 4, 2, 6), scaled_embedding=True),
    "mask-predict": both(causal=False),
    "decoder-not-causal": decoder(causal=False),
    "masked-head": encoder(head=s.MaskedHead(), token_types=2),
    "no-head": encoder(head=None),
    "biased-head": decoder(head=s.LmHead(tied=False, bias=True)),
    "mixed-layers": s.Spec(
        23,
        16,
        decoder=s.Stack(
            (
                s.Layer(s.Attention(4, 2, 4, window=2), s.Gated(20), RMS),
                s.Layer(s.Convolution(2), s.Dense(20), s.Norm()),
                s.Layer(
                    s.Attention(2, 2, 4),
                    s.MixtureOfExperts(3, 2, s.Gated(8)),
                    s.Norm("layer", "post"),
                ),
            ),
            causal=True,
        ),
        max_len=24,
    ),
}

DECODERS = {name: spec for name, spec in SPECS.items() if spec.decoder is not None}
CAUSAL = {
    name: spec
    for name, spec in DECODERS.items()
    if spec.decoder is not None and spec.decoder.causal
}
WITH_ATTENTION = {name: spec for name, spec in SPECS.items() if "Attention(" in repr(spec)}


def randomize(model: nn.Module) -> nn.Module:
    """Random weights and buffers, so that a missing bias, gain or buffer changes the result."""
    with torch.no_grad():
        for weight in model.parameters():
            weight.normal_(std=0.3)
        for name, buffer in model.named_buffers():
            buffer.uniform_(0.5, 1.5) if name.endswith("variance") else buffer.normal_()
    return model.double().eval()


def build(spec: s.Spec) -> Transformer:
    model = randomize(Transformer(spec))
    assert isinstance(model, Transformer)
    return model


def random_ids(spec: s.Spec, batch: int, length: int, source: bool = False) -> Tensor:
    last = spec.source_vocab_size if source and spec.source_vocab_size else spec.vocab_size
    return torch.randint(0, last, (batch, length))


def padded(rows: list[Tensor], side: str, to: int, fill: int = 0) -> tuple[Tensor, Tensor]:
    """Rows (length,) of different lengths as one batch, and the attention mask."""
    ids, attention_mask = (
        torch.full((len(rows), to), fill),
        torch.zeros(len(rows), to, dtype=torch.bool),
    )
    for index, row in enumerate(rows):
        columns = slice(0, len(row)) if side == "right" else slice(to - len(row), to)
        ids[index, columns], attention_mask[index, columns] = row, True
    return ids, attention_mask


def random_memory(model: Transformer, batch: int, length: int = 5) -> Memory | None:
    """A memory of random source ids for an encoder-decoder, else None."""
    if model.encoder is None or model.decoder is None:
        return None
    return model.encode(random_ids(model.spec, batch, length, source=True))


def hidden_states(
    model: Transformer,
    ids: Tensor,
    memory: Memory | None = None,
    attention_mask: Tensor | None = None,
) -> Tensor:
    """The output of the decoder, or of the encoder if there is none, (batch, length, d_model)."""
    if model.decoder is None:
        return model.encode(ids, attention_mask).states
    return model.decode(ids, memory, attention_mask=attention_mask)


def assert_close(ours: Tensor, theirs: Tensor, atol: float = 1e-10) -> None:
    torch.testing.assert_close(ours, theirs, rtol=0, atol=atol)
