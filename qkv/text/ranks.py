"""Rank files, as the tiktoken library reads them: byte pieces in the order of their merging.

In: lines "base64 rank" and, as the file does not say it, the pattern that cuts the text. Out: a byte-level BPE Tokenizer.
Told in docs/tokenizers.md, "Formats".
"""

import base64
import binascii
from itertools import pairwise
from pathlib import Path

import tokenizers
from tokenizers import Regex, decoders, models, pre_tokenizers

from qkv.errors import QkvError, near_miss
from qkv.messages import _
from qkv.text.lines import read_lines
from qkv.text.people import BYTE_OF_SIGN
from qkv.text.tokenizer import Tokenizer

_ENDINGS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
# How the three best-known files cut a text, by the name of the file.
PATTERNS = {
    "r50k": r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    "cl100k": rf"{_ENDINGS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+",
    "o200k": rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_ENDINGS}?|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_ENDINGS}?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
}
# The numbers after the ranks that their makers gave to special tokens.
_END = "<|endoftext|>"
_SPECIALS = {
    50_256: {_END: 50_256},
    50_280: {_END: 50_256},
    100_256: {_END: 100_257},
    199_998: {_END: 199_999},
}
_SIGN = {byte: sign for sign, byte in BYTE_OF_SIGN.items()}


def read_ranks(
    path: Path, pattern: str | None = None, specials: dict[str, int] | None = None
) -> Tokenizer:
    """A rank file as a Tokenizer; without `pattern` and `specials`, the size of the file tells whose it is."""
    ranks = _read(path)
    specials = _SPECIALS.get(len(ranks), {}) if specials is None else specials
    pattern = pattern or (
        "r50k" if len(ranks) < 60_000 else "cl100k" if len(ranks) < 150_000 else "o200k"
    )
    if pattern not in PATTERNS:
        raise QkvError(
            "pattern", _("no pattern '{pattern}'", pattern=pattern), near_miss(pattern, PATTERNS)
        )
    ids = {_shown(piece): rank for piece, rank in ranks.items()} | specials
    merges = [(_shown(a), _shown(b)) for a, b in _merges(ranks)]
    # Such files are looked up whole before merging, hence ignore_merges.
    core = tokenizers.Tokenizer(models.BPE(ids, merges, ignore_merges=True))
    core.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PATTERNS[pattern]), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    core.decoder = decoders.ByteLevel()
    core.add_special_tokens(list(specials))
    return Tokenizer(core)


def _read(path: Path) -> dict[bytes, int]:
    ranks = {}
    for number, line in enumerate(read_lines(path), start=1):
        try:
            piece, rank = line.split()
            ranks[base64.b64decode(piece, validate=True)] = int(rank)
        except (ValueError, binascii.Error):
            raise QkvError(
                _("{path}, line {number}", path=path, number=number),
                _("not a piece in base64 and its rank"),
                _("give a tiktoken rank file"),
            ) from None
    missing = [byte for byte in range(256) if bytes([byte]) not in ranks]
    if missing:
        raise QkvError(
            path,
            _("{n_missing} of the 256 bytes have no rank", n_missing=len(missing)),
            _("is the download complete?"),
        )
    return ranks


def _merges(ranks: dict[bytes, int]) -> list[tuple[bytes, bytes]]:
    """Each longer piece once had two parts: those that the earlier merges leave of its bytes."""
    pairs = []
    for piece in sorted(ranks, key=ranks.__getitem__):
        if len(piece) > 1:
            parts = _merged(piece, ranks)
            if len(parts) == 2:  # else a piece that only a whole word can be
                pairs.append((parts[0], parts[1]))
    return pairs


def _merged(piece: bytes, ranks: dict[bytes, int]) -> list[bytes]:
    """The bytes of a piece after all merges of a lower rank than its own."""
    parts = [bytes([byte]) for byte in piece]
    while len(parts) > 2:
        rank, i = min(
            (ranks.get(a + b, ranks[piece]), i) for i, (a, b) in enumerate(pairwise(parts))
        )
        if rank >= ranks[piece]:
            break
        parts[i : i + 2] = [parts[i] + parts[i + 1]]
    return parts


def _shown(piece: bytes) -> str:
    return "".join(_SIGN[byte] for byte in piece)
