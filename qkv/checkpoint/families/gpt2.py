"""GPT-2: config.json and tensor names.

c_attn is q, k and v concatenated, and every matrix is transposed (Conv1D).
See docs/convert.md, "Families".
"""

from typing import Any

from qkv.checkpoint.families.config import (
    Config,
    biased_attention,
    group_layers,
    huggingface_activation,
)
from qkv.checkpoint.names import Family, Row, Transposed, TransposedConcat
from qkv.model.spec import Attention, Dense, Layer, Learned, LmHead, Norm, Spec, Stack

BRANCH = "decoder.layers.{i}.attn.branch"
ROWS = [
    Row("transformer.wte.{p}", "embed.{p}"),
    Row("transformer.wpe.{p}", "decoder.positions.{p}"),
    Row("transformer.h.{i}.ln_1.{p}", "decoder.layers.{i}.attn.norm.{p}"),
    TransposedConcat(
        "transformer.h.{i}.attn.c_attn.{p}", tuple(f"{BRANCH}.{name}_proj.{{p}}" for name in "qkv")
    ),
    Transposed("transformer.h.{i}.attn.c_proj.{p}", f"{BRANCH}.o_proj.{{p}}"),
    Row("transformer.h.{i}.ln_2.{p}", "decoder.layers.{i}.ffn.norm.{p}"),
    Transposed("transformer.h.{i}.mlp.c_fc.{p}", "decoder.layers.{i}.ffn.branch.up_proj.{p}"),
    Transposed("transformer.h.{i}.mlp.c_proj.{p}", "decoder.layers.{i}.ffn.branch.down_proj.{p}"),
    Row("transformer.ln_f.{p}", "decoder.norm.{p}"),
    Row("lm_head.{p}", "lm_head.{p}"),
]


def read(config: Config) -> Spec:
    config.require(
        scale_attn_weights=True, scale_attn_by_inverse_layer_idx=False, add_cross_attention=False
    )
    d_model, n_heads = config.positive_int("n_embd"), config.positive_int("n_head")
    mixer = biased_attention(n_heads, d_model)
    feed_forward = Dense(
        config.positive_int("n_inner", 4 * d_model),
        config.activation("activation_function", "gelu_new"),
        bias=True,
    )
    layer = Layer(
        mixer, feed_forward, Norm("layer", "pre", config.positive_float("layer_norm_epsilon", 1e-5))
    )
    head = None if config.is_base_model() else LmHead(tied=config.flag("tie_word_embeddings", True))
    return Spec(
        config.positive_int("vocab_size"),
        d_model,
        None,
        Stack(group_layers([layer] * config.n_layers("n_layer")), causal=True, final_norm=True),
        Learned(),
        head,
        max_len=config.positive_int("n_positions"),
        dropout=config.probability("resid_pdrop", 0.1),
    )


def write(spec: Spec) -> dict[str, Any] | None:
    layer = spec.decoder.layers[0] if spec.decoder and not spec.encoder else None
    if (
        layer is None
        or not isinstance(layer.mixer, Attention)
        or not isinstance(layer.feed_forward, Dense)
    ):
        return None
    feed_forward, head = layer.feed_forward, spec.head if isinstance(spec.head, LmHead) else None
    return {
        "model_type": "gpt2",
        "architectures": ["GPT2LMHeadModel" if head else "GPT2Model"],
        "vocab_size": spec.vocab_size,
        "n_embd": spec.d_model,
        "n_head": layer.mixer.n_heads,
        "n_inner": feed_forward.d_ff,
        "n_layer": len(spec.decoder.each_layer()) if spec.decoder else 0,
        "n_positions": spec.max_len,
        "activation_function": {"gelu_tanh": "gelu_new"}.get(
            feed_forward.activation, huggingface_activation(feed_forward.activation)
        ),
        "layer_norm_epsilon": layer.norm.eps,
        "tie_word_embeddings": bool(head and head.tied),
        "resid_pdrop": spec.dropout,
        "embd_pdrop": spec.dropout,
        "attn_pdrop": 0.0,
    }


GPT2 = Family(
    "gpt2",
    lambda spec: ROWS,
    read,
    write,
    "transformer.",
    lambda spec: (r"transformer\.h\.\d+\.attn\.(masked_)?bias",),
    {"lm_head.weight": ("transformer.wte.weight",)},
)
