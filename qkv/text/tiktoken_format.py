"""Convert tiktoken rank files (lines "base64 rank") to byte-level BPE tokenizers.

The pre-tokenization pattern is not part of these files. See docs/explanation/tokenization.md.
"""

import base64
from itertools import pairwise
from pathlib import Path

import tokenizers
from tokenizers import Regex, decoders, models, pre_tokenizers

from qkv.errors import QkvError, near_miss
from qkv.messages import _
from qkv.text.display import BYTE_DECODER
from qkv.text.lines import read_lines
from qkv.text.tokenizer import Tokenizer
from qkv.text.tokenizer_json import MAX_VOCAB_SIZE

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
MAX_PIECE_BYTES = 1_000  # the longest published tokens have 128
_BYTE_ENCODER = dict(zip(BYTE_DECODER.values(), BYTE_DECODER, strict=True))


def read_ranks(path: Path, pattern: str | None = None) -> Tokenizer:
    """Read a rank file.

    Args:
        path: The file.
        pattern: A name in PATTERNS; None: by the number of ranks.
    """
    ranks = _read(path)
    specials = _SPECIALS.get(len(ranks), {})
    pattern = pattern or (
        "r50k" if len(ranks) < 60_000 else "cl100k" if len(ranks) < 150_000 else "o200k"
    )
    if pattern not in PATTERNS:
        wrong = _("no pattern '{pattern}'", pattern=pattern)
        raise QkvError("pattern", wrong, near_miss(pattern, PATTERNS))
    ids = {_encode_bytes(piece): rank for piece, rank in ranks.items()} | specials
    merges = [(_encode_bytes(a), _encode_bytes(b)) for a, b in _merges(ranks)]
    # tiktoken looks up whole pre-tokens before merging, hence ignore_merges.
    core = tokenizers.Tokenizer(models.BPE(ids, merges, ignore_merges=True))
    split = pre_tokenizers.Split(Regex(PATTERNS[pattern]), "isolated")
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    core.pre_tokenizer = pre_tokenizers.Sequence([split, to_bytes])
    core.decoder = decoders.ByteLevel()
    core.add_special_tokens(list(specials))
    return Tokenizer(core)


def _read(path: Path) -> dict[bytes, int]:
    ranks = {}
    for number, line in enumerate(read_lines(path), start=1):
        try:
            encoded, rank = line.split()
            piece = base64.b64decode(encoded, validate=True)
            if not 0 < len(piece) <= MAX_PIECE_BYTES or not 0 <= int(rank) < MAX_VOCAB_SIZE:
                raise ValueError
            ranks[piece] = int(rank)
        except ValueError:  # or binascii.Error, a subclass
            where = _("{path}, line {number}", path=path, number=number)
            wrong = _("not a base64 token and its rank")
            raise QkvError(where, wrong, _("give a tiktoken rank file")) from None
    if missing := 256 - sum(len(piece) == 1 for piece in ranks):
        wrong = _("{n_missing} of the 256 bytes have no rank", n_missing=missing)
        raise QkvError(path, wrong, _("is the download complete?"))
    return ranks


def _merges(ranks: dict[bytes, int]) -> list[tuple[bytes, bytes]]:
    """Return the merge of each token: the two parts that earlier merges leave of its bytes."""
    merged = (_merged(piece, ranks) for piece in sorted(ranks, key=ranks.__getitem__))
    # Not two parts: a byte, or a token that only a whole pre-token can match.
    return [(parts[0], parts[1]) for parts in merged if len(parts) == 2]


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
    return piece.decode("latin-1").translate(_BYTE_ENCODER)
