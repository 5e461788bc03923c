"""A model is a value: a small frozen tree that says everything about the architecture and nothing about weights.

In: choices, each a type with exactly its own fields. Out: a Spec, comparable and saved as model.json.
Read and checked at the door by model/door.py. Told in docs/model.md, "A model is a value".
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

Activation = Literal["relu", "relu2", "gelu", "gelu_tanh", "silu"]


class _Strict:
    """Unknown fields in a file are errors, so that a typing mistake is never ignored."""

    __pydantic_config__: ClassVar = {"extra": "forbid"}


# ── Positions ────────────────────────────────────────────────────────────────────────────────────────────────────
@dataclass(frozen=True)
class Sinusoidal(_Strict):
    """sin and cos of many wavelengths, added to the embeddings; the paper alternates them, Marian keeps two halves."""

    layout: Literal["alternating", "halves"] = "alternating"
    kind: Literal["sinusoidal"] = "sinusoidal"


@dataclass(frozen=True)
class Learned(_Strict):
    """A trained table added to the embeddings; RoBERTa and BART start counting at `first`."""

    first: int = 0
    kind: Literal["learned"] = "learned"


@dataclass(frozen=True)
class LinearScaling(_Strict):
    """All places are divided by `factor`."""

    factor: float
    kind: Literal["linear"] = "linear"


@dataclass(frozen=True)
class LlamaScaling(_Strict):
    """Llama 3.1: waves longer than the first context are slowed by `factor`, short ones stay, with a ramp between."""

    factor: float
    low_factor: float
    high_factor: float
    first_len: int
    kind: Literal["llama3"] = "llama3"


@dataclass(frozen=True)
class YarnScaling(_Strict):
    """YaRN: slow waves are interpolated, fast ones kept, and scores sharpened a little."""

    factor: float
    first_len: int
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    sharpness: float = 1.0  # multiplies cos and sin
    score_sharpness: float = 1.0  # multiplies the scores of latent attention
    kind: Literal["yarn"] = "yarn"


@dataclass(frozen=True)
class Rotary(_Strict):
    """Queries and keys are turned by an angle that grows with their place, so scores depend on distances only."""

    base: float = 10_000.0
    share: float = 1.0  # the part of each head that is turned
    pairs: Literal["halves", "adjacent"] = "halves"
    scaling: LinearScaling | LlamaScaling | YarnScaling | None = None
    kind: Literal["rotary"] = "rotary"


@dataclass(frozen=True)
class NoPositions(_Strict):
    """A bag of words, or an order that only the causal mask tells."""

    kind: Literal["none"] = "none"


Positions = Sinusoidal | Learned | Rotary | NoPositions


# ── Token mixers ─────────────────────────────────────────────────────────────────────────────────────────────────
@dataclass(frozen=True)
class Heads(_Strict):
    """Grouped attention: as many key/value heads as heads is 2017's form, a single one is multi-query."""

    n_heads: int
    n_kv_heads: int
    d_head: int
    window: int | None = None  # how many places back a token sees, itself included; None: all
    bias: bool = False
    out_bias: bool = False
    qk_norm: bool = False  # RMSNorm on each head's q and k
    kind: Literal["heads"] = "heads"


@dataclass(frozen=True)
class Latent(_Strict):
    """Latent attention: keys and values are unfolded from one short vector per token, and only that one is cached."""

    n_heads: int
    kv_rank: int
    d_nope: int  # the part of a head that carries content
    d_rope: int  # the part that carries the place; its key is shared by all heads
    d_value: int
    q_rank: int | None = None
    kind: Literal["latent"] = "latent"


@dataclass(frozen=True)
class Recurrent(_Strict):
    """An LSTM or GRU in attention's place; in both directions where all may be seen."""

    cell: Literal["lstm", "gru"] = "lstm"
    kind: Literal["recurrent"] = "recurrent"


@dataclass(frozen=True)
class Convolution(_Strict):
    """A convolution over `width` places: the last ones in a decoder, centred ones in an encoder."""

    width: int
    kind: Literal["convolution"] = "convolution"


@dataclass(frozen=True)
class TokenMlp(_Strict):
    """Two linear maps across places, one table for all inputs (MLP-Mixer); the past only in a decoder."""

    kind: Literal["token_mlp"] = "token_mlp"


