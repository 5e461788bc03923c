"""The Transformer of 2017, whole: source and target ids in, logits of the next target token out.

Section 3 of "Attention is all you need", line by line: encoder, decoder, and the tied projection to the vocabulary.
Told in docs/model.md, "The whole"; the same weights run in qkv/model/transformer.py.
"""

import math

from torch import Tensor, nn

from qkv.textbook.attention import MultiHeadAttention
from qkv.textbook.feed_forward import FeedForward
from qkv.textbook.masks import look_ahead_mask, only_real
from qkv.textbook.norms import LayerNorm
from qkv.textbook.positions import sinusoidal


class PostNorm(nn.Module):
    """The residual around every sublayer: norm(x + dropout(branch(x)))."""

    def __init__(self, branch: nn.Module, d_model: int, dropout: float):
        super().__init__()
        self.norm = LayerNorm(d_model)
        self.branch = branch
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, *context: Tensor | None) -> Tensor:
        return self.norm(x + self.dropout(self.branch(x, *context)))    # (batch, length, d_model)


class EncoderLayer(nn.Module):
    """Every source token looks at all source tokens, then thinks by itself."""

    def __init__(self, d_model: int, n_heads: int, d_ff: int, dropout: float):
        super().__init__()
        self.attn = PostNorm(MultiHeadAttention(d_model, n_heads), d_model, dropout)
        self.ffn = PostNorm(FeedForward(d_model, d_ff), d_model, dropout)

    def forward(self, x: Tensor, visible: Tensor) -> Tensor:
        x = self.attn(x, None, visible)
        return self.ffn(x)


class DecoderLayer(nn.Module):
    """Every target token looks at its past, then at the source, then thinks by itself."""

    def __init__(self, d_model: int, n_heads: int, d_ff: int, dropout: float):
        super().__init__()
        self.attn = PostNorm(MultiHeadAttention(d_model, n_heads), d_model, dropout)
        self.cross = PostNorm(MultiHeadAttention(d_model, n_heads), d_model, dropout)
        self.ffn = PostNorm(FeedForward(d_model, d_ff), d_model, dropout)

    def forward(self, x: Tensor, memory: Tensor, visible: Tensor, memory_visible: Tensor) -> Tensor:
        x = self.attn(x, None, visible)
        x = self.cross(x, memory, memory_visible)
        return self.ffn(x)


class Encoder(nn.Module):
    """N layers, one after another."""

    def __init__(self, layers: list[EncoderLayer]):
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, x: Tensor, visible: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x, visible)
        return x                                            # (batch, source, d_model)


class Decoder(nn.Module):
    """N layers, one after another, each with its own look at the encoder's result."""

    def __init__(self, layers: list[DecoderLayer]):
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, x: Tensor, memory: Tensor, visible: Tensor, memory_visible: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x, memory, visible, memory_visible)
        return x                                            # (batch, target, d_model)


def enter(ids: Tensor, embed: nn.Embedding) -> Tensor:
    """Embeddings, times sqrt(d_model) so that they outweigh the waves, plus positions; sections 3.4 and 3.5."""
    x = embed(ids) * math.sqrt(embed.embedding_dim)         # (batch, length, d_model)
    return x + sinusoidal(*x.shape[1:]).to(x)               # (batch, length, d_model)


class Transformer(nn.Module):
    """Both halves. Source and target share one vocabulary and one table, which is also the last projection.

    `source_padding` and `target_padding` are True for real tokens.
    """

    def __init__(self, vocab_size: int, d_model: int, n_layers: int, n_heads: int, d_ff: int, dropout: float = 0.0):
        super().__init__()
        self.embed = nn.Embedding(vocab_size, d_model)
        self.dropout = nn.Dropout(dropout)
        self.encoder = Encoder([EncoderLayer(d_model, n_heads, d_ff, dropout) for _ in range(n_layers)])
        self.decoder = Decoder([DecoderLayer(d_model, n_heads, d_ff, dropout) for _ in range(n_layers)])

    def encode(self, source_ids: Tensor, source_padding: Tensor) -> Tensor:
        x = self.dropout(enter(source_ids, self.embed))     # (batch, source, d_model)
        return self.encoder(x, only_real(source_padding))   # (batch, source, d_model)

    def decode(self, target_ids: Tensor, memory: Tensor, target_padding: Tensor, source_padding: Tensor) -> Tensor:
        x = self.dropout(enter(target_ids, self.embed))     # (batch, target, d_model)
        past = look_ahead_mask(target_ids.shape[1]).to(x.device)        # (target, target)
        return self.decoder(x, memory, past & only_real(target_padding), only_real(source_padding))

    def logits(self, x: Tensor) -> Tensor:
        """How well each token of the vocabulary fits: its embedding times the stream (tied weights, section 3.4)."""
        return x @ self.embed.weight.T                      # (batch, target, vocab_size)

    def forward(
        self, source_ids: Tensor, target_ids: Tensor, source_padding: Tensor, target_padding: Tensor
    ) -> Tensor:
        """Teacher forcing: target_ids is the target shifted right; logits[:, t] guess what follows target_ids[:, t]."""
        memory = self.encode(source_ids, source_padding)    # (batch, source, d_model)
        x = self.decode(target_ids, memory, target_padding, source_padding)
        return self.logits(x)                               # (batch, target, vocab_size)


class EncoderOnly(nn.Module):
    """The left half alone: token ids in, token vectors in context out. `padding` is True for real tokens."""

    def __init__(self, vocab_size: int, d_model: int, n_layers: int, n_heads: int, d_ff: int, dropout: float = 0.0):
        super().__init__()
        self.embed = nn.Embedding(vocab_size, d_model)
        self.dropout = nn.Dropout(dropout)
        self.encoder = Encoder([EncoderLayer(d_model, n_heads, d_ff, dropout) for _ in range(n_layers)])

    def forward(self, ids: Tensor, padding: Tensor) -> Tensor:
        x = self.dropout(enter(ids, self.embed))            # (batch, length, d_model)
        return self.encoder(x, only_real(padding))          # (batch, length, d_model)
