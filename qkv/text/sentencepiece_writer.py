"""Write tokenizers as SentencePiece models: the inverse of sentencepiece_format.

A tokenizer that would get other ids there is an error. See docs/explanation/tokenization.md,
"File formats".
"""

import base64
import json
import re
import struct
from collections.abc import Iterator, Mapping
from typing import Any

from qkv.errors import QkvError
from qkv.messages import _, listed
from qkv.text import sentencepiece_format as spm
from qkv.text.tokenizer import Tokenizer

SHOWN = 3  # examples in an error
COMPARED = ("normalizer", "pre_tokenizer")  # parts of tokenizer.json that determine the ids
# Fields of trainer_spec: (number of the id, number of the piece).
SPECIAL_FIELDS = {"unk": (40, 45), "bos": (41, 46), "eos": (42, 47), "pad": (43, 48)}


def sentencepiece_bytes(tokenizer: Tokenizer) -> bytes:
    """The `.model` file of a tokenizer; it gives the same ids.

    Raises:
        QkvError: The format cannot express the tokenizer.
    """
    model = sentencepiece_model(tokenizer)
    special = {role: getattr(tokenizer, f"{role}_id") for role in SPECIAL_FIELDS}
    return b"".join(_encode(model, special))


def sentencepiece_model(tokenizer: Tokenizer) -> spm.Model:
    """The fields of the model; reading them back gives this normalizer, pre-tokenizer and ids."""
    config = tokenizer.config
    kinds = {"BPE": spm.BPE, "Unigram": spm.UNIGRAM}
    kind = config["model"]["type"]
    if kind not in kinds or config["model"].get("end_of_word_suffix"):
        name = "BPE (</w>)" if kind in kinds else kind
        raise _not_expressible(_("it has only BPE and unigram models, not {kind}", kind=name))
    if "ByteLevel" in json.dumps([config["pre_tokenizer"], config["normalizer"]]):
        raise _not_expressible(_("it has no byte-level BPE"))
    model = spm.Model(
        pieces=tuple(_pieces(config)),
        algorithm=kinds[kind],
        byte_fallback=bool(config["model"].get("byte_fallback")),
        **_normalization(config["normalizer"]),
    )
    _check_normalization(model, config)
    if kind == "BPE":
        _check_merges(tokenizer, model)
    return model


def _not_expressible(reason: str) -> QkvError:
    wrong = _("the SentencePiece format cannot express this tokenizer: {reason}", reason=reason)
    return QkvError(_("tokenizer"), wrong, _("write tokenizer.json"))


def _pieces(config: Mapping[str, Any]) -> Iterator[spm.Piece]:
    """The vocabulary in the order of the ids, special tokens included."""
    model, added = config["model"], {token["id"]: token for token in config["added_tokens"]}
    scores, unknown = _scores(model)
    if plain := [token["content"] for token in added.values() if not token["special"]]:
        raise _not_expressible(
            _("added tokens that are not special ({names})", names=listed(plain))
        )
    by_id = {**{id: text for text, (id, _score) in scores.items()}}
    by_id |= {id: token["content"] for id, token in added.items()}
    if sorted(by_id) != list(range(len(by_id))):
        raise _not_expressible(_("ids that no token has"))
    if unknown not in by_id.values():
        raise _not_expressible(_("there is no token for unknown text"))
    defined = _user_defined(config["pre_tokenizer"], model)
    for id in range(len(by_id)):
        text, kind = by_id[id], spm.NORMAL
        if text == unknown:
            kind = spm.UNKNOWN
        elif id in added:
            kind = spm.CONTROL
        elif model.get("byte_fallback") and re.fullmatch("<0x[0-9A-F]{2}>", text):
            kind = spm.BYTE
        elif text in defined:
            kind = spm.USER_DEFINED
        yield spm.Piece(text, scores.get(text, (0, 0.0))[1] if kind == spm.NORMAL else 0.0, kind)


def _scores(model: Mapping[str, Any]) -> tuple[dict[str, tuple[int, float]], str | None]:
    """Token -> (id, score), and the unknown token; the scores of BPE follow from the merges."""
    if model["type"] == "Unigram":
        vocab = {text: (id, score) for id, (text, score) in enumerate(model["vocab"])}
        unknown = model["unk_id"]
        return vocab, None if unknown is None else model["vocab"][unknown][0]
    ranks = _ranks([first + second for first, second in model["merges"]])
    symbols = [text for text in model["vocab"] if text not in ranks]
    ranks |= {text: len(ranks) + n for n, text in enumerate(symbols)}
    vocab = {text: (id, -float(ranks[text])) for text, id in model["vocab"].items()}
    return vocab, model["unk_token"]


