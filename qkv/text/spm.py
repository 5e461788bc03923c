"""SentencePiece models, read without the sentencepiece library.

In: a `.model` file (BPE or unigram, with or without byte fallback). Out: the same tokenizer in the
`tokenizers` library. Told in docs/tokenizers.md, "Formats".
"""

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers

from qkv.errors import QkvError
from qkv.messages import _

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
UNIGRAM, BPE = 1, 2
SPACE = "▁"


@dataclass(frozen=True)
class Piece:
    """One entry of the vocabulary; a higher score is merged (BPE) or preferred (unigram) first."""

    text: str
    score: float = 0.0
    kind: int = NORMAL


@dataclass(frozen=True)
class Model:
    """What a `.model` file says that matters for its ids."""

    pieces: tuple[Piece, ...] = ()
    algorithm: int = UNIGRAM
    byte_fallback: bool = False
    characters: bytes = b""  # SentencePiece's compiled table of replacements (its form of NFKC)
    leading_space: bool = True  # a space is put before the text
    single_spaces: bool = True  # runs of spaces become one, those at the ends go
    suffix_space: bool = False  # the rare form that marks the ends of words


def read_model(path: Path) -> Model:
    """The model in a `.model` file."""
    try:
        model = _parse(path.read_bytes())
    except FileNotFoundError:
        raise QkvError(path, _("no such file"), _("check the path")) from None
    except (ValueError, LookupError, TypeError, AttributeError, struct.error):
        model = Model()
    if not any(piece.kind == UNKNOWN for piece in model.pieces):
        raise QkvError(path, _("not a whole SentencePiece model"), _("is the download complete?"))
    if (
        model.algorithm not in (UNIGRAM, BPE)
        or model.suffix_space
        or any(p.kind == UNUSED for p in model.pieces)
    ):
        raise QkvError(
            path,
            _("a SentencePiece model of a rare form"),
            _("BPE and unigram with spaces before words can be read"),
        )
    return model


def _parse(raw: bytes) -> Model:
    """The protocol buffer's fields: 1 pieces, 2 how it was trained, 3 how text is normalized."""
    parts: dict[int, list[bytes]] = {1: [], 2: [], 3: []}
    for number, value in _fields(raw):
        parts.setdefault(number, []).append(value)
    trained, normal = dict(_fields(b"".join(parts[2]))), dict(_fields(b"".join(parts[3])))
    return Model(
        tuple(_piece(dict(_fields(piece))) for piece in parts[1]),
        trained.get(3, UNIGRAM),
        bool(trained.get(35, 0)),
        normal.get(2, b""),
        bool(normal.get(3, 1)),
        bool(normal.get(4, 1)),
        bool(trained.get(24, 0)),
    )


def convert(model: Model) -> tokenizers.Tokenizer:
    """The same vocabulary, scores and normalization for the `tokenizers` library."""
    core = tokenizers.Tokenizer(_bpe(model) if model.algorithm == BPE else _unigram(model))
    core.normalizer = normalizers.Sequence(_normalizers(model))
    if cuts := _cuts(model):
        core.pre_tokenizer = cuts
    joined = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    core.decoder = decoders.Sequence(
        [*joined, decoders.Strip(" ", left=1)] if model.leading_space else joined
    )
    core.add_special_tokens(
        [AddedToken(text, normalized=False) for text in _texts(model, UNKNOWN, CONTROL)]
    )
    return core


def _fields(raw: bytes) -> Iterator[tuple[int, Any]]:
    """A protocol buffer's fields as (number, value): whole numbers, floats (32 bit) and bytes."""
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
                value, at = struct.unpack_from("<f", raw, at)[0], at + 4
            case 1:
                value, at = struct.unpack_from("<d", raw, at)[0], at + 8
            case other:
                raise ValueError(f"field type {other}")
        if at > len(raw):
            raise ValueError("cut short")
        yield key >> 3, value


def _varint(raw: bytes, at: int) -> tuple[int, int]:
    """Seven bits a byte, the lowest first; the eighth says that more follow."""
    value = shift = 0
    while True:
        value |= (raw[at] & 127) << shift
        at, shift = at + 1, shift + 7
        if raw[at - 1] < 128:
            return value, at


def _piece(fields: dict[int, Any]) -> Piece:
    return Piece(fields[1].decode(), fields.get(2, 0.0), fields.get(3, NORMAL))


def _bpe(model: Model) -> models.BPE:
    """SentencePiece merges the two neighbours whose union scores highest; so its merges are all cuts of all pieces."""
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
        unk_token=_unknown(model).text,
        fuse_unk=True,
        byte_fallback=model.byte_fallback,
        ignore_merges=bool(_texts(model, USER_DEFINED)),
    )  # those are cut out and looked up whole


def _unigram(model: Model) -> models.Unigram:
    best = max(piece.score for piece in model.pieces if piece.kind == NORMAL)
    # What the person has defined always wins: SentencePiece scores it so, a little below its length in best pieces.
    scores = [
        len(piece.text) * best - 0.1 if piece.kind == USER_DEFINED else piece.score
        for piece in model.pieces
    ]
    texts = [piece.text for piece in model.pieces]
    return models.Unigram(
        list(zip(texts, scores, strict=True)),
        texts.index(_unknown(model).text),
        model.byte_fallback,
    )


def _unknown(model: Model) -> Piece:
    return next(piece for piece in model.pieces if piece.kind == UNKNOWN)


def _normalizers(model: Model) -> list[normalizers.Normalizer]:
    steps: list[normalizers.Normalizer] = []
    if model.characters:
        steps.append(normalizers.Precompiled(model.characters))
    if model.single_spaces:
        steps += [
            normalizers.Replace(Regex(r"\A +| +\z"), ""),
            normalizers.Replace(Regex(" {2,}"), " "),
        ]
    if model.leading_space:
        steps.append(normalizers.Prepend(SPACE))
    return [*steps, normalizers.Replace(" ", SPACE)]


def _cuts(model: Model) -> pre_tokenizers.PreTokenizer | None:
    """Where the library needs help to see what SentencePiece sees.

    BPE: what the person has defined stands alone. Unigram: `<s>` and the like are cut before their last character, or
    the library would find them in plain text.
    """
    defined = sorted(_texts(model, USER_DEFINED), key=len, reverse=True)
    if model.algorithm == BPE:
        return (
            pre_tokenizers.Split(Regex("|".join(map(re.escape, defined))), "isolated")
            if defined
            else None
        )
    hidden = [text for text in _texts(model, UNKNOWN, CONTROL) if len(text) > 1]
    cuts = [f"(?<={re.escape(text[:-1])}){re.escape(text[-1])}" for text in hidden]
    return pre_tokenizers.Split(
        Regex("|".join([*cuts, "(?<=<0x[0-9A-F][0-9A-F])>"])), "merged_with_next"
    )


def _texts(model: Model, *kinds: int) -> list[str]:
    return [piece.text for piece in model.pieces if piece.kind in kinds]
