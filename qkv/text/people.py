"""Pieces of bytes as a person reads them.

In: the pieces of a text, some of them bytes. Out: one readable string a piece: characters, never the replacement sign.
Told in docs/tokenizers.md, "Tokens for people".
"""

from collections.abc import Iterator, Sequence
from itertools import accumulate

# Byte-level vocabularies write each byte as one visible character: printable Latin-1 as it is, the rest from U+0100 on.
_SHOWN = [*range(33, 127), *range(161, 173), *range(174, 256)]
BYTE_OF_SIGN = {chr(byte): byte for byte in _SHOWN}
BYTE_OF_SIGN |= {chr(256 + i): byte for i, byte in enumerate(sorted(set(range(256)) - set(_SHOWN)))}

_VISIBLE = {" ": "␣", "\n": "⏎", "\r": "␍", "\t": "⇥", "\ufffd": "<U+FFFD>"}


def readable(pieces: Sequence[bytes | str]) -> list[str]:
    """One string a piece: strings stay; bytes show their characters, a part of one as `好[1/3]`, foreign ones as <FF>.

    >>> readable([b" low", b"\\xe5\\xa5", b"\\xbd.", "<eos>", b"\\xff"])
    ['␣low', '好[1-2/3]', '好[3/3].', '<eos>', '<FF>']
    """
    shown, run = [], list[bytes]()
    for piece in [*pieces, ""]:  # the last, empty one ends the last run of bytes
        if isinstance(piece, bytes):
            run.append(piece)
        else:
            shown += [*_bytes_shown(run), piece]
            run = []
    return shown[:-1]


def _bytes_shown(pieces: list[bytes]) -> list[str]:
    """Neighbouring byte pieces, each as the characters that its bytes belong to."""
    spans = list(_spans(b"".join(pieces)))
    ends = list(accumulate(map(len, pieces)))
    shown, first = [], 0
    for start, end in zip([0, *ends], ends, strict=False):
        while first < len(spans) and spans[first][1] <= start:
            first += 1
        last = first
        while last < len(spans) and spans[last][0] < end:
            last += 1
        shown.append("".join(_overlap(span, start, end) for span in spans[first:last]))
    return shown


def _spans(raw: bytes) -> Iterator[tuple[int, int, str]]:
    """Every character, or byte that belongs to none, with where it starts and ends."""
    at = 0
    for character in raw.decode(errors="surrogateescape"):
        size = len(character.encode(errors="surrogateescape"))
        yield at, at + size, _visible(character)
        at += size


def _visible(character: str) -> str:
    """What a person can see of it; control characters and foreign bytes (kept as surrogates) by their number."""
    if character in _VISIBLE:
        return _VISIBLE[character]
    hidden = ord(character) < 32 or ord(character) == 127 or "\udc80" <= character <= "\udcff"
    return f"<{ord(character) & 0xFF:02X}>" if hidden else character


def _overlap(span: tuple[int, int, str], start: int, end: int) -> str:
    """The character itself, or with the mark of the bytes that lie between `start` and `end`."""
    begin, stop, shown = span
    if start <= begin and stop <= end:
        return shown
    first, last = max(start, begin) - begin + 1, min(end, stop) - begin
    return (
        f"{shown}[{first}/{stop - begin}]"
        if first == last
        else f"{shown}[{first}-{last}/{stop - begin}]"
    )
