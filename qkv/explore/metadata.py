"""Model metadata for the page: sizes, stacks, supported views, limits, examples, kinds of steps.

See docs/guides/inspect.md.
"""

from typing import Any

from qkv.explore.explored_model import ExploredModel, stacks_of
from qkv.explore.kinds import code_for_page, kinds_for_page, kinds_of
from qkv.explore.passes import MAX_TOKENS
from qkv.explore.serialize import JsonObject
from qkv.messages import Both, both, current_language
from qkv.model import spec as s

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
    "alibi": both("ALiBi: scores decrease with the distance"),
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


def model_metadata(explored: ExploredModel) -> JsonObject:
    """The metadata of a model, as JSON."""
    spec, family, has_logits = explored.spec, explored.family, explored.has_logits
    kinds, has_positions = kinds_of(spec, explored.pooling.pooling), spec.positions.kind != "none"
    return {
        "name": explored.name,
        "family": family,
        "language": current_language(),
        "metadata": metadata_rows(explored),
        "stacks": [stack_json(name, stack) for name, stack in stacks_of(spec).items()],
        "positions": spec.positions.kind,
        "d_model": spec.d_model,
        "vocab_size": spec.vocab_size,
        "source_vocab_size": spec.source_vocab_size or spec.vocab_size,
        "parameters": n_parameters(explored),
        "supports": {
            "logits": has_logits,
            "logit_lens": has_logits,
            "beam": has_logits and family != "embedder",
            "generate": family != "embedder",
            "sentences": family == "embedder",
            "position_ablation": has_positions,
            "position_encodings": has_positions,
        },
        "limits": {
            "characters": MAX_CHARACTERS,
            "tokens": min(MAX_TOKENS, explored.max_len),
            "sentences": MAX_SENTENCES,
        },
        "examples": examples_for(explored),
        "kinds": kinds_for_page(kinds),
        "code": code_for_page(kinds),
        "parts": {name: {"title": title._asdict()} for name, title in PARTS.items()},
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


def stack_json(name: str, stack: s.Stack) -> JsonObject:
    layers = [
        {
            "mixer": layer.mixer.kind,
            "n_heads": getattr(layer.mixer, "n_heads", None),
            "cross_heads": layer.cross.n_heads if layer.cross else None,
            "feed_forward": layer.feed_forward.kind if layer.feed_forward else None,
            "norm": layer.norm.placement,
        }
        for layer in stack.each_layer()
    ]
    return {"name": name, "n_layers": len(layers), "causal": stack.causal, "layers": layers}


def metadata_rows(explored: ExploredModel) -> list[JsonObject]:
    """Titles and values, in the order of the page."""
    spec, stacks = explored.spec, list(stacks_of(explored.spec).values())
    first = stacks[-1].layers[0]
    mixer, feed_forward, experts = first.mixer, first.feed_forward, None
    if isinstance(feed_forward, s.MixtureOfExperts):
        experts = f"{feed_forward.n_experts} ({feed_forward.n_experts_per_token})"
        feed_forward = feed_forward.expert
    norm, placement = NORM[first.norm.kind], NORM_PLACEMENT[first.norm.placement]
    rows: list[tuple[str, Both, Any]] = [
        ("family", both("Architecture"), FAMILY[explored.family]),
        ("layers", both("Layers"), " + ".join(str(len(stack.each_layer())) for stack in stacks)),
        ("mixer", both("Token mixing"), mixer.kind),
        ("heads", both("Attention heads"), getattr(mixer, "n_heads", None)),
        ("kv_heads", both("Key/value heads"), getattr(mixer, "n_kv_heads", None)),
        ("d_model", both("Hidden size (d_model)"), spec.d_model),
        ("d_ff", both("Feed-forward size (d_ff)"), getattr(feed_forward, "d_ff", None)),
        ("experts", both("Experts (per token)"), experts),
        ("vocab_size", both("Vocabulary size"), spec.vocab_size),
        ("parameters", both("Parameters"), n_parameters(explored)),
        ("positions", both("Positions"), POSITIONS[spec.positions.kind]),
        ("norm", both("Norm"), both("{norm}, {placement}", norm=norm, placement=placement)),
        ("max_len", both("Maximum length"), spec.max_len),
    ]
    return [
        {
            "key": key,
            "title": title._asdict(),
            "value": value._asdict() if isinstance(value, Both) else value,
        }
        for key, title, value in rows
        if value is not None
    ]
