"""Stages of a trace: headings that group its steps. See docs/guides/inspect.md."""

from qkv.explore.serialize import JsonObject
from qkv.explore.tensor_view import Step
from qkv.messages import both

TRANSLATION_STAGES = {
    "encode": both("Encoder input: token embeddings of the source"),
    "attend": both("First encoder layer: self-attention and feed-forward network"),
    "repeat": both("Further encoder layers"),
    "decode": both("Decoder: causal self-attention over the target so far"),
    "cross": both("Cross-attention over the encoder output"),
    "predict": both("Further decoder layers and prediction of the next token"),
}
STAGES = {
    "embed": both("From text to embeddings"),
    "attend": both("First layer: attention"),
    "feed_forward": both("First layer: feed-forward network"),
    "repeat": both("Further layers"),
    "predict": both("Prediction of the next token"),
    "pool": both("Pooling to a sentence vector"),
}


def stage_of(family: str, step: Step) -> str:
    """The stage that a step belongs to."""
    if family == "translator":
        return translation_stage(step)
    if step.part in ("pool", "embed"):
        return step.part
    if step.layer is None:
        return "predict" if step.kind in ("logits", "next") or step.stack == "decoder" else "pool"
    return "repeat" if step.layer > 0 else "feed_forward" if step.part == "ffn" else "attend"


def translation_stage(step: Step) -> str:
    """The stage of an encoder-decoder model that a step belongs to."""
    if step.stack == "encoder":
        return "encode" if step.part == "embed" else "attend" if step.layer == 0 else "repeat"
    if step.stack is None or step.layer is None:
        return "decode" if step.part == "embed" else "predict"
    if step.layer > 0:
        return "predict"
    return "decode" if step.part == "attn" else "cross"


def stages_of(family: str, of_steps: list[str]) -> list[JsonObject]:
    """The stages that occur, in order, each with the index of its first step."""
    titles = TRANSLATION_STAGES if family == "translator" else STAGES
    return [
        {"key": key, "number": number, "title": titles[key]._asdict(), "first": of_steps.index(key)}
        for number, key in enumerate(dict.fromkeys(of_steps), 1)
    ]
