"""Structured mutations of valid files: JSON, YAML, lines of text, safetensors and bytes.

Every choice is a draw of `rng`, so that the same functions serve a seeded random.Random, Hypothesis
(which shrinks the draws) and Atheris.
"""

import json
from collections.abc import Callable
from copy import deepcopy
from random import Random
from typing import Any

import yaml

Mutation = Callable[[Random, bytes], bytes]
DEEP: list[Any] = []
for _level in range(150):
    DEEP = [DEEP]
VALUES: list[Any] = [
    *(
        None,
        True,
        False,
        0,
        1,
        -1,
        2,
        3,
        7,
        255,
        2**31,
        2**32,
        2**63,
        2**64,
        10**12,
        10**30,
        10**80,
    ),
    *(0.0, -0.0, 0.5, 1.5, -1e-9, 1e-45, 1e308, float("nan"), float("inf"), float("-inf")),
    *(
        "",
        " ",
        "a",
        "0",
        "1e6",
        "\ud800",
        "\x00",
        "a\nb\r\tc",
        "\u2028",
        "😀",
        "é" * 300,
        "x" * 3000,
    ),
    *("nan", "../x", "<unk>", "[UNK]", "{}", "(x+x+)+y", "layer", "relu", "attention", "llama"),
    *(
        [],
        {},
        [[]],
        [None],
        [0],
        ["a"],
        [1, 2],
        {"a": 1},
        {"kind": "x"},
        {"type": "x"},
        {"": []},
        DEEP,
    ),
]
NUMBERS = (-1, 0, 1, 2, 3, 4, 8, 100, 1_000, 65_536, 2**24, 2**31 - 1, 2**53 + 1, 10**20)
DUPLICATE = "\ue000"  # ends the name of a second field with the same name, until it is written
INTEGERS = (0, 1, 255, 2**15, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 1)
YAML_VALUES = (
    *(
        "!!python/object/apply:os.getcwd []",
        "!!binary x",
        "!!int x",
        "&a [*a]",
        "*a",
        "{a: [",
        "? a",
        "- x",
    ),
    *(
        ".nan",
        ".inf",
        "-.inf",
        "0x1F",
        "0o17",
        "1_000",
        "12:30:45",
        "2001-01-01",
        "2001-99-99",
        "~",
        "%TAG",
    ),
    *(
        "'",
        '"\\x',
        "|\n  x",
        ">",
        "@x",
        "`x",
        "<<: {steps: 1}",
        "[[[[[[[[",
        "1e400",
        "9" * 5_000,
        "\t",
    ),
)


# ── JSON ─────────────────────────────────────────────────────────────────────────────────────────
def mutate_json(rng: Random, raw: bytes) -> bytes:
    """One to four changes of the values, types, names and nesting; sometimes of the bytes."""
    try:
        tree = [json.loads(raw)]
    except (ValueError, RecursionError):
        return mutate_bytes(rng, raw)
    for _change in range(rng.choice((1, 1, 1, 2, 4))):
        change_value(rng, tree)
    try:
        text = json.dumps(tree[0] if tree else None, ensure_ascii=rng.random() < 0.5)
    except (ValueError, RecursionError):
        return b"[" * 10_000
    mutated = text.replace(DUPLICATE, "").replace("\\ue000", "").encode(errors="surrogatepass")
    return mutate_bytes(rng, mutated) if rng.random() < 0.08 else mutated


def change_value(rng: Random, tree: list[Any]) -> None:
    """Change one value of a tree, found by a random walk from the root."""
    node, key = tree, 0
    while (child := node[key] if node else None) and isinstance(child, list | dict):
        if node is not tree and rng.random() < 0.2:
            break
        node = child
        key = rng.choice(list(node)) if isinstance(node, dict) else rng.randrange(len(node))
    if node:
        rng.choice(CHANGES)(rng, node, key)


def any_value(rng: Random) -> Any:
    return deepcopy(rng.choice(VALUES))


def replace_value(rng: Random, node: Any, key: Any) -> None:
    node[key] = any_value(rng)


def change_number(rng: Random, node: Any, key: Any) -> None:
    """Another number of the same type, or another value for what is not a number."""
    value = node[key]
    if type(value) is int:
        node[key] = rng.choice((value + 1, value - 1, value * 2, value * 1_000, *NUMBERS))
    elif type(value) is float:
        node[key] = rng.choice((value * 2, -value, value * 1e6, 1.0, 1e20, float("nan")))
    else:
        replace_value(rng, node, key)


