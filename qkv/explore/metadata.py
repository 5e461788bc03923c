"""Model metadata for the page: sizes, stacks, supported views, limits, examples, kinds of steps.

See docs/explore.md.
"""

from typing import Any

from qkv.explore.explored_model import ExploredModel
from qkv.explore.kinds import as_both, code_for_page, kinds_for_page, kinds_of
from qkv.explore.passes import MAX_TOKENS
from qkv.messages import Both, both, current_language
from qkv.model import spec as s
from qkv.model.head import LmHead

MAX_CHARACTERS = 4_000  # of a text
MAX_SENTENCES = 64  # to compare with

FAMILY = {
    "translator": both("encoder-decoder (translation)"),
    "generator": both("decoder-only (text generation)"),
    "embedder": both("encoder-only (embeddings)"),
}
NORM = {"layer": "LayerNorm", "rms": "RMSNorm", "batch": "BatchNorm"}
NORM_PLACEMENT = {"pre": both("pre-norm"), "post": both("post-norm")}
POSITIONS = {
    "sinusoidal": both("sinusoidal, added to the embeddings"),
    "learned": both("learned, added to the embeddings"),
    "rotary": both("rotary position embedding (RoPE)"),
    "none": both("none"),
}
PARTS = {
    "embed": both("Embedding"),
    "attn": both("Self-attention"),
    "cross": both("Cross-attention"),
    "ffn": both("Feed-forward network"),
    "output": both("Output"),
    "pool": both("Sentence vector"),
}
EXAMPLES = {
    "translator": [
        "机器学习很有趣",
        "我爱机器学习",
        "A little girl climbs into a house.",
        "a little girl climbs into a house",
        "ein kleines mädchen klettert in ein haus",
    ],
    "generator": ["今天天气真好", "Once upon a time, there was"],
    "embedder": [
        "The animal didn't cross the street because it was too tired",
        "The animal didn't cross the street because it was too wide",
    ],
}


def model_metadata(explored: ExploredModel) -> dict[str, Any]:
    """The metadata of a model, as JSON."""
    spec, model, family = explored.model.spec, explored.model, explored.family
    kinds = kinds_of(spec, explored.pooling.pooling)
    has_lm_head = isinstance(model.lm_head, LmHead)
    return {
        "name": explored.name,
        "family": family,
        "language": current_language(),
        "metadata": metadata_rows(explored),
        "stacks": [stack_json(name, stack) for name, stack in stacks_of(spec)],
        "positions": spec.positions.kind,
        "d_model": spec.d_model,
        "vocab_size": spec.vocab_size,
        "source_vocab_size": spec.source_vocab_size or spec.vocab_size,
        "parameters": n_parameters(explored),
        "supports": {
            "logits": has_lm_head,
            "logit_lens": has_lm_head,
            "beam": has_lm_head and family != "embedder",
            "generate": family != "embedder",
            "sentences": family == "embedder",
            "position_ablation": spec.positions.kind != "none",
            "position_encodings": spec.positions.kind != "none",
        },
        "limits": {
            "characters": MAX_CHARACTERS,
            "tokens": min(MAX_TOKENS, explored.max_len),
            "sentences": MAX_SENTENCES,
        },
        "examples": examples_for(explored),
        "kinds": kinds_for_page(kinds),
        "code": code_for_page(kinds),
        "parts": {name: {"title": as_both(title)} for name, title in PARTS.items()},
    }


def examples_for(explored: ExploredModel) -> list[str]:
    """Example texts without unknown tokens, those with the fewest tokens per byte first."""
    tokenizer = explored.tokenizers["target" if explored.family == "generator" else "source"]
    encoded = {text: tokenizer.encode(text) for text in EXAMPLES[explored.family]}
    known = [text for text, ids in encoded.items() if tokenizer.unk_id not in ids]
    ranked = sorted(known, key=lambda text: round(len(encoded[text]) / len(text.encode()), 1))
    # Of texts that differ only in case and the final period, keep the first.
    first = {text.lower().rstrip("."): text for text in reversed(ranked)}
    return [text for text in ranked if text in first.values()]


def n_parameters(explored: ExploredModel) -> int:
    return sum(weight.numel() for weight in explored.model.parameters())


def stacks_of(spec: s.Spec) -> list[tuple[str, s.Stack]]:
    return [
        (name, stack)
        for name, stack in (("encoder", spec.encoder), ("decoder", spec.decoder))
        if stack
    ]


def stack_json(name: str, stack: s.Stack) -> dict[str, Any]:
    layers = [
        {
            "mixer": layer.mixer.kind,
            "n_heads": getattr(layer.mixer, "n_heads", None),
            "cross_heads": layer.cross.n_heads if layer.cross else None,
            "feed_forward": layer.feed_forward.kind,
            "norm": layer.norm.placement,
        }
        for layer in stack.each_layer()
    ]
    return {"name": name, "n_layers": len(layers), "causal": stack.causal, "layers": layers}


def metadata_rows(explored: ExploredModel) -> list[dict[str, Any]]:
    """Titles and values, in the order of the page."""
    spec = explored.model.spec
    stacks = stacks_of(spec)
    first = stacks[-1][1].layers[0]
    norm, placement = NORM[first.norm.kind], NORM_PLACEMENT[first.norm.placement]
    rows: list[tuple[str, Both, Any]] = [
        ("family", both("Architecture"), FAMILY[explored.family]),
        ("layers", both("Layers"), " + ".join(str(len(stack.each_layer())) for _, stack in stacks)),
        ("mixer", both("Token mixing"), first.mixer.kind),
        ("heads", both("Attention heads"), getattr(first.mixer, "n_heads", None)),
        ("kv_heads", both("Key/value heads"), getattr(first.mixer, "n_kv_heads", None)),
        ("d_model", both("Hidden size (d_model)"), spec.d_model),
        ("d_ff", both("Feed-forward size (d_ff)"), d_ff_of(first.feed_forward)),
        ("experts", both("Experts (per token)"), experts_of(first.feed_forward)),
        ("vocab_size", both("Vocabulary size"), spec.vocab_size),
        ("parameters", both("Parameters"), n_parameters(explored)),
        ("positions", both("Positions"), POSITIONS[spec.positions.kind]),
        ("norm", both("Norm"), both("{norm}, {placement}", norm=norm, placement=placement)),
        ("max_len", both("Maximum length"), spec.max_len),
    ]
    return [
        {
            "key": key,
            "title": as_both(title),
            "value": as_both(value) if isinstance(value, Both) else value,
        }
        for key, title, value in rows
        if value is not None
    ]


def d_ff_of(spec: s.FeedForward) -> int:
    return spec.expert.d_ff if isinstance(spec, s.MixtureOfExperts) else spec.d_ff


def experts_of(spec: s.FeedForward) -> str | None:
    if not isinstance(spec, s.MixtureOfExperts):
        return None
    return f"{spec.n_experts} ({spec.n_experts_per_token})"
