"""ALiBi and sliding windows against transformers: tiny random models, float64."""

import pytest
import torch
from small_models import assert_close, padded, randomize
from torch import nn

from qkv.checkpoint.families import FAMILIES
from qkv.checkpoint.names import resolve_rows
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


def mistral(window: int) -> tuple[nn.Module, Transformer]:
    """A tiny Mistral of transformers, and our model with its weights."""
    from transformers import MistralConfig, MistralForCausalLM

    config = MistralConfig(
        vocab_size=VOCAB,
        hidden_size=D,
        intermediate_size=40,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=6,
        sliding_window=window,
        attn_implementation="eager",
    )
    theirs = MistralForCausalLM(config).double().eval()
    with torch.no_grad():
        for weight in theirs.parameters():  # its rotary frequencies are a buffer
            weight.normal_(std=0.3)
    layer = s.Layer(s.Attention(4, 2, 6, window), s.Gated(40), s.Norm("rms", eps=1e-6), repeat=2)
    stack = s.Stack((layer,), causal=True, final_norm=True)
    ours = Transformer(s.Spec(VOCAB, D, decoder=stack, head=s.LmHead(tied=False))).double().eval()
    weights, state = {}, theirs.state_dict()
    rows = FAMILIES["mistral"].rows(ours.spec)
    for _row, (foreign,), (native,) in resolve_rows(rows, ours.state_dict()):
        weights[native] = state[foreign]
    ours.load_state_dict(weights)
    return theirs, ours


@pytest.mark.parametrize("window", [3, 8])
@torch.no_grad()
def test_a_banded_window_equals_mistral(window):
    theirs, ours = mistral(window)
    rows = [torch.randint(0, VOCAB, (n,)) for n in (37, 20)]
    for row in rows:
        wanted, cache = theirs(row[None]).logits, ours.new_cache()
        assert_close(ours.logits(ours.decode(row[None])), wanted, 1e-5)
        cuts = [10, 5, *[1] * (len(row) - 15)]
        steps = [ours.decode(piece[None], cache=cache) for piece in row.split(cuts)]
        assert_close(ours.logits(torch.cat(steps, dim=1)), wanted, 1e-5)
