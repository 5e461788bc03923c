"""What there is to know about a model before it has read anything.

In: a subject. Out: the page's `model` answer: facts in the order to show them, the stacks, the kinds of steps with
their words and textbook code. Told in docs/explore.md, "The page".
"""

from typing import Any

from qkv.explore.kinds import as_both, code_for_page, kinds_for_page, kinds_of
from qkv.explore.passes import MOST_TOKENS
from qkv.explore.subject import Subject
from qkv.messages import Both, both, current_language
from qkv.model import spec as s
from qkv.model.head import LmHead

CHARACTERS, SENTENCES = 4_000, 64  # of a text; of sentences to compare with

FAMILY = {
    "translator": both("encoder and decoder: a translator"),
    "generator": both("decoder only: a generator"),
    "embedder": both("encoder only: an embedder"),
}
NORM = {"layer": "LayerNorm", "rms": "RMSNorm", "batch": "BatchNorm"}
PLACE = {"pre": both("before each branch"), "post": both("after each sum")}
POSITIONS = {
    "sinusoidal": both("sines and cosines, added"),
    "learned": both("a learned table, added"),
    "rotary": both("rotation of queries and keys"),
    "none": both("none"),
}
PARTS = {
    "embed": both("Into vectors"),
    "attn": both("Self-attention"),
    "cross": both("Cross-attention"),
    "ffn": both("Feed-forward"),
    "end": both("Out of the layers"),
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


def model_answer(subject: Subject) -> dict[str, Any]:
    """All of it, as JSON."""
    spec, model = subject.model.spec, subject.model
    kinds = kinds_of(spec, subject.pooling.pooling)
    speaks = isinstance(model.lm_head, LmHead)
    return {
        "name": subject.name,
        "family": subject.family,
        "language": current_language(),
        "facts": facts_of(subject),
        "stacks": [stack_json(name, stack) for name, stack in stacks_of(spec)],
        "positions": spec.positions.kind,
        "d_model": spec.d_model,
        "vocab_size": spec.vocab_size,
        "source_vocab_size": spec.source_vocab_size or spec.vocab_size,
        "parameters": count(subject),
        "can": {
            "logits": speaks,
            "lens": speaks,
            "beam": speaks and subject.family != "embedder",
            "say": subject.family != "embedder",
            "sentences": subject.family == "embedder",
            "positions_off": spec.positions.kind != "none",
            "waves": spec.positions.kind != "none",
        },
        "limits": {
            "characters": CHARACTERS,
            "tokens": min(MOST_TOKENS, subject.longest),
            "sentences": SENTENCES,
        },
        "examples": examples_for(subject),
        "kinds": kinds_for_page(kinds),
        "code": code_for_page(kinds),
        "parts": {name: {"title": as_both(title)} for name, title in PARTS.items()},
    }


def examples_for(subject: Subject) -> list[str]:
    """Texts to begin with: those the tokenizer knows all of, first the ones that it cuts into the longest pieces."""
    tokens = subject.tokenizers["target" if subject.family == "generator" else "source"]
    read = {text: tokens.encode(text) for text in EXAMPLES[subject.family]}
    known = [text for text, ids in read.items() if tokens.unk_id not in ids]
    ranked = sorted(known, key=lambda text: round(len(read[text]) / len(text.encode()), 1))
    first = {
        text.lower().rstrip("."): text for text in reversed(ranked)
    }  # one with capitals is not shown twice
    return [text for text in ranked if text in first.values()]


def count(subject: Subject) -> int:
    return sum(weight.numel() for weight in subject.model.parameters())


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
            "norm": layer.norm.place,
        }
        for layer in stack.each_layer()
    ]
    return {"name": name, "n_layers": len(layers), "sees": stack.sees, "layers": layers}


def facts_of(subject: Subject) -> list[dict[str, Any]]:
    """One line a fact, in the order to show them."""
    spec = subject.model.spec
    first = stacks_of(spec)[-1][1].layers[0]
    rows: list[tuple[str, Both, Any]] = [
        ("family", both("Family"), FAMILY[subject.family]),
        (
            "layers",
            both("Layers"),
            " + ".join(str(len(stack.each_layer())) for _, stack in stacks_of(spec)),
        ),
        ("mixer", both("Tokens are mixed by"), first.mixer.kind),
        ("heads", both("Heads"), getattr(first.mixer, "n_heads", None)),
        ("kv_heads", both("Key/value heads"), getattr(first.mixer, "n_kv_heads", None)),
        ("d_model", both("Width of the stream (d_model)"), spec.d_model),
        ("d_ff", both("Width of the feed-forward (d_ff)"), width_of(first.feed_forward)),
        ("experts", both("Experts (asked)"), experts_of(first.feed_forward)),
        ("vocab_size", both("Vocabulary"), spec.vocab_size),
        ("parameters", both("Parameters"), count(subject)),
        ("positions", both("Positions"), POSITIONS[spec.positions.kind]),
        (
            "norm",
            both("Norm"),
            both("{norm}, {place}", norm=NORM[first.norm.kind], place=PLACE[first.norm.place]),
        ),
        ("max_len", both("Longest text"), spec.max_len),
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


def width_of(part: s.FeedForward) -> int:
    return part.each.d_ff if isinstance(part, s.Experts) else part.d_ff


def experts_of(part: s.FeedForward) -> str | None:
    return f"{part.n_experts} ({part.n_active})" if isinstance(part, s.Experts) else None
