"""The spec of a model: a frozen tree of dataclasses that defines the architecture, without weights.

Each choice is a type with exactly the fields it needs. A spec is saved as model.json; spec_io reads
and check_spec checks it. See docs/explanation/model.md, "Spec".
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

from qkv.model.custom_spec import Custom as Custom
from qkv.model.position_spec import ALiBi as ALiBi
from qkv.model.position_spec import Learned as Learned
from qkv.model.position_spec import LinearScaling as LinearScaling
from qkv.model.position_spec import LlamaScaling as LlamaScaling
from qkv.model.position_spec import NoPositions as NoPositions
from qkv.model.position_spec import Positions as Positions
from qkv.model.position_spec import Rotary as Rotary
from qkv.model.position_spec import Scaling as Scaling
from qkv.model.position_spec import Sinusoidal as Sinusoidal
from qkv.model.position_spec import YarnScaling as YarnScaling

__all__ = [
    "Activation", "Attention", "Convolution", "Custom", "Dense", "FeedForward", "Gated", "Head",
    "LatentAttention", "Layer", "Learned", "LinearScaling", "LlamaScaling", "LmHead", "MaskedHead",
    "Mixer", "MixtureOfExperts", "NoPositions", "Norm", "Pooler", "Pooling", "Positions",
    "Recurrent", "Rotary", "Scaling", "Sinusoidal", "Spec", "Stack", "TokenMlp", "YarnScaling",
]

Activation = Literal["relu", "relu2", "gelu", "gelu_tanh", "silu"]


# ── Token mixers ──────────────────────────────────────────────────────────────────────────────────
@dataclass(frozen=True)
class Attention:
    """Grouped-query attention (GQA): n_kv_heads == n_heads is multi-head (2017), 1 multi-query."""

    n_heads: int
    n_kv_heads: int
    d_head: int
    window: int | None = None  # sliding window: positions a token attends to, itself included
    bias: bool = False
    out_bias: bool = False
    qk_norm: bool = False  # RMSNorm on q and k of each head
    dropout: float = 0.0  # fraction of the attention weights set to zero in training
    kind: Literal["attention"] = "attention"


@dataclass(frozen=True)
class LatentAttention:
    """Multi-head latent attention (MLA): keys and values from one low-rank latent per token."""

    n_heads: int
    kv_lora_rank: int
    qk_nope_head_dim: int  # dimensions of a head without RoPE
    qk_rope_head_dim: int  # dimensions with RoPE; their key is shared by all heads
    v_head_dim: int
    q_lora_rank: int | None = None
    kind: Literal["latent_attention"] = "latent_attention"


@dataclass(frozen=True)
class Recurrent:
    """An LSTM or GRU instead of attention; bidirectional in a stack that is not causal."""

    cell: Literal["lstm", "gru"] = "lstm"
    kind: Literal["recurrent"] = "recurrent"


@dataclass(frozen=True)
class Convolution:
    """A convolution over `width` positions, `dilation` apart: the last if causal, else centered."""

    width: int
    dilation: int = 1
    kind: Literal["convolution"] = "convolution"


@dataclass(frozen=True)
class TokenMlp:
    """MLP-Mixer: two linear maps across positions, lower triangular if causal."""

    kind: Literal["token_mlp"] = "token_mlp"


@dataclass(frozen=True)
class Pooling:
    """The mean of `width` positions minus the token itself (PoolFormer; no parameters)."""

    width: int
    kind: Literal["pooling"] = "pooling"


Mixer = Attention | LatentAttention | Recurrent | Convolution | TokenMlp | Pooling | Custom


# ── Feed-forward ──────────────────────────────────────────────────────────────────────────────────
@dataclass(frozen=True)
class Dense:
    """The feed-forward of 2017: down(act(up(x)))."""

    d_ff: int
    activation: Activation = "relu"
    bias: bool = False
    kind: Literal["dense"] = "dense"


@dataclass(frozen=True)
class Gated:
    """Gated linear unit: down(act(gate(x)) * up(x)); SwiGLU with silu."""

    d_ff: int
    activation: Activation = "silu"
    bias: bool = False
    kind: Literal["gated"] = "gated"


@dataclass(frozen=True)
class MixtureOfExperts:
    """Mixture of experts (MoE): a router sends each token to `n_experts_per_token` experts.

    The shared expert, if there is one, processes every token.
    """

    n_experts: int
    n_experts_per_token: int
    expert: Dense | Gated
    shared_expert: Dense | Gated | None = None
    scoring: Literal["softmax", "sigmoid"] = "softmax"
    norm_topk_prob: bool = True  # divide the selected experts' weights by their sum
    routed_scaling_factor: float = 1.0  # then multiply them by this
    n_groups: int = 1  # DeepSeek: select `n_active_groups` groups of experts first,
    n_active_groups: int = 1  # then experts within them
    score_correction_bias: bool = False  # DeepSeek-V3: a bias for the selection only
    kind: Literal["mixture_of_experts"] = "mixture_of_experts"


FeedForward = Dense | Gated | MixtureOfExperts | Custom


# ── The tree ──────────────────────────────────────────────────────────────────────────────────────
@dataclass(frozen=True)
class Norm:
    """The norm of each residual branch: before the branch (pre) or after the sum (post, 2017)."""

    kind: Literal["layer", "rms", "batch"] = "layer"
    placement: Literal["pre", "post"] = "pre"
    eps: float = 1e-5


@dataclass(frozen=True)
class Layer:
    """`repeat` identical blocks: token mixer, optional cross-attention, feed-forward or none."""

    mixer: Mixer
    feed_forward: FeedForward | None
    norm: Norm = Norm()
    cross: Attention | None = None
    repeat: int = 1
    residual: bool = True  # false: branch(norm(x)) or norm(branch(x)), without adding x


@dataclass(frozen=True)
class Stack:
    """An encoder or decoder; final and embedding norm are of the kind of the adjacent layer's."""

    layers: tuple[Layer, ...]
    causal: bool = False
    final_norm: bool = False
    embed_norm: bool = False

    def each_layer(self) -> list[Layer]:
        """All layers, with repeats expanded."""
        return [layer for layer in self.layers for _ in range(layer.repeat)]


