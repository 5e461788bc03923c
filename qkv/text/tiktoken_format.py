"""Convert tiktoken rank files (lines "base64 rank") to byte-level BPE tokenizers.

The pre-tokenization pattern is not part of these files. See docs/tokenizers.md.
"""

import base64
import binascii
from itertools import pairwise
from pathlib import Path

import tokenizers
from tokenizers import Regex, decoders, models, pre_tokenizers

from qkv.errors import QkvError, near_miss
from qkv.messages import _
from qkv.text.display import BYTE_DECODER
from qkv.text.lines import read_lines
from qkv.text.tokenizer import Tokenizer

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
# Pre-tokenization patterns of the three published encodings, by name.
PATTERNS = {
    "r50k": r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    "cl100k": rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+",
    "o200k": rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_CONTRACTIONS}?"
    rf"|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_CONTRACTIONS}?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
}
# The special token ids of the published encodings, by number of ranks.
_EOT = "<|endoftext|>"
_SPECIALS = {
    50_256: {_EOT: 50_256},
    50_280: {_EOT: 50_256},
    100_256: {_EOT: 100_257},
    199_998: {_EOT: 199_999},
}
_BYTE_ENCODER = {byte: character for character, byte in BYTE_DECODER.items()}


def read_ranks(
    path: Path, pattern: str | None = None, specials: dict[str, int] | None = None
) -> Tokenizer:
    """Read a rank file.

    Args:
        path: The file.
        pattern: A name in PATTERNS; None: by the number of ranks.
        specials: Special tokens and their ids; None: by the number of ranks.
    """
    ranks = _read(path)
    specials = _SPECIALS.get(len(ranks), {}) if specials is None else specials
    pattern = pattern or (
        "r50k" if len(ranks) < 60_000 else "cl100k" if len(ranks) < 150_000 else "o200k"
    )
    if pattern not in PATTERNS:
        raise QkvError(
            "pattern", _("no pattern '{pattern}'", pattern=pattern), near_miss(pattern, PATTERNS)
        )
    ids = {_encode_bytes(piece): rank for piece, rank in ranks.items()} | specials
    merges = [(_encode_bytes(a), _encode_bytes(b)) for a, b in _merges(ranks)]
    # tiktoken looks up whole pre-tokens before merging, hence ignore_merges.
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
                _("not a base64 token and its rank"),
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
    """Return the merge of each token: the two parts that earlier merges leave of its bytes."""
    pairs = []
    for piece in sorted(ranks, key=ranks.__getitem__):
        if len(piece) > 1:
            parts = _merged(piece, ranks)
            if len(parts) == 2:  # otherwise only a whole pre-token can match it
                pairs.append((parts[0], parts[1]))
    return pairs


def _merged(piece: bytes, ranks: dict[bytes, int]) -> list[bytes]:
    """Apply all merges of lower rank to the bytes of a token."""
    parts = [bytes([byte]) for byte in piece]
    while len(parts) > 2:
        rank, i = min(
            (ranks.get(a + b, ranks[piece]), i) for i, (a, b) in enumerate(pairwise(parts))
        )
        if rank >= ranks[piece]:
            break
        parts[i : i + 2] = [parts[i] + parts[i + 1]]
    return parts


def _encode_bytes(piece: bytes) -> str:
    return "".join(_BYTE_ENCODER[byte] for byte in piece)
