"""Display byte-level tokens as readable characters, without replacement characters.

See docs/tokenizers.md.
"""

from collections.abc import Iterator, Sequence
from itertools import accumulate

# GPT-2's byte-to-unicode table: byte-level vocabularies write each byte as one printable
# character, printable Latin-1 as itself, the other bytes from U+0100 on.
_PRINTABLE = [*range(33, 127), *range(161, 173), *range(174, 256)]
BYTE_DECODER = {chr(byte): byte for byte in _PRINTABLE}
BYTE_DECODER |= {
    chr(256 + i): byte for i, byte in enumerate(sorted(set(range(256)) - set(_PRINTABLE)))
}

_VISIBLE = {" ": "␣", "\n": "⏎", "\r": "␍", "\t": "⇥", "\ufffd": "<U+FFFD>"}


def display_pieces(pieces: Sequence[bytes | str]) -> list[str]:
    """Return one readable string per piece.

    Strings stay unchanged. Bytes become characters: a part of a character as `好[1/3]`, bytes that
    are not UTF-8 as `<FF>`.

    >>> display_pieces([b" low", b"\\xe5\\xa5", b"\\xbd.", "<eos>", b"\\xff"])
    ['␣low', '好[1-2/3]', '好[3/3].', '<eos>', '<FF>']
    """
    displayed, run = [], list[bytes]()
    for piece in [*pieces, ""]:  # the empty string at the end closes the last run of bytes
        if isinstance(piece, bytes):
            run.append(piece)
        else:
            displayed += [*_display_bytes(run), piece]
            run = []
    return displayed[:-1]


def _display_bytes(pieces: list[bytes]) -> list[str]:
    """Display consecutive byte pieces, each as the characters that its bytes belong to."""
    spans = list(_character_spans(b"".join(pieces)))
    ends = list(accumulate(map(len, pieces)))
    displayed, first = [], 0
    for start, end in zip([0, *ends], ends, strict=False):
        while first < len(spans) and spans[first][1] <= start:
            first += 1
        last = first
        while last < len(spans) and spans[last][0] < end:
            last += 1
        displayed.append("".join(_overlap(span, start, end) for span in spans[first:last]))
    return displayed


def _character_spans(raw: bytes) -> Iterator[tuple[int, int, str]]:
    """Yield (start, end, display form) of each character, or byte that is not valid UTF-8."""
    start = 0
    for character in raw.decode(errors="surrogateescape"):
        size = len(character.encode(errors="surrogateescape"))
        yield start, start + size, _display_character(character)
        start += size


def _display_character(character: str) -> str:
    """Display spaces as symbols, control characters and invalid bytes (surrogates) as hex codes."""
    if character in _VISIBLE:
        return _VISIBLE[character]
    code = ord(character)
    unprintable = code < 32 or code == 127 or "\udc80" <= character <= "\udcff"
    return f"<{code & 0xFF:02X}>" if unprintable else character


def _overlap(span: tuple[int, int, str], start: int, end: int) -> str:
    """Return the character, with its byte range if only a part lies between `start` and `end`."""
    begin, stop, character = span
    if start <= begin and stop <= end:
        return character
    first, last, size = max(start, begin) - begin + 1, min(end, stop) - begin, stop - begin
    return (
        f"{character}[{first}/{size}]" if first == last else f"{character}[{first}-{last}/{size}]"
    )
