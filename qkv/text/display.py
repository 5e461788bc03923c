"""Display byte-level tokens as readable characters, without replacement characters.

See docs/explanation/tokenization.md.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby, islice
from operator import itemgetter
from typing import Any

# GPT-2's byte-to-unicode table: byte-level vocabularies write each byte as one printable
# character, printable Latin-1 as itself, the other bytes from U+0100 on.
_PRINTABLE = [*range(33, 127), *range(161, 173), *range(174, 256)]
_OTHERS = sorted(set(range(256)) - set(_PRINTABLE))
_CHARACTERS = map(chr, [*_PRINTABLE, *range(256, 256 + len(_OTHERS))])
BYTE_DECODER = dict(zip(_CHARACTERS, [*_PRINTABLE, *_OTHERS], strict=True))

_VISIBLE = {" ": "␣", "\n": "⏎", "\r": "␍", "\t": "⇥", "\ufffd": "<U+FFFD>"}


def display_pieces(pieces: Sequence[bytes | str]) -> list[str]:
    """Return one readable string per piece.

    Strings stay unchanged. Bytes become characters: a part of a character as `好[1/3]`, bytes that
    are not UTF-8 as `<FF>`.

    >>> display_pieces([b" low", b"\\xe5\\xa5", b"\\xbd.", "<eos>", b"\\xff"])
    ['␣low', '好[1-2/3]', '好[3/3].', '<eos>', '<FF>']
    """
    displayed: list[Any] = []
    for kind, group in groupby(pieces, type):
        run = list(group)
        displayed += _display_bytes(run) if kind is bytes else run
    return displayed


def _display_bytes(pieces: list[Any]) -> list[str]:
    """Display consecutive byte pieces, each as the characters that its bytes belong to."""
    owners = _owners(b"".join(pieces))
    by_piece = [groupby(list(islice(owners, len(piece))), itemgetter(0)) for piece in pieces]
    return ["".join(_display_part(*part) for part in parts) for parts in by_piece]


def _owners(raw: bytes) -> Iterator[tuple[tuple[int, int, str], int]]:
    """Yield for each byte its character (index, size, display form) and its number in it."""
    for index, character in enumerate(raw.decode(errors="surrogateescape")):
        size = len(character.encode(errors="surrogateescape"))
        owner = index, size, _display_character(character)
        yield from ((owner, number) for number in range(1, size + 1))


def _display_character(character: str) -> str:
    """Display spaces as symbols, control characters and invalid bytes (surrogates) as hex codes."""
    if character in _VISIBLE:
        return _VISIBLE[character]
    code = ord(character)
    unprintable = code < 32 or code == 127 or "\udc80" <= character <= "\udcff"
    return f"<{code & 0xFF:02X}>" if unprintable else character


def _display_part(owner: tuple[int, int, str], part: Iterable[tuple[object, int]]) -> str:
    """Return the character, with the range of its bytes if they are not all of them."""
    _, size, character = owner
    numbers = [number for _, number in part]
    if len(numbers) == size:
        return character
    first, last = numbers[0], numbers[-1]
    span = first if first == last else f"{first}-{last}"
    return f"{character}[{span}/{size}]"
