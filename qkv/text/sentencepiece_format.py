"""Convert SentencePiece models (BPE or unigram) to the `tokenizers` library.

The protocol buffer is parsed here; the sentencepiece library is not needed.
See docs/explanation/tokenization.md.
"""

import math
import re
import struct
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers

from qkv.errors import QkvError
from qkv.json_files import MAX_JSON_BYTES, read_regular
from qkv.messages import _
from qkv.text.charsmap import is_charsmap

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
UNIGRAM, BPE = 1, 2
SPACE = "▁"
MAX_PIECE_CHARS = 1_000  # SentencePiece's default limit is 16


@dataclass(frozen=True)
class Piece:
    """A vocabulary entry; BPE merges the highest score first, unigram maximizes the sum."""

    text: str
    score: float = 0.0
    kind: int = NORMAL


@dataclass(frozen=True)
class Model:
    """The fields of a `.model` file that determine the ids."""

    pieces: tuple[Piece, ...] = ()
    algorithm: int = UNIGRAM
    byte_fallback: bool = False
    precompiled_charsmap: bytes = b""  # SentencePiece's compiled normalization table (NFKC)
    add_dummy_prefix: bool = True  # add a space before the text
    remove_extra_whitespaces: bool = True  # collapse runs of spaces, strip the text
    treat_whitespace_as_suffix: bool = False  # mark the ends of words; rare


def read_model(path: Path) -> Model:
    """Read a `.model` file."""
    try:
        model = _parse(read_regular(path, MAX_JSON_BYTES))
    except (ValueError, LookupError, TypeError, AttributeError, struct.error):
        model = Model()
    if not _texts(model, UNKNOWN) or not _texts(model, NORMAL):
        wrong = _("not a complete SentencePiece model")
        raise QkvError(path, wrong, _("is the download complete?"))
    suffix, known = model.treat_whitespace_as_suffix, model.algorithm in (UNIGRAM, BPE)
    if suffix or not known or _texts(model, UNUSED):
        right = _("use BPE or unigram with whitespace as a prefix")
        raise QkvError(path, _("unsupported SentencePiece model"), right)
    return model


def _parse(raw: bytes) -> Model:
    """Parse the protocol buffer: field 1 pieces, 2 trainer_spec, 3 normalizer_spec."""
    values = defaultdict[int, list[bytes]](list)
    for number, value in _fields(raw):
        values[number].append(value)
    trainer_spec = dict(_fields(b"".join(values[2])))
    normalizer_spec = dict(_fields(b"".join(values[3])))
    charsmap = normalizer_spec.get(2, b"")
    if charsmap != b"" and not (isinstance(charsmap, bytes) and is_charsmap(charsmap)):
        raise ValueError("precompiled_charsmap")
    return Model(
        pieces=tuple(map(_piece, values[1])),
        algorithm=trainer_spec.get(3, UNIGRAM),
        byte_fallback=bool(trainer_spec.get(35, 0)),
        precompiled_charsmap=charsmap,
        add_dummy_prefix=bool(normalizer_spec.get(3, 1)),
        remove_extra_whitespaces=bool(normalizer_spec.get(4, 1)),
        treat_whitespace_as_suffix=bool(trainer_spec.get(24, 0)),
    )


def convert(model: Model) -> tokenizers.Tokenizer:
    """Return a tokenizer with the same vocabulary, scores and normalization."""
    core = tokenizers.Tokenizer(_bpe(model) if model.algorithm == BPE else _unigram(model))
    core.normalizer = normalizers.Sequence(_normalizers(model))
    if pre_tokenizer := _pre_tokenizer(model):
        core.pre_tokenizer = pre_tokenizer
    steps = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if model.add_dummy_prefix:
        steps.append(decoders.Strip(" ", left=1))
    core.decoder = decoders.Sequence(steps)
    specials = _texts(model, UNKNOWN, CONTROL)
    core.add_special_tokens([AddedToken(text, normalized=False) for text in specials])
    return core


def _fields(raw: bytes) -> Iterator[tuple[int, Any]]:
    """Yield the (number, value) of a protocol buffer's fields: integers, floats and bytes."""
    at, value = 0, None  # type: int, Any
    while at < len(raw):
        key, at = _varint(raw, at)
        match key & 7:
            case 0:
                value, at = _varint(raw, at)
            case 2:
                size, at = _varint(raw, at)
                value, at = raw[at : at + size], at + size
            case 5:
                (value,), at = struct.unpack_from("<f", raw, at), at + 4
            case 1:
                (value,), at = struct.unpack_from("<d", raw, at), at + 8
            case other:
                raise ValueError(f"field type {other}")
        if at > len(raw):
            raise ValueError("truncated")
        yield key >> 3, value


