"""The Transformer of 2017, section 3 of "Attention is all you need": encoder, decoder, tied output.

The same weights run in qkv/model/transformer.py. See docs/explanation/model.md, "Transformer".
"""

import math

from torch import Tensor, nn

from qkv.textbook.attention import MultiHeadAttention
from qkv.textbook.feed_forward import FeedForward
from qkv.textbook.masks import causal_mask, padding_mask
from qkv.textbook.norms import LayerNorm
from qkv.textbook.positions import sinusoidal

__all__ = [
    "Decoder", "DecoderLayer", "Encoder", "EncoderLayer",
    "EncoderOnly", "PostNorm", "PostNormOnly", "Transformer",
    "embed_ids",
]


class PostNorm(nn.Module):
    """Post-norm residual: norm(x + dropout(branch(x)))."""

    def __init__(self, branch: nn.Module, d_model: int, dropout: float):
        super().__init__()
        self.norm = LayerNorm(d_model)
        self.branch = branch
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, *context: Tensor | None) -> Tensor:
        return self.norm(x + self.dropout(self.branch(x, *context)))    # (batch, length, d_model)


class PostNormOnly(PostNorm):
    """A sublayer without the residual connection: norm(dropout(branch(x)))."""

    def forward(self, x: Tensor, *context: Tensor | None) -> Tensor:
        return self.norm(self.dropout(self.branch(x, *context)))        # (batch, length, d_model)


class EncoderLayer(nn.Module):
    """Self-attention, then the feed-forward."""

    def __init__(self, d_model: int, n_heads: int, d_ff: int, dropout: float):
        super().__init__()
        self.attn = PostNorm(MultiHeadAttention(d_model, n_heads), d_model, dropout)
        self.ffn = PostNorm(FeedForward(d_model, d_ff), d_model, dropout)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        x = self.attn(x, None, mask)
        return self.ffn(x)


class DecoderLayer(nn.Module):
    """Causal self-attention, then cross-attention to the memory, then the feed-forward."""

    def __init__(self, d_model: int, n_heads: int, d_ff: int, dropout: float):
        super().__init__()
        self.attn = PostNorm(MultiHeadAttention(d_model, n_heads), d_model, dropout)
        self.cross = PostNorm(MultiHeadAttention(d_model, n_heads), d_model, dropout)
        self.ffn = PostNorm(FeedForward(d_model, d_ff), d_model, dropout)

    def forward(self, x: Tensor, memory: Tensor, mask: Tensor, memory_mask: Tensor) -> Tensor:
        x = self.attn(x, None, mask)
        x = self.cross(x, memory, memory_mask)
        return self.ffn(x)


class Encoder(nn.Module):
    """N encoder layers."""

    def __init__(self, layers: list[EncoderLayer]):
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x, mask)
        return x                                            # (batch, source, d_model)


class Decoder(nn.Module):
    """N decoder layers; each attends to the encoder's output."""

    def __init__(self, layers: list[DecoderLayer]):
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, x: Tensor, memory: Tensor, mask: Tensor, memory_mask: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x, memory, mask, memory_mask)
        return x                                            # (batch, target, d_model)


def embed_ids(ids: Tensor, embed: nn.Embedding) -> Tensor:
    """Embeddings times sqrt(d_model) plus sinusoidal positions; sections 3.4 and 3.5."""
    x = embed(ids) * math.sqrt(embed.embedding_dim)         # (batch, length, d_model)
    return x + sinusoidal(*x.shape[1:]).to(x)               # (batch, length, d_model)


class Transformer(nn.Module):
    """Encoder-decoder with one vocabulary and one table for source, target and output.

    `source_mask` and `target_mask` are attention masks (batch, length), True = token.
    """

    def __init__(
        self,
        vocab_size: int,
        d_model: int,
        n_layers: int,
        n_heads: int,
        d_ff: int,
        dropout: float = 0.0,
    ):
        super().__init__()
        sizes = d_model, n_heads, d_ff, dropout
        self.embed = nn.Embedding(vocab_size, d_model)
        self.dropout = nn.Dropout(dropout)
        self.encoder = Encoder([EncoderLayer(*sizes) for _ in range(n_layers)])
        self.decoder = Decoder([DecoderLayer(*sizes) for _ in range(n_layers)])

    def encode(self, source_ids: Tensor, source_mask: Tensor) -> Tensor:
        x = self.dropout(embed_ids(source_ids, self.embed))     # (batch, source, d_model)
        return self.encoder(x, padding_mask(source_mask))   # (batch, source, d_model)

    def decode(
        self, target_ids: Tensor, memory: Tensor, target_mask: Tensor, source_mask: Tensor
    ) -> Tensor:
        x = self.dropout(embed_ids(target_ids, self.embed))     # (batch, target, d_model)
        causal = causal_mask(target_ids.shape[1]).to(x.device)  # (target, target)
        mask = causal & padding_mask(target_mask)           # (batch, 1, target, target)
        return self.decoder(x, memory, mask, padding_mask(source_mask))

    def logits(self, x: Tensor) -> Tensor:
        """Logits with tied weights: the embedding table is the output projection (section 3.4)."""
        return x @ self.embed.weight.T                      # (batch, target, vocab_size)

    def forward(
        self, source_ids: Tensor, target_ids: Tensor, source_mask: Tensor, target_mask: Tensor
    ) -> Tensor:
        """Teacher forcing: target_ids is shifted right; logits[:, t] predict target t + 1."""
        memory = self.encode(source_ids, source_mask)       # (batch, source, d_model)
        x = self.decode(target_ids, memory, target_mask, source_mask)
        return self.logits(x)                               # (batch, target, vocab_size)


class EncoderOnly(nn.Module):
    """The encoder alone: token ids to hidden states. `attention_mask` is True for tokens."""

    def __init__(
        self,
        vocab_size: int,
        d_model: int,
        n_layers: int,
        n_heads: int,
        d_ff: int,
        dropout: float = 0.0,
    ):
        super().__init__()
        sizes = d_model, n_heads, d_ff, dropout
        self.embed = nn.Embedding(vocab_size, d_model)
        self.dropout = nn.Dropout(dropout)
        self.encoder = Encoder([EncoderLayer(*sizes) for _ in range(n_layers)])

    def forward(self, ids: Tensor, attention_mask: Tensor) -> Tensor:
        x = self.dropout(embed_ids(ids, self.embed))        # (batch, length, d_model)
        return self.encoder(x, padding_mask(attention_mask))    # (batch, length, d_model)