def change_text(rng: Random, node: Any, key: Any) -> None:
    text = node[key] if isinstance(node[key], str) else str(node[key])[:100]
    cut, part = (
        rng.randrange(len(text) + 1),
        rng.choice(("", "a", ".", "\x00", "\ud83d", "\n", "*")),
    )
    node[key] = text[:cut] + part + text[cut + rng.randrange(2) :]


def delete_value(rng: Random, node: Any, key: Any) -> None:
    del node[key]


def wrap_value(rng: Random, node: Any, key: Any) -> None:
    node[key] = rng.choice(([node[key]], {"a": node[key]}, [node[key]] * 3, str(node[key])))


def rename_field(rng: Random, node: Any, key: Any) -> None:
    if isinstance(node, dict):
        name = rng.choice(
            (key[:-1], key + "s", rng.choice(list(node)), "", "kind", "type", "\ud800")
        )
        node[name] = node.pop(key)
    else:
        node.insert(key, any_value(rng))


def copy_value(rng: Random, node: Any, key: Any) -> None:
    """The value of another field of the same object or list, or a second field with this name."""
    keys = list(node) if isinstance(node, dict) else range(len(node))
    if isinstance(node, dict) and rng.random() < 0.3:
        node[key + DUPLICATE] = rng.choice((node[key], any_value(rng)))
    else:
        node[key] = node[rng.choice(keys)]


CHANGES = (
    *(replace_value, replace_value, change_number, change_number, change_text),
    *(delete_value, wrap_value, rename_field, copy_value),
)


# ── Bytes ────────────────────────────────────────────────────────────────────────────────────────
def mutate_bytes(rng: Random, raw: bytes) -> bytes:
    """One to four changes: flipped, inserted, repeated or missing bytes, integers, truncation."""
    for _change in range(rng.choice((1, 1, 2, 4))):
        raw = change_bytes(rng, raw)
    return raw


def change_bytes(rng: Random, raw: bytes) -> bytes:
    # Headers are at the start: half of the changes are there.
    at = rng.randrange(min(len(raw), 64 if rng.random() < 0.5 else len(raw)) + 1)
    size = rng.choice((1, 1, 2, 4, 8, 64))
    number = rng.choice(INTEGERS).to_bytes(8, "little")
    match rng.randrange(6):
        case 0:
            return raw[:at] + bytes([rng.randrange(256)]) + raw[at + 1 :]
        case 1:
            return raw[:at] + number[: min(size, 8)] + raw[at + min(size, 8) :]
        case 2:
            return raw[:at] + bytes(rng.randrange(256) for _ in range(min(size, 8))) + raw[at:]
        case 3:
            return raw[:at] + raw[at + size :]
        case 4:
            return raw[: at + size] + raw[at:]
    return raw[:at]


# ── Other formats ────────────────────────────────────────────────────────────────────────────────
def mutate_lines(rng: Random, raw: bytes, values: tuple[str, ...] = ()) -> bytes:
    """Lines repeated, removed, exchanged or with other words; sometimes changed bytes."""
    lines = raw.split(b"\n")
    for _change in range(rng.choice((1, 1, 2, 4))):
        at, other = rng.randrange(len(lines)), rng.randrange(len(lines))
        words = lines[at].split(b" ")
        value = rng.choice(values or tuple(map(str, VALUES))).encode(errors="surrogatepass")
        match rng.randrange(5):
            case 0:
                lines.insert(at, lines[other])
            case 1 if len(lines) > 1:
                del lines[at]
            case 2:
                lines[at], lines[other] = lines[other], lines[at]
            case 3:
                words[rng.randrange(len(words))] = value
                lines[at] = b" ".join(words)
            case _:
                lines[at] += value
    mutated = b"\n".join(lines)
    return mutate_bytes(rng, mutated) if rng.random() < 0.2 else mutated


def mutate_yaml(rng: Random, raw: bytes) -> bytes:
    """A JSON mutation of the parsed file (JSON is YAML), or other lines with words of YAML."""
    if rng.random() < 0.6:
        try:
            return mutate_json(rng, json.dumps(yaml.safe_load(raw), default=str).encode())
        except (TypeError, ValueError, yaml.YAMLError, RecursionError):  # a key of bytes, ..
            pass
    return mutate_lines(rng, raw, YAML_VALUES)


def mutate_safetensors(rng: Random, raw: bytes) -> bytes:
    """A JSON mutation of the header, with its new length, or changed bytes."""
    size = int.from_bytes(raw[:8], "little")
    if size > len(raw) or rng.random() < 0.3:
        return mutate_bytes(rng, raw)
    header = mutate_json(rng, raw[8 : 8 + size])
    return len(header).to_bytes(8, "little") + header + raw[8 + size :]