def _varint(raw: bytes, at: int) -> tuple[int, int]:
    """Return a varint and its end: seven bits per byte, lowest first; bit 8: more follow."""
    value = shift = 0
    while shift < 64:
        value |= (raw[at] & 127) << shift
        at, shift = at + 1, shift + 7
        if raw[at - 1] < 128:
            return value, at
    raise ValueError("an integer of more than 64 bits")


def _piece(raw: bytes) -> Piece:
    fields = dict(_fields(raw))
    text, score, kind = fields[1].decode(), fields.get(2, 0.0), fields.get(3, NORMAL)
    if len(text) > MAX_PIECE_CHARS or not math.isfinite(score):
        raise ValueError("not a piece")
    return Piece(text, score, kind)


def _bpe(model: Model) -> models.BPE:
    """Convert scores to merges.

    SentencePiece merges the adjacent pair whose union has the highest score, so every split of
    every piece into two pieces is a merge.
    """
    ids = {piece.text: id for id, piece in enumerate(model.pieces)}
    mergeable = {piece.text: piece.score for piece in model.pieces if piece.kind == NORMAL}
    merges = sorted(
        (-score, ids[text[:i]], ids[text[i:]])
        for text, score in mergeable.items()
        for i in range(1, len(text))
        if text[:i] in mergeable and text[i:] in mergeable
    )
    pairs = [(model.pieces[a].text, model.pieces[b].text) for _, a, b in merges]
    return models.BPE(
        ids,
        pairs,
        unk_token=_texts(model, UNKNOWN)[0],
        fuse_unk=True,
        byte_fallback=model.byte_fallback,
        ignore_merges=bool(_texts(model, USER_DEFINED)),  # whole pre-tokens, see _pre_tokenizer
    )


def _unigram(model: Model) -> models.Unigram:
    best = max(piece.score for piece in model.pieces if piece.kind == NORMAL)
    # User-defined symbols always win: SentencePiece gives them length * best score - 0.1.
    scores = [
        len(piece.text) * best - 0.1 if piece.kind == USER_DEFINED else piece.score
        for piece in model.pieces
    ]
    texts = [piece.text for piece in model.pieces]
    unknown_id = texts.index(_texts(model, UNKNOWN)[0])
    return models.Unigram(list(zip(texts, scores, strict=True)), unknown_id, model.byte_fallback)


def _normalizers(model: Model) -> list[normalizers.Normalizer]:
    steps: list[normalizers.Normalizer] = []
    if model.precompiled_charsmap:
        steps.append(normalizers.Precompiled(model.precompiled_charsmap))
    if model.remove_extra_whitespaces:
        steps += [
            normalizers.Replace(Regex(r"\A +| +\z"), ""),
            normalizers.Replace(Regex(" {2,}"), " "),
        ]
    if model.add_dummy_prefix:
        steps.append(normalizers.Prepend(SPACE))
    return [*steps, normalizers.Replace(" ", SPACE)]


def _pre_tokenizer(model: Model) -> pre_tokenizers.PreTokenizer | None:
    """Return the splits that make the library agree with SentencePiece.

    BPE: user-defined symbols are isolated. Unigram: control symbols such as `<s>` are split before
    their last character, or the library would match them in plain text.
    """
    defined = sorted(_texts(model, USER_DEFINED), key=len, reverse=True)
    if model.algorithm == BPE:
        pattern = Regex("|".join(map(re.escape, defined)))
        return pre_tokenizers.Split(pattern, "isolated") if defined else None
    control = [text for text in _texts(model, UNKNOWN, CONTROL) if len(text) > 1]
    splits = [f"(?<={re.escape(text[:-1])}){re.escape(text[-1])}" for text in control]
    pattern = Regex("|".join([*splits, "(?<=<0x[0-9A-F][0-9A-F])>"]))
    return pre_tokenizers.Split(pattern, "merged_with_next")


def _texts(model: Model, *kinds: int) -> list[str]:
    return [piece.text for piece in model.pieces if piece.kind in kinds]
