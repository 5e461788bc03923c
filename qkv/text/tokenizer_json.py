"""Fill in the fields that older tokenizer.json files omit, with the library's default values.

GPT-2's own file, for example, has no model type and no byte_fallback, and writes merges as "a b".
See docs/explanation/tokenization.md.
"""

from typing import Any

COMPONENT_DEFAULTS: dict[str, Any] = {
    "added_tokens": [],
    "normalizer": None,
    "pre_tokenizer": None,
    "post_processor": None,
    "decoder": None,
}
BPE_DEFAULTS: dict[str, Any] = {
    "unk_token": None,
    "continuing_subword_prefix": None,
    "end_of_word_suffix": None,
    "fuse_unk": False,
    "byte_fallback": False,
    "ignore_merges": False,
}
BYTE_LEVEL_DEFAULTS = {"add_prefix_space": True, "trim_offsets": True, "use_regex": True}


def with_defaults(config: dict[str, Any], model_type: str) -> dict[str, Any]:
    """Return a tokenizer.json with every field that our code reads; present fields stay.

    Args:
        config: The file as a dictionary.
        model_type: The type of the model that the library read from it, such as "BPE".
    """
    config = _with_byte_level_defaults({**COMPONENT_DEFAULTS, **config})
    model = {"type": model_type, **config["model"]}
    if model_type == "BPE":
        merges = [pair.split(" ", 1) if isinstance(pair, str) else pair for pair in model["merges"]]
        model = {**BPE_DEFAULTS, **model, "merges": merges}
    return config | {"model": model}


def _with_byte_level_defaults(part: Any) -> Any:
    """Fill in the options of every ByteLevel component, at any depth."""
    if isinstance(part, list):
        return list(map(_with_byte_level_defaults, part))
    if not isinstance(part, dict):
        return part
    fields = BYTE_LEVEL_DEFAULTS | part if part.get("type") == "ByteLevel" else part
    return {
        name: value if name in ("vocab", "merges") else _with_byte_level_defaults(value)
        for name, value in fields.items()
    }
