"""GPT-2: q, k and v side by side in c_attn, and every matrix turned (Conv1D).

In: its config.json. Out: our spec, and back. Told in docs/convert.md, "Families".
"""

from typing import Any

from qkv.checkpoint.families.config import Config, biased_heads, grouped, their_activation
from qkv.checkpoint.names import Family, Joined, Row, Turned
from qkv.model.spec import Dense, Heads, Layer, Learned, LmHead, Norm, Spec, Stack

BRANCH = "decoder.layers.{i}.attn.branch"
ROWS = [
    Row("transformer.wte.{p}", "embed.{p}"),
    Row("transformer.wpe.{p}", "decoder.positions.{p}"),
    Row("transformer.h.{i}.ln_1.{p}", "decoder.layers.{i}.attn.norm.{p}"),
    Joined(
        "transformer.h.{i}.attn.c_attn.{p}", tuple(f"{BRANCH}.{name}_proj.{{p}}" for name in "qkv")
    ),
    Turned("transformer.h.{i}.attn.c_proj.{p}", f"{BRANCH}.o_proj.{{p}}"),
    Row("transformer.h.{i}.ln_2.{p}", "decoder.layers.{i}.ffn.norm.{p}"),
    Turned("transformer.h.{i}.mlp.c_fc.{p}", "decoder.layers.{i}.ffn.branch.up_proj.{p}"),
    Turned("transformer.h.{i}.mlp.c_proj.{p}", "decoder.layers.{i}.ffn.branch.down_proj.{p}"),
    Row("transformer.ln_f.{p}", "decoder.norm.{p}"),
    Row("lm_head.{p}", "lm_head.{p}"),
]


def read(config: Config) -> Spec:
    config.only(
        scale_attn_weights=True, scale_attn_by_inverse_layer_idx=False, add_cross_attention=False
    )
    d_model, n_heads = config.whole("n_embd"), config.whole("n_head")
    mixer = biased_heads(n_heads, d_model)
    part = Dense(
        config.whole("n_inner", 4 * d_model),
        config.activation("activation_function", "gelu_new"),
        bias=True,
    )
    layer = Layer(mixer, part, Norm("layer", "pre", config.number("layer_norm_epsilon", 1e-5)))
    head = None if config.is_bare() else LmHead(tied=config.flag("tie_word_embeddings", True))
    return Spec(
        config.whole("vocab_size"),
        d_model,
        None,
        Stack(grouped([layer] * config.layers("n_layer")), "past", final_norm=True),
        Learned(),
        head,
        max_len=config.whole("n_positions"),
        dropout=config.share("resid_pdrop", 0.1),
    )


def write(spec: Spec) -> dict[str, Any] | None:
    layer = spec.decoder.layers[0] if spec.decoder and not spec.encoder else None
    if (
        layer is None
        or not isinstance(layer.mixer, Heads)
        or not isinstance(layer.feed_forward, Dense)
    ):
        return None
    part, head = layer.feed_forward, spec.head if isinstance(spec.head, LmHead) else None
    return {
        "model_type": "gpt2",
        "architectures": ["GPT2LMHeadModel" if head else "GPT2Model"],
        "vocab_size": spec.vocab_size,
        "n_embd": spec.d_model,
        "n_head": layer.mixer.n_heads,
        "n_inner": part.d_ff,
        "n_layer": len(spec.decoder.each_layer()) if spec.decoder else 0,
        "n_positions": spec.max_len,
        "activation_function": {"gelu_tanh": "gelu_new"}.get(
            part.activation, their_activation(part.activation)
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
