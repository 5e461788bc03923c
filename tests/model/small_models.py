"""Small models for the tests: every preset scaled down, and one spec for each choice that no preset makes.

In: a preset's spec. Out: the same architecture with few layers and narrow widths, and models with stirred weights.
"""

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
    "kv_rank": 6,
    "q_rank": 6,
    "d_nope": 4,
    "d_rope": 4,
    "d_value": 5,
    "first_len": 8,
}


def shrink(part: Any) -> Any:
    """The same tree with every size made small; what is a choice stays as it is."""
    if isinstance(part, tuple):
        return tuple(shrink(one) for one in part)
    if not is_dataclass(part):
        return part
    new = {field.name: shrink(getattr(part, field.name)) for field in fields(part)}
    new |= {name: size for name, size in SMALL.items() if new.get(name) is not None}
    match part:
        case s.Heads():
            new |= {"n_heads": 4, "n_kv_heads": max(1, 4 * part.n_kv_heads // part.n_heads)}
        case s.Latent():
            new |= {"n_heads": 3}
        case s.Experts():
            new |= {"n_experts": min(part.n_experts, 6), "n_active": min(part.n_active, 3)}
        case s.Layer():
            new |= {"repeat": min(part.repeat, 2)}
    return type(part)(**new)


HEADS = s.Heads(4, 2, 4)
RMS = s.Norm("rms", "pre")


def decoder(
    mixer: s.Mixer = HEADS, ff: s.FeedForward = s.Gated(20), norm: s.Norm = RMS, **more: Any
) -> s.Spec:
    """Two layers that see the past."""
    sees = more.pop("sees", "past")
    layers = (s.Layer(mixer, ff, norm, repeat=2),)
    return s.Spec(
        23, 16, decoder=s.Stack(layers, sees, final_norm=True), **({"max_len": 24} | more)
    )


def encoder(
    mixer: s.Mixer = HEADS, ff: s.FeedForward = s.Gated(20), norm: s.Norm = RMS, **more: Any
) -> s.Spec:
    """Two layers that see everything."""
    layers = (s.Layer(mixer, ff, norm, repeat=2),)
    return s.Spec(
        23, 16, encoder=s.Stack(layers, "all", embed_norm=True), **({"max_len": 24} | more)
    )


def both(mixer: s.Mixer = HEADS, norm: s.Norm = RMS, sees: str = "past", **more: Any) -> s.Spec:
    """Encoder and decoder with different tables."""
    layer = s.Layer(mixer, s.Dense(20, "gelu", bias=True), norm, repeat=2)
    stacks = (
        s.Stack((layer,), "all", final_norm=True),
        s.Stack((replace(layer, cross=s.Heads(4, 1, 4)),), sees),
    )  # type: ignore[arg-type]
    return s.Spec(23, 16, *stacks, **({"source_vocab_size": 19, "max_len": 24} | more))


MIXERS = {
    "multi-head": s.Heads(3, 3, 6, bias=True, out_bias=True),
    "multi-query": s.Heads(4, 1, 4, qk_norm=True),
    "window": s.Heads(4, 2, 4, window=2),
    "lstm": s.Recurrent("lstm"),
    "gru": s.Recurrent("gru"),
    "convolution-3": s.Convolution(3),
    "convolution-4": s.Convolution(4),
    "convolution-1": s.Convolution(1),
    "token-mlp": s.TokenMlp(),
    "pooling-3": s.Pooling(3),
    "pooling-4": s.Pooling(4),
    "pooling-1": s.Pooling(1),
}
POSITIONS = {
    "sinusoidal": s.Sinusoidal(),
    "sinusoidal-halves": s.Sinusoidal("halves"),
    "learned-from-2": s.Learned(first=2),
    "nowhere": s.NoPositions(),
    "rotary-half": s.Rotary(share=0.5),
    "rotary-adjacent": s.Rotary(pairs="adjacent"),
    "rotary-linear": s.Rotary(scaling=s.LinearScaling(4.0)),
    "rotary-llama3": s.Rotary(scaling=s.LlamaScaling(8.0, 1.0, 4.0, 64)),
    "rotary-yarn": s.Rotary(scaling=s.YarnScaling(4.0, 64, sharpness=1.1)),
}
FEED_FORWARDS: dict[str, s.FeedForward] = {
    "relu2": s.Dense(20, "relu2"),
    "gelu-tanh": s.Dense(20, "gelu_tanh", bias=True),
    "gated-gelu": s.Gated(20, "gelu", bias=True),
    "dense-experts": s.Experts(4, 1, s.Dense(12, "relu")),
    "sigmoid-experts": s.Experts(
        6, 3, s.Gated(12), s.Dense(8), "sigmoid", scale=2.5, balance_bias=True
    ),
    "grouped-experts": s.Experts(
        6, 2, s.Gated(12), n_groups=3, n_active_groups=2, normalised=False
    ),
    "grouped-balanced": s.Experts(
        8, 3, s.Gated(12), None, "sigmoid", n_groups=4, n_active_groups=2, balance_bias=True
    ),
    "all-experts": s.Experts(3, 3, s.Gated(12)),
}
NORMS = {
    f"{kind}-{place}": s.Norm(kind, place)
    for kind in ("layer", "rms", "batch")
    for place in ("pre", "post")
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
    "latent-query-rank": decoder(
        s.Latent(3, 6, 4, 4, 5, q_rank=6), positions=s.Rotary(pairs="adjacent")
    ),
    "latent-one-head": decoder(s.Latent(1, 6, 4, 2, 6), scaled_embedding=True),
    "mask-predict": both(sees="all"),
    "decoder-sees-all": decoder(sees="all"),
    "masked-head": encoder(head=s.MaskedHead(), token_types=2),
    "no-head": encoder(head=None),
    "biased-head": decoder(head=s.LmHead(tied=False, bias=True)),
    "mixed-layers": s.Spec(
        23,
        16,
        decoder=s.Stack(
            (
                s.Layer(s.Heads(4, 2, 4, window=2), s.Gated(20), RMS),
                s.Layer(s.Convolution(2), s.Dense(20), s.Norm()),
                s.Layer(s.Heads(2, 2, 4), s.Experts(3, 2, s.Gated(8)), s.Norm("layer", "post")),
            ),
            "past",
        ),
        max_len=24,
    ),
}

DECODERS = {name: spec for name, spec in SPECS.items() if spec.decoder is not None}
PAST = {
    name: spec
    for name, spec in DECODERS.items()
    if spec.decoder is not None and spec.decoder.sees == "past"
}
ATTENTIVE = {
    name: spec for name, spec in SPECS.items() if "Heads(" in repr(spec) or "Latent(" in repr(spec)
}


def stirred(model: nn.Module) -> nn.Module:
    """No weight stays at its tidy start, so that a forgotten bias, gain or buffer would show."""
    with torch.no_grad():
        for weight in model.parameters():
            weight.normal_(std=0.3)
        for name, buffer in model.named_buffers():
            buffer.uniform_(0.5, 1.5) if name.endswith("variance") else buffer.normal_()
    return model.double().eval()


def build(spec: s.Spec) -> Transformer:
    model = stirred(Transformer(spec))
    assert isinstance(model, Transformer)
    return model


def random_ids(spec: s.Spec, batch: int, length: int, source: bool = False) -> Tensor:
    last = spec.source_vocab_size if source and spec.source_vocab_size else spec.vocab_size
    return torch.randint(0, last, (batch, length))


def padded(rows: list[Tensor], side: str, to: int, fill: int = 0) -> tuple[Tensor, Tensor]:
    """Sentences (length,) of different lengths as one batch, and which tokens are real."""
    ids, real = torch.full((len(rows), to), fill), torch.zeros(len(rows), to, dtype=torch.bool)
    for index, row in enumerate(rows):
        place = slice(0, len(row)) if side == "right" else slice(to - len(row), to)
        ids[index, place], real[index, place] = row, True
    return ids, real


def remembered(model: Transformer, batch: int, length: int = 5) -> Memory | None:
    """Something for cross-attention to look at, where there is an encoder and a decoder."""
    if model.encoder is None or model.decoder is None:
        return None
    return model.encode(random_ids(model.spec, batch, length, source=True))


def stream(
    model: Transformer, ids: Tensor, memory: Memory | None = None, real: Tensor | None = None
) -> Tensor:
    """The last vectors of whatever stack a model ends in, (batch, length, d_model)."""
    if model.decoder is None:
        return model.encode(ids, real).states
    return model.decode(ids, memory, real=real)


def assert_close(ours: Tensor, theirs: Tensor, atol: float = 1e-10) -> None:
    torch.testing.assert_close(ours, theirs, rtol=0, atol=atol)
