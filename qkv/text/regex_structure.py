"""Parse the structure of a regular expression: groups, alternatives, repetitions, characters.

A character or a character class stays text: the library's own engine (Oniguruma) interprets it.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

_REPEAT = re.compile(r"([*+?])([?+]?)|\{(\d*)(,?)(\d*)\}(\??)")
_GROUP = re.compile(r"\((?:\?(?::|[imsx-]+:|=|!|>|<=|<!|<\w+>|'\w+'))?")
_ESCAPE = re.compile(r"\\(?:[pP]\{[^}]*\}|x\{[^}]*\}|x[0-9a-fA-F]{1,2}|u[0-9a-fA-F]{4}|.)", re.S)
_SETTINGS = re.compile(r"\(\?(?:[imsx-]+\)|#[^)]*\))")
_ZERO_WIDTH = {r"\b", r"\B", r"\A", r"\z", r"\Z", r"\G", "^", "$"}


@dataclass(frozen=True)
class Character:
    """One character or character class."""

    source: str


@dataclass(frozen=True)
class Opaque:
    """A back-reference or another construct whose text is not known here."""


@dataclass(frozen=True)
class Group:
    """Alternatives, each a sequence; a lookaround or an anchor matches no text."""

    alternatives: tuple[tuple["Node", ...], ...]
    zero_width: bool = False


@dataclass(frozen=True)
class Repeat:
    """A node `least` to `most` times; most is None for any number."""

    node: "Node"
    least: int
    most: int | None


Node = Character | Opaque | Group | Repeat


class Unparsable(ValueError):
    """A pattern that is not balanced."""


def parse(pattern: str) -> Group:
    """Parse a pattern."""
    group, end = _parse_group(pattern, 0)
    if end != len(pattern):
        raise Unparsable(pattern)
    return group


def walk(node: Node) -> Iterator[Node]:
    """Yield a node and all nodes inside it."""
    yield node
    if isinstance(node, Repeat):
        yield from walk(node.node)
    if isinstance(node, Group):
        for alternative in node.alternatives:
            for part in alternative:
                yield from walk(part)


def _parse_group(pattern: str, at: int) -> tuple[Group, int]:
    """Parse alternatives up to a closing parenthesis or the end."""
    alternatives: list[list[Node]] = [[]]
    while at < len(pattern) and pattern[at] != ")":
        if pattern[at] == "|":
            alternatives.append([])
            at += 1
        elif settings := _SETTINGS.match(pattern, at):
            at = settings.end()
        else:
            node, at = _parse_node(pattern, at)
            node, at = _parse_repeats(pattern, at, node)
            alternatives[-1].append(node)
    return Group(tuple(map(tuple, alternatives))), at


def _parse_node(pattern: str, at: int) -> tuple[Node, int]:
    if opening := _GROUP.match(pattern, at):
        group, end = _parse_group(pattern, opening.end())
        if end >= len(pattern):
            raise Unparsable(pattern)
        zero_width = opening[0] in ("(?=", "(?!", "(?<=", "(?<!")
        return Group(group.alternatives, zero_width), end + 1
    if pattern[at] == "[":
        end = _class_end(pattern, at)
        return Character(pattern[at:end]), end
    escape = _ESCAPE.match(pattern, at)
    source = escape[0] if escape else pattern[at]
    if source in _ZERO_WIDTH:
        return Group((), zero_width=True), at + len(source)
    opaque = escape and source[1] in "123456789kgQRXK"
    return Opaque() if opaque else Character(source), at + len(source)


def _parse_repeats(pattern: str, at: int, node: Node) -> tuple[Node, int]:
    """Wrap a node into its quantifiers, of which there may be several: `a{2}+`."""
    while (found := _REPEAT.match(pattern, at)) and (found[1] or found[3] or found[5]):
        if found[1]:
            least, most = (int(found[1] == "+"), 1 if found[1] == "?" else None)
        else:
            least = int(found[3] or 0)
            most = int(found[5]) if found[5] else None if found[4] else least
        node, at = Repeat(node, least, most), found.end()
    return node, at


def _class_end(pattern: str, at: int) -> int:
    """Return the end of a character class, which may contain further classes: [\\p{L}&&[^a]]."""
    start = at + 1 + pattern.startswith("^", at + 1)
    at = start
    while at < len(pattern):
        if pattern[at] == "\\":
            at += 2
        elif pattern[at] == "[":
            at = _class_end(pattern, at)
        elif pattern[at] == "]" and at > start:
            return at + 1
        else:
            at += 1
    raise Unparsable(pattern)
