"""A decoder-only model of the Llama family: logits of the next token at every position.

RMS pre-norm, rotary positions, grouped-query attention, SwiGLU, no biases. The same weights run in
qkv/model/transformer.py. See docs/explanation/model.md, "Transformer".
"""

from torch import Tensor, nn

from qkv.textbook.attention import MultiHeadAttention
from qkv.textbook.feed_forward import GatedFeedForward
from qkv.textbook.masks import causal_mask
from qkv.textbook.norms import RMSNorm
from qkv.textbook.positions import rotate_halves

__all__ = ["Decoder", "DecoderOnly", "Layer", "PreNorm", "PreNormOnly"]


class PreNorm(nn.Module):
    """Pre-norm residual: x + branch(norm(x)); the residual stream itself is not normalized."""

    def __init__(self, branch: nn.Module, d_model: int):
        super().__init__()
        self.norm = RMSNorm(d_model)
        self.branch = branch

    def forward(self, x: Tensor, *context: Tensor | None) -> Tensor:
        return x + self.branch(self.norm(x), *context)      # (batch, length, d_model)


class PreNormOnly(PreNorm):
    """A sublayer without the residual connection, to show what the sum is for: branch(norm(x)).

    Gradients reach the layers below through the branch only, so they vanish with the depth.
    """

    def forward(self, x: Tensor, *context: Tensor | None) -> Tensor:
        return self.branch(self.norm(x), *context)          # (batch, length, d_model)


class Layer(nn.Module):
    """Causal self-attention, then the feed-forward."""

    def __init__(self, d_model: int, n_heads: int, n_kv_heads: int, d_ff: int):
        super().__init__()
        attention = MultiHeadAttention(
            d_model, n_heads, n_kv_heads, bias=False, rotate=rotate_halves
        )
        self.attn = PreNorm(attention, d_model)
        self.ffn = PreNorm(GatedFeedForward(d_model, d_ff), d_model)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        x = self.attn(x, None, mask)
        return self.ffn(x)


class Decoder(nn.Module):
    """N layers and the final norm."""

    def __init__(self, layers: list[Layer], d_model: int):
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.norm = RMSNorm(d_model)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x, mask)
        return self.norm(x)                                 # (batch, length, d_model)


class DecoderOnly(nn.Module):
    """Embedding, decoder and language-model head."""

    def __init__(
        self,
        vocab_size: int,
        d_model: int,
        n_layers: int,
        n_heads: int,
        n_kv_heads: int,
        d_ff: int,
    ):
        super().__init__()
        self.embed = nn.Embedding(vocab_size, d_model)
        layers = [Layer(d_model, n_heads, n_kv_heads, d_ff) for _ in range(n_layers)]
        self.decoder = Decoder(layers, d_model)
        self.lm_head = nn.Linear(d_model, vocab_size, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        mask = causal_mask(ids.shape[1]).to(ids.device)     # (query, key)
        x = self.decoder(self.embed(ids), mask)             # (batch, length, d_model)
        return self.lm_head(x)                              # (batch, length, vocab_size)
