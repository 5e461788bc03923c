"""Check a tokenizer.json, and fill in the fields that older files omit with the library's defaults.

GPT-2's own file, for example, has no model type and no byte_fallback, and writes merges as "a b".
See docs/explanation/tokenization.md.
"""

import base64
from collections.abc import Iterator
from math import prod
from typing import Any

from qkv.errors import QkvError
from qkv.messages import _
from qkv.text.charsmap import is_charsmap
from qkv.text.chunking import WORD
from qkv.text.regex_safety import unsafe_pattern

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
COMPONENTS = {  # name: the field with the steps of a Sequence
    "normalizer": "normalizers",
    "pre_tokenizer": "pretokenizers",
    "post_processor": "processors",
    "decoder": "decoders",
}
MAX_VOCAB_SIZE = 4_000_000  # the largest published vocabularies have 1 million tokens
MAX_GROWTH = 1_000  # characters that the Replace steps can make of one character
BYTE_LEVEL_DEFAULTS = {"add_prefix_space": True, "trim_offsets": True, "use_regex": True}


def check_tokenizer_json(config: Any, where: object) -> None:
    """Raise an error for a file that is no tokenizer, or one that takes unbounded time or memory.

    The library checks the types of the fields; it does not limit what regular expressions and
    replacements do to a text.

    Args:
        config: The parsed file.
        where: Its name in errors.
    """
    if not isinstance(config, dict) or not isinstance(config.get("model"), dict):
        right = _("give a tokenizer.json of qkv or the tokenizers library")
        raise QkvError(where, _("JSON, but not a tokenizer"), right)
    if not _has_prefixed_merges(config["model"]):
        wrong = _("a merge without the continuing_subword_prefix")
        right = _("export it again with the program that wrote it")
        raise QkvError(f"{where}, model", wrong, right)
    for name, inner in COMPONENTS.items():
        if not _is_component(config.get(name), inner):
            right = _("export it again with the program that wrote it")
            raise QkvError(f"{where}, {name}", _("no object with a type"), right)
        steps = list(_objects(config.get(name)))
        patterns = [step["Regex"] for step in steps if isinstance(step.get("Regex"), str)]
        unsafe = unsafe_pattern(pattern for pattern in patterns if pattern != WORD)
        if unsafe is not None:
            wrong = _("the pattern '{pattern}' can take exponential time", pattern=unsafe[:60])
            raise QkvError(f"{where}, {name}", wrong, _("use no ambiguous repeated group"))
        contents = [step["content"] for step in steps if isinstance(step.get("content"), str)]
        if prod(max(1, len(content)) for content in contents) > MAX_GROWTH:
            wrong = _("replacements can make a text more than {n:,} times as long", n=MAX_GROWTH)
            raise QkvError(f"{where}, {name}", wrong, _("use fewer or shorter replacements"))


def _has_prefixed_merges(model: dict[str, Any]) -> bool:
    """Return whether the second token of each merge begins with the prefix, if there is one.

    The library removes as many bytes as the prefix has, and panics if there are fewer.
    """
    prefix, merges = model.get("continuing_subword_prefix"), model.get("merges")
    if not isinstance(prefix, str) or not isinstance(merges, list):
        return True
    pairs = (merge.split(" ") if isinstance(merge, str) else merge for merge in merges)
    return all(
        not isinstance(pair, list) or not pair or str(pair[-1]).startswith(prefix) for pair in pairs
    )


def _is_component(part: Any, inner: str) -> bool:
    """Return whether a component is None, or has a type and, if a Sequence, a list of components.

    The library also accepts the fields without their names, as lists. It panics for a normalizer
    of the type Precompiled with a damaged table.
    """
    if part is None:
        return True
    if not isinstance(part, dict) or not isinstance(part.get("type"), str):
        return False
    if part["type"] == "Precompiled" and not _is_charsmap(part.get("precompiled_charsmap")):
        return False
    steps = part.get(inner, []) if part["type"] == "Sequence" else []
    return isinstance(steps, list) and all(step and _is_component(step, inner) for step in steps)


def _is_charsmap(value: Any) -> bool:
    """Return whether this is a table in base64; Python also decodes it with wrong padding."""
    try:
        raw = base64.b64decode(value)
    except (ValueError, TypeError):
        return False
    return base64.b64encode(raw) == value.encode() and is_charsmap(raw)


def check_ids(largest: int, where: object) -> None:
    """Raise an error if the largest id of a vocabulary exceeds MAX_VOCAB_SIZE."""
    if largest >= MAX_VOCAB_SIZE:
        wrong = _("the token id {id:,} is too large", id=largest)
        raise QkvError(where, wrong, _("use ids below {maximum:,}", maximum=MAX_VOCAB_SIZE))


def _objects(part: Any) -> Iterator[dict[str, Any]]:
    """Yield all JSON objects inside a component."""
    if isinstance(part, dict):
        yield part
        part = list(part.values())
    for value in part if isinstance(part, list) else ():
        yield from _objects(value)


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
