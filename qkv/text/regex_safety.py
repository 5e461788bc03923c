"""Refuse regular expressions of a tokenizer.json that can take exponential time.

A repeated group is accepted if at every character only one way leads on: `(?:-\\w+)*`, but not
`(x+x+)+` or `(a|a)*`, which have 2^n ways to match n characters.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import combinations

from tokenizers import Regex, normalizers

from qkv.text.regex_structure import Character, Group, Node, Opaque, Repeat, Unparsable, parse, walk

# Published tokenizers have less than a tenth of these; they bound the time of the check.
MAX_PATTERN_CHARS = 20_000
MAX_GROUP_CHARACTERS = 60  # of a repeated group, after its fixed repetitions are written out
MAX_CLASSES = 40  # character classes in the repeated groups of one tokenizer
_SAMPLE = "".join(map(chr, [*range(0xD800), *range(0xE000, 0x11000), *range(0x1F300, 0x1F700)]))


def unsafe_pattern(patterns: Iterable[str]) -> str | None:
    """Return the first pattern with an ambiguous repeated group, or None.

    >>> unsafe_pattern([r"\\w+(?:['-]\\w+)*", "(x+x+)+y"])
    '(x+x+)+y'
    """
    classes: set[str] = set()
    for pattern in dict.fromkeys(patterns):
        try:
            repeats = _repeated_groups(pattern)
            classes |= {source for repeat in repeats for source in _classes(repeat)}
            if len(classes) > MAX_CLASSES or not all(map(_is_unambiguous, repeats)):
                return pattern
        except (Unparsable, RecursionError):
            return pattern
    return None


def _repeated_groups(pattern: str) -> list[Repeat]:
    if len(pattern) > MAX_PATTERN_CHARS:
        raise Unparsable(pattern)
    return [
        node
        for node in walk(parse(pattern))
        if isinstance(node, Repeat)
        and node.most not in (0, 1)
        and not isinstance(node.node, Character)
    ]


def _classes(repeat: Repeat) -> list[str]:
    characters = [node.source for node in walk(repeat) if isinstance(node, Character)]
    return [source for source in characters if len(source) > 1]


@dataclass
class _Graph:
    """Which character of a group can follow which: one edge for each way (Glushkov's automaton)."""

    sources: list[str] = field(default_factory=list)
    edges: list[list[int]] = field(default_factory=list)


@dataclass
class _Part:
    """The characters that can begin and end the text of a node, and whether it can be empty."""

    first: list[int]
    last: list[int]
    empty: bool


class _Ambiguous(ValueError):
    """A construct that can match a text in several ways, or that is not followed here."""


def _is_unambiguous(repeat: Repeat) -> bool:
    graph = _Graph()
    try:
        part = _add(graph, Repeat(repeat.node, 1, None))
    except _Ambiguous:
        return False
    return all(
        not _overlap(graph.sources[a], graph.sources[b])
        for targets in (part.first, *graph.edges)
        for a, b in combinations(targets, 2)
    )


def _add(graph: _Graph, node: Node) -> _Part:
    """Add a node to the graph."""
    match node:
        case Character(source):
            if len(graph.sources) == MAX_GROUP_CHARACTERS:
                raise _Ambiguous
            graph.sources.append(source)
            graph.edges.append([])
            position = [len(graph.sources) - 1]
            return _Part(position, position, empty=False)
        case Opaque():
            raise _Ambiguous
        case Repeat():
            return _add_repeat(graph, node)
        case Group(zero_width=True):
            return _Part([], [], empty=True)
        case Group(alternatives):
            parts = [_add_sequence(graph, iter(sequence)) for sequence in alternatives]
            return _Part(
                [position for part in parts for position in part.first],
                [position for part in parts for position in part.last],
                any(part.empty for part in parts),
            )


def _add_repeat(graph: _Graph, repeat: Repeat) -> _Part:
    """Add {n} as n copies, other repetitions as one copy with edges from its end to its start."""
    if repeat.least == repeat.most:
        if repeat.least > MAX_GROUP_CHARACTERS:
            raise _Ambiguous
        return _add_sequence(graph, iter([repeat.node] * repeat.least))
    part = _add(graph, repeat.node)
    if repeat.most != 1:
        if part.empty:
            raise _Ambiguous
        _connect(graph, part.last, part.first)
    return _Part(part.first, part.last, part.empty or repeat.least == 0)


def _add_sequence(graph: _Graph, nodes: Iterator[Node]) -> _Part:
    whole = _Part([], [], empty=True)
    for node in nodes:
        part = _add(graph, node)
        _connect(graph, whole.last, part.first)
        whole = _Part(
            whole.first + part.first if whole.empty else whole.first,
            whole.last + part.last if part.empty else part.last,
            whole.empty and part.empty,
        )
    return whole


def _connect(graph: _Graph, sources: list[int], targets: list[int]) -> None:
    for position in sources:
        graph.edges[position].extend(targets)


def _overlap(first: str, second: str) -> bool:
    return first == second or not _matched(first).isdisjoint(_matched(second))


@lru_cache(maxsize=256)
def _matched(source: str) -> frozenset[str]:
    """Return the characters that a class matches, in the library's engine, ignoring case."""
    try:
        expression = Regex(f"(?mi:{source})")
    except Exception as error:  # the library's only type for what Oniguruma rejects
        raise Unparsable(source) from error
    rest = normalizers.Replace(expression, "").normalize_str(_SAMPLE)
    return frozenset(_SAMPLE).difference(rest)