@dataclass(frozen=True)
class Pooling(_Strict):
    """The mean of `width` places minus the token itself (MetaFormer's simplest mixer; no parameters)."""

    width: int
    kind: Literal["pooling"] = "pooling"


Mixer = Heads | Latent | Recurrent | Convolution | TokenMlp | Pooling


# ── Feed-forward ─────────────────────────────────────────────────────────────────────────────────────────────────
@dataclass(frozen=True)
class Dense(_Strict):
    """down(act(up(x))): the paper's."""

    d_ff: int
    activation: Activation = "relu"
    bias: bool = False
    kind: Literal["dense"] = "dense"


@dataclass(frozen=True)
class Gated(_Strict):
    """down(act(gate(x)) * up(x)): SwiGLU when act is silu."""

    d_ff: int
    activation: Activation = "silu"
    bias: bool = False
    kind: Literal["gated"] = "gated"


@dataclass(frozen=True)
class Experts(_Strict):
    """A router sends each token to `n_active` of `n_experts` feed-forwards; a shared one answers every token."""

    n_experts: int
    n_active: int
    each: Dense | Gated
    shared: Dense | Gated | None = None
    scoring: Literal["softmax", "sigmoid"] = "softmax"
    normalised: bool = True  # the chosen weights are divided by their sum
    scale: float = 1.0  # and then multiplied by this
    n_groups: int = 1  # DeepSeek: first choose groups of experts,
    n_active_groups: int = 1  # so many of them, then experts inside
    balance_bias: bool = False  # DeepSeek V3: a bias added for choosing only
    kind: Literal["experts"] = "experts"


FeedForward = Dense | Gated | Experts


# ── The tree ─────────────────────────────────────────────────────────────────────────────────────────────────────
@dataclass(frozen=True)
class Norm(_Strict):
    """What keeps the stream's size in bounds, and where it stands: before each branch (pre) or after the sum (post)."""

    kind: Literal["layer", "rms", "batch"] = "layer"
    place: Literal["pre", "post"] = "pre"
    eps: float = 1e-5


@dataclass(frozen=True)
class Layer(_Strict):
    """`repeat` blocks alike: mix tokens, (look at the encoder's memory,) then think about each token alone."""

    mixer: Mixer
    feed_forward: FeedForward
    norm: Norm = Norm()
    cross: Heads | None = None
    repeat: int = 1


@dataclass(frozen=True)
class Stack(_Strict):
    """Layers one after the other; a final or an embedding norm is of the same kind as that of the layer beside it."""

    layers: tuple[Layer, ...]
    sees: Literal["all", "past"] = "all"
    final_norm: bool = False
    embed_norm: bool = False

    def each_layer(self) -> list[Layer]:
        """The layers one by one, repeats written out."""
        return [layer for layer in self.layers for _ in range(layer.repeat)]


@dataclass(frozen=True)
class LmHead(_Strict):
    """Stream to logits; tied: the embedding table read the other way round."""

    tied: bool = True
    bias: bool = False
    kind: Literal["lm"] = "lm"


@dataclass(frozen=True)
class MaskedHead(_Strict):
    """BERT's way to logits: a linear map, an activation and a norm, then the tied table with a bias."""

    activation: Activation = "gelu"
    kind: Literal["masked"] = "masked"


@dataclass(frozen=True)
class Pooler(_Strict):
    """BERT's sentence vector: tanh of a linear map of the first token."""

    kind: Literal["pooler"] = "pooler"


Head = LmHead | MaskedHead | Pooler


@dataclass(frozen=True)
class Spec(_Strict):
    """A whole model. Which stacks are present is the family; both: the decoder has cross-attention."""

    vocab_size: int
    d_model: int
    encoder: Stack | None = None
    decoder: Stack | None = None
    positions: Positions = Rotary()
    head: Head | None = LmHead()
    source_vocab_size: int | None = None  # None: one vocabulary for both sides
    scaled_embedding: bool = False  # embeddings times sqrt(d_model)
    token_types: int = 0  # BERT's sentence A and B
    max_len: int = 1_024
    dropout: float = 0.0
