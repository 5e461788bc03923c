"""GPT-2: config.json and tensor names.

c_attn is q, k and v concatenated, and every matrix is transposed (Conv1D).
See docs/guides/import-export.md, "Families".
"""

from qkv.checkpoint.families.config import Config
from qkv.checkpoint.families.dense import DenseFields
from qkv.checkpoint.names import Family, Fields, Row, Transposed, TransposedConcat
from qkv.model.spec import Learned, LmHead, Norm, Spec, Stack

__all__ = ["ROWS"]

BRANCH = "decoder.layers.{i}.attn.branch"
ROWS = [
    Row("transformer.wte.{p}", "embed.{p}"),
    Row("transformer.wpe.{p}", "decoder.positions.{p}"),
    Row("transformer.h.{i}.ln_1.{p}", "decoder.layers.{i}.attn.norm.{p}"),
    TransposedConcat(
        "transformer.h.{i}.attn.c_attn.{p}",
        (f"{BRANCH}.q_proj.{{p}}", f"{BRANCH}.k_proj.{{p}}", f"{BRANCH}.v_proj.{{p}}"),
    ),
    Transposed("transformer.h.{i}.attn.c_proj.{p}", f"{BRANCH}.o_proj.{{p}}"),
    Row("transformer.h.{i}.ln_2.{p}", "decoder.layers.{i}.ffn.norm.{p}"),
    Transposed("transformer.h.{i}.mlp.c_fc.{p}", "decoder.layers.{i}.ffn.branch.up_proj.{p}"),
    Transposed("transformer.h.{i}.mlp.c_proj.{p}", "decoder.layers.{i}.ffn.branch.down_proj.{p}"),
    Row("transformer.ln_f.{p}", "decoder.norm.{p}"),
    Row("lm_head.{p}", "lm_head.{p}"),
]
FIELDS = DenseFields(
    "n_embd",
    "n_positions",
    "resid_pdrop",
    "n_layer",
    "n_head",
    "n_inner",
    "activation_function",
    "layer_norm_epsilon",
)


def read(config: Config) -> Spec:
    config.require(
        scale_attn_weights=True, scale_attn_by_inverse_layer_idx=False, add_cross_attention=False
    )
    d_ff = 4 * config.positive_int("n_embd")
    layer = FIELDS.read_layer(config, Norm("layer", "pre"), d_ff, "gelu_new")
    return Spec(
        decoder=Stack((layer,), causal=True, final_norm=True),
        positions=Learned(),
        head=config.lm_head(tied=True),
        **FIELDS.read_sizes(config),
    )


def write(spec: Spec) -> Fields:
    return FIELDS.write(spec, None if spec.encoder else spec.decoder) | {
        "tie_word_embeddings": isinstance(spec.head, LmHead) and spec.head.tied,
        "embd_pdrop": spec.dropout,
        "attn_pdrop": 0.0,
    }


GPT2 = Family(
    "GPT2",
    lambda spec: ROWS,
    read,
    write,
    (r"transformer\.h\.\d+\.attn\.(masked_)?bias",),
    {"lm_head.weight": ("transformer.wte.weight",)},
    prefix="transformer.",
    head="LMHeadModel",
)
