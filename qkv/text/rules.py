"""What a tokenizer.json says, with all that older ones leave unsaid.

In: the file as a dictionary, and the kind of model that the library read from it. Out: the same with every field that the rest
of our code reads: GPT-2's own file, for one, names no type, knows no byte_fallback and writes merges as "a b".
Told in docs/tokenizers.md, "Formats".
"""

from typing import Any

PARTS: dict[str, Any] = {
    "added_tokens": [],
    "normalizer": None,
    "pre_tokenizer": None,
    "post_processor": None,
    "decoder": None,
}
BPE: dict[str, Any] = {
    "unk_token": None,
    "continuing_subword_prefix": None,
    "end_of_word_suffix": None,
    "fuse_unk": False,
    "byte_fallback": False,
    "ignore_merges": False,
}
BYTE_LEVEL = {"add_prefix_space": True, "trim_offsets": True, "use_regex": True}


def completed(rules: dict[str, Any], kind: str) -> dict[str, Any]:
    """The rules in full; what stands there stays."""
    whole = _byte_levels({**PARTS, **rules})
    model = {"type": kind, **whole["model"]}
    if kind == "BPE":
        model = {
            **BPE,
            **model,
            "merges": [
                pair.split(" ", 1) if isinstance(pair, str) else pair for pair in model["merges"]
            ],
        }
    return whole | {"model": model}


def _byte_levels(rule: Any) -> Any:
    """Every ByteLevel among the steps, however deep it stands, with all its choices."""
    if isinstance(rule, list):
        return list(map(_byte_levels, rule))
    if not isinstance(rule, dict):
        return rule
    told = BYTE_LEVEL | rule if rule.get("type") == "ByteLevel" else rule
    return {
        name: part if name in ("vocab", "merges") else _byte_levels(part)
        for name, part in told.items()
    }