def _ranks(merged: list[str]) -> dict[str, int]:
    """Rank of each merged token; tokens whose merges are interleaved have equal scores.

    _ranks(["ab", "ab", "abc", "bc", "abc"]) == {"ab": 0, "abc": 1, "bc": 1}
    """
    last = {text: index for index, text in enumerate(merged)}
    ranks: dict[str, int] = {}
    rank, end = -1, -1
    for index, text in enumerate(merged):
        rank += index > end
        end = max(end, last[text])
        ranks.setdefault(text, rank)
    return ranks


def _user_defined(pre_tokenizer: Mapping[str, Any] | None, model: Mapping[str, Any]) -> set[str]:
    """User-defined symbols of a BPE model: those that its pre-tokenizer isolates."""
    pattern = ((pre_tokenizer or {}).get("pattern") or {}).get("Regex")
    if pattern is None or model["type"] != "BPE":
        return set()
    escaped = set(re.split(r"(?<!\\)\|", pattern))
    return {text for text in model["vocab"] if re.escape(text) in escaped}


def _normalization(normalizer: Mapping[str, Any] | None) -> dict[str, Any]:
    """The fields of normalizer_spec; `_check_normalization` compares the result."""
    steps = (normalizer or {}).get("normalizers", [])
    charsmaps = [step["precompiled_charsmap"] for step in steps if step["type"] == "Precompiled"]
    return {
        "precompiled_charsmap": base64.b64decode(charsmaps[0]) if charsmaps else b"",
        "add_dummy_prefix": any(step["type"] == "Prepend" for step in steps),
        "remove_extra_whitespaces": any(step.get("content") == "" for step in steps),
    }


def _check_normalization(model: spm.Model, config: Mapping[str, Any]) -> None:
    """Raise if the model, read back, has another normalizer or pre-tokenizer."""
    if model.algorithm == spm.BPE and not (config["model"]["fuse_unk"] or model.byte_fallback):
        raise _not_expressible(_("it replaces a run of unknown characters by one token"))
    again = Tokenizer(spm.convert(model)).config
    for part in COMPARED:
        if again[part] != config[part]:
            raise _not_expressible(
                _("its {part} would be {ours}", part=part, ours=_summary(again[part]))
            )


def _summary(part: Any) -> str:
    """The types of the components, in order."""
    steps = (part or {}).get("normalizers", [part] if part else [])
    return " + ".join(step["type"] for step in steps) or _("none")


def _check_merges(tokenizer: Tokenizer, model: spm.Model) -> None:
    """Raise if SentencePiece, which merges any two pieces whose union is a piece, would differ.

    It does not if the table is the one that a model file gives when it is read; or if no two tokens
    have equal scores and every token is reached by its own merges: then no text ever has two other
    neighbors with that union.
    """
    merges = tokenizer.config["model"]["merges"]
    if Tokenizer(spm.convert(model)).config["model"]["merges"] == merges:
        return
    normal = {piece.text: piece.score for piece in model.pieces if piece.kind == spm.NORMAL}
    if len(set(normal.values())) < len(normal):
        raise _not_expressible(_("the merges of one token are not adjacent in the merge table"))
    core = tokenizer.core.model
    lost = [text for text in normal if [token.value for token in core.tokenize(text)] != [text]]
    if lost:
        examples = listed(f"'{text}'" for text in lost[:SHOWN])
        raise _not_expressible(
            _("{n} tokens that merges do not produce ({examples})", n=len(lost), examples=examples)
        )


# ── Protocol buffer ───────────────────────────────────────────────────────────────────────────
def _encode(model: spm.Model, special: Mapping[str, int | None]) -> Iterator[bytes]:
    """The fields of the file: 1 pieces, 2 trainer_spec, 3 normalizer_spec."""
    for piece in model.pieces:
        score = bytes([2 << 3 | 5]) + struct.pack("<f", piece.score)
        yield _bytes(1, _bytes(1, piece.text.encode()) + score + _integer(3, piece.kind))
    trainer = [
        _integer(3, model.algorithm),
        _integer(4, len(model.pieces)),
        _integer(35, model.byte_fallback),
    ]
    for role, (id_field, piece_field) in SPECIAL_FIELDS.items():
        id = special[role]
        trainer.append(_integer(id_field, -1 if id is None else id))
        if id is not None:
            trainer.append(_bytes(piece_field, model.pieces[id].text.encode()))
    yield _bytes(2, b"".join(trainer))
    normalizer = [
        _bytes(2, model.precompiled_charsmap),
        _integer(3, model.add_dummy_prefix),
        _integer(4, model.remove_extra_whitespaces),
        _integer(5, True),
    ]
    yield _bytes(3, b"".join(normalizer))


def _integer(number: int, value: int) -> bytes:
    """An integer field; a negative number has the 64 bits of its two's complement."""
    return _as_varint(number << 3) + _as_varint(value & (1 << 64) - 1)


def _bytes(number: int, value: bytes) -> bytes:
    return _as_varint(number << 3 | 2) + _as_varint(len(value)) + value


def _as_varint(value: int) -> bytes:
    """Seven bits per byte, lowest first; bit 8: more follow."""
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])
