"""Parts that no checkpoint family imports, against transformers: tiny random models, float64."""

import pytest
import torch
from small_models import assert_close, padded, randomize
from torch import nn

from qkv.model import spec as s
from qkv.model.alibi import slopes
from qkv.model.transformer import Transformer

D, HEADS, VOCAB = 24, 3, 29
BLOOM = s.Spec(
    VOCAB,
    D,
    decoder=s.Stack(
        (
            s.Layer(
                s.Attention(HEADS, HEADS, D // HEADS, bias=True, out_bias=True),
                s.Dense(4 * D, "gelu_tanh", bias=True),
                repeat=2,
            ),
        ),
        causal=True,
        final_norm=True,
        embed_norm=True,
    ),
    positions=s.ALiBi(),
)
BLOOM_NAMES = {
    "embed.weight": "transformer.word_embeddings.weight",
    "decoder.embed_norm": "transformer.word_embeddings_layernorm",
    "decoder.norm": "transformer.ln_f",
    "attn.norm": "input_layernorm",
    "attn.branch.o_proj": "self_attention.dense",
    "ffn.norm": "post_attention_layernorm",
    "ffn.branch.up_proj": "mlp.dense_h_to_4h",
    "ffn.branch.down_proj": "mlp.dense_4h_to_h",
    "decoder.layers": "transformer.h",
}


def bloom() -> nn.Module:
    from transformers import BloomConfig, BloomForCausalLM

    config = BloomConfig(
        vocab_size=VOCAB,
        hidden_size=D,
        n_layer=2,
        n_head=HEADS,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        pad_token_id=0,
        attn_implementation="eager",
    )
    return randomize(BloomForCausalLM(config))


def from_bloom(theirs: nn.Module) -> Transformer:
    """Our model with BLOOM's weights; its q, k and v are side by side in each head."""
    ours, state, weights = Transformer(BLOOM).double().eval(), theirs.state_dict(), {}
    for name in ours.state_dict():
        foreign = name
        for native, other in BLOOM_NAMES.items():
            foreign = foreign.replace(native, other)
        layer, _, projection = foreign.partition("attn.branch.")
        if projection:  # "q_proj.weight"
            fused = state[f"{layer}self_attention.query_key_value.{projection.split('.')[1]}"]
            fused = fused.unflatten(0, (HEADS, 3, -1))[:, "qkv".index(projection[0])]
            weights[name] = fused.flatten(0, 1)
        else:
            weights[name] = state[foreign]
    ours.load_state_dict(weights)
    return ours


@pytest.mark.parametrize("n_heads", range(1, 41))
def test_slopes_equal_those_of_transformers(n_heads):
    from transformers.models.bloom.modeling_bloom import build_alibi_tensor

    theirs = build_alibi_tensor(torch.ones(1, 2, dtype=torch.long), n_heads, torch.float64)
    assert_close(torch.tensor(slopes(n_heads), dtype=torch.float64), theirs[:, 0, 1], 1e-7)


@pytest.mark.parametrize("side", ["left", "right"])
@torch.no_grad()
def test_alibi_equals_bloom(side):
    theirs = bloom()  # row by row: it gives NaN for rows with padding on the left
    ours, rows = from_bloom(theirs), [torch.randint(0, VOCAB, (n,)) for n in (11, 7, 4)]
    ids, attention_mask = padded(rows, side, to=12)
    logits = ours.logits(ours.decode(ids, attention_mask=attention_mask))
    for index, row in enumerate(rows):
        # the slopes of transformers are float32
        assert_close(logits[index][attention_mask[index]], theirs(row[None]).logits[0], 1e-6)