@dataclass(frozen=True)
class LmHead:
    """Language-model head: hidden states to logits; tied: with the embedding table."""

    tied: bool = True
    bias: bool = False
    kind: Literal["lm"] = "lm"


@dataclass(frozen=True)
class MaskedHead:
    """BERT's MLM head: a linear map, an activation and a norm, then the tied table with a bias."""

    activation: Activation = "gelu"
    kind: Literal["masked"] = "masked"


@dataclass(frozen=True)
class Pooler:
    """BERT's sentence vector: tanh of a linear map of the first token."""

    kind: Literal["pooler"] = "pooler"


Head = LmHead | MaskedHead | Pooler


@dataclass(frozen=True)
class Spec:
    """A model: encoder-only, decoder-only, or both with cross-attention in the decoder.

    Example:
        layer = Layer(Attention(4, 4, 32), Dense(512, "gelu"), Norm("layer", "pre"), repeat=6)
        spec = qkv.Spec(vocab_size=8_000, d_model=128, decoder=Stack((layer,), causal=True))
        model = qkv.Transformer(spec)

    Attributes:
        vocab_size: Tokens of the vocabulary; of the target's, if the source has its own.
        d_model: Width of the residual stream.
        encoder, decoder: The layer stacks; None: the model has none.
        positions: The position encoding.
        head: The output layer; None: hidden states are the output.
        source_vocab_size: Tokens of the source vocabulary; None: shared with the target.
        scaled_embedding: Whether embeddings are multiplied by sqrt(d_model).
        token_types: The number of token types (BERT's segments A and B).
        max_len: The longest sequence in tokens.
        dropout: The fraction of activations set to zero in training.
    """

    __pydantic_config__: ClassVar = {"extra": "forbid"}  # unknown fields of any part are errors

    vocab_size: int
    d_model: int
    encoder: Stack | None = None
    decoder: Stack | None = None
    positions: Positions = Rotary()  # noqa: RUF009 (a frozen dataclass)
    head: Head | None = LmHead()
    source_vocab_size: int | None = None  # None: source and target share one vocabulary
    scaled_embedding: bool = False  # multiply embeddings by sqrt(d_model)
    token_types: int = 0  # BERT's segments A and B
    max_len: int = 1_024
    dropout: float = 0.0
