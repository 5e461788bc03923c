"""Text to ids and back, whatever the kind of tokenizer.

In: text, one or many. Out: ids, and text again. The fast core is the `tokenizers` library; all that makes a
tokenizer what it is stands in its tokenizer.json. Told in docs/tokenizers.md.
"""

import hashlib
import json
from collections.abc import Iterable
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import models

from qkv.errors import QkvError
from qkv.messages import _
from qkv.text.blocks import BLOCK, blocks, may_cut
from qkv.text.lines import mend_surrogates, read_text, write_text
from qkv.text.people import BYTE_OF_SIGN, readable
from qkv.text.pipeline import adds_prefix_space
from qkv.text.rules import completed

# What a special token is for, and the names it goes by: ours first, then those of other people's vocabularies.
SPECIAL_TOKENS = {
    "pad": ("<pad>", "[PAD]", "<|pad|>"),
    "unk": ("<unk>", "[UNK]"),
    "bos": ("<bos>", "<s>", "<|begin_of_text|>", "<|endoftext|>"),
    "eos": ("<eos>", "</s>", "<|end_of_text|>", "<|endoftext|>"),
    "cls": ("[CLS]", "<cls>"),
    "sep": ("[SEP]", "<sep>"),
    "mask": ("[MASK]", "<mask>"),
}

_SPACE = next(
    sign for sign, byte in BYTE_OF_SIGN.items() if byte == 0x20
)  # how byte-level vocabularies write a space


class Tokenizer:
    """A vocabulary and the rules that turn text into its ids: ids = tokenizer.encode("low"); tokenizer.decode(ids)."""

    def __init__(self, core: tokenizers.Tokenizer, description: str = ""):
        self._json = (
            description or core.to_str()
        )  # scores change a little when the library reads and writes them
        core.encode_special_tokens = (
            True  # the library's way to say: the text of a special token is text
        )
        core.no_padding()
        core.no_truncation()
        self.core = core
        self._others: dict[tuple[float, bool], tokenizers.Tokenizer] = {}
        self.vocab_size: int = 1 + max(core.get_vocab().values(), default=-1)
        self.special_ids = {
            token.content: id
            for id, token in core.get_added_tokens_decoder().items()
            if token.special
        }
        self.pad_id, self.unk_id, self.bos_id, self.eos_id = map(
            self._special, ("pad", "unk", "bos", "eos")
        )
        self.cls_id, self.sep_id, self.mask_id = map(self._special, ("cls", "sep", "mask"))

    def encode(self, text: str, dropout: float = 0.0, parse_special: bool = False) -> list[int]:
        """The ids of a text; special tokens written in it are plain text unless `parse_special`."""
        return self.encode_batch([text], dropout, parse_special)[0]

    def encode_batch(
        self, texts: Iterable[str], dropout: float = 0.0, parse_special: bool = False
    ) -> list[list[int]]:
        """The ids of many texts; `dropout` is the share of merges left out by chance, to vary training (BPE only)."""
        texts, core = list(texts), self._core(dropout, parse_special)
        if not parse_special and self._may_cut and max(map(len, texts), default=0) > BLOCK:
            cut = [blocks(text) for text in texts]
            encoded = iter(_encode(core, [block for text in cut for block in text]))
            return [[id for part in islice(encoded, len(text)) for id in part.ids] for text in cut]
        return [encoding.ids for encoding in _encode(core, texts)]

    def offsets(self, text: str) -> list[tuple[int, int]]:
        """For each id of encode(text), the characters of the original text it stands for: text[start:end]."""
        start, found = 0, []
        for block in blocks(mend_surrogates(text)) if self._may_cut else [mend_surrogates(text)]:
            found += [
                (start + a, start + b)
                for a, b in self.core.encode(block, add_special_tokens=False).offsets
            ]
            start += len(block)
        if (
            self.adds_prefix_space
            and len(found) > 1
            and found[1][0] == 0
            and self.tokens(self.encode(text)[:1]) == [_SPACE]
        ):
            found[0] = (
                0,
                0,
            )  # the prefix space alone stands for no character; the library gives it the first one
        return found

    def decode(self, ids: Iterable[int]) -> str:
        """The text of the ids, special tokens left out."""
        return self.core.decode(list(map(int, ids)), skip_special_tokens=True)

    def decode_batch(self, rows: Iterable[Iterable[int]]) -> list[str]:
        """The texts of many rows of ids."""
        return self.core.decode_batch(
            [list(map(int, row)) for row in rows], skip_special_tokens=True
        )

    def tokens(self, ids: Iterable[int]) -> list[str]:
        """The pieces as they stand in the vocabulary."""
        return [self.core.id_to_token(int(id)) or "" for id in ids]

    def tokens_for_people(self, ids: Iterable[int]) -> list[str]:
        """One string an id in which a person sees characters, marked where a piece is a part of one: '好[1/3]'."""
        return self.shown(self.tokens(ids))

    def shown(self, pieces: Iterable[str]) -> list[str]:
        """Pieces of the vocabulary as a person reads them."""
        return readable(
            [piece if piece in self.special_ids else self._bytes(piece) for piece in pieces]
        )

    def save(self, path: str | Path) -> None:
        """Write tokenizer.json: the vocabulary, the merges and every choice, readable by the `tokenizers` library."""
        write_text(path, self._json)

    @classmethod
    def load(cls, path: str | Path) -> "Tokenizer":
        """Read a tokenizer.json, or the one in a folder."""
        path = Path(path) / "tokenizer.json" if Path(path).is_dir() else Path(path)
        description = read_text(path)
        try:
            return cls.from_json(description)
        except Exception as error:
            raise _unreadable(path, description, str(error)) from None

    @classmethod
    def from_json(cls, text: str) -> "Tokenizer":
        """The tokenizer that a tokenizer.json describes."""
        return cls(tokenizers.Tokenizer.from_str(text), text)

    def __reduce__(self) -> tuple[Any, ...]:
        return Tokenizer.from_json, (self._json,)  # processes hand each other the description

    @cached_property
    def fingerprint(self) -> str:
        """Equal for equal tokenizers: the SHA-256 of tokenizer.json."""
        return hashlib.sha256(self._json.encode()).hexdigest()

    @cached_property
    def rules(self) -> dict[str, Any]:
        """tokenizer.json as a dictionary: normalizer, pre_tokenizer, model, decoder, added_tokens; no field is missing."""
        return completed(json.loads(self._json), type(self.core.model).__name__)

    @cached_property
    def adds_prefix_space(self) -> bool:
        """Whether a text that begins with a word is encoded with one space before it, which decoding removes."""
        return adds_prefix_space(self.rules)

    @cached_property
    def _may_cut(self) -> bool:
        return may_cut(self.rules)

    @cached_property
    def _is_byte_level(self) -> bool:
        return "ByteLevel" in json.dumps(self.rules["decoder"])

    def _special(self, role: str) -> int | None:
        return next(
            (self.special_ids[name] for name in SPECIAL_TOKENS[role] if name in self.special_ids),
            None,
        )

    def _bytes(self, piece: str) -> bytes | str:
        """The bytes a piece stands for where pieces are bytes; else the piece."""
        if self._is_byte_level and all(sign in BYTE_OF_SIGN for sign in piece):
            return bytes(BYTE_OF_SIGN[sign] for sign in piece)
        if self.rules["model"].get("byte_fallback") and len(piece) == 6 and piece.startswith("<0x"):
            return bytes([int(piece[3:5], 16)])
        return piece

    def _core(self, dropout: float, parse_special: bool) -> tokenizers.Tokenizer:
        """The core for these wishes; a copy, so that two threads with different wishes do not disturb each other."""
        if not dropout and not parse_special:
            return self.core
        if (dropout, parse_special) not in self._others:
            self._others[dropout, parse_special] = self._copy(dropout, parse_special)
        return self._others[dropout, parse_special]

    def _copy(self, dropout: float, parse_special: bool) -> tokenizers.Tokenizer:
        core = tokenizers.Tokenizer.from_str(self._json)
        core.encode_special_tokens = not parse_special
        if dropout:
            self._check_dropout(dropout)
            core.model.dropout = dropout
        return core

    def _check_dropout(self, dropout: float) -> None:
        if not 0 <= dropout <= 1:
            raise QkvError(
                "dropout",
                _("{dropout} is not a share", dropout=dropout),
                _("choose between 0 and 1"),
            )
        if not isinstance(self.core.model, models.BPE):
            raise QkvError("dropout", _("only BPE has merges to leave out"), _("use 0"))


def _encode(core: tokenizers.Tokenizer, texts: list[str]) -> list[tokenizers.Encoding]:
    """The library refuses lone surrogates, which is rare: texts are searched for them only then."""
    try:
        return core.encode_batch_fast(texts, add_special_tokens=False)
    except TypeError:
        return core.encode_batch_fast(list(map(mend_surrogates, texts)), add_special_tokens=False)


def _unreadable(path: Path, text: str, reason: str) -> QkvError:
    """Whether the file is damaged, something else, or a tokenizer with a part missing."""
    try:
        rules = json.loads(text)
    except json.JSONDecodeError as error:
        where = _("line {lineno}, column {colno}", lineno=error.lineno, colno=error.colno)
        return QkvError(
            path, _("damaged JSON ({where})", where=where), _("is the download complete?")
        )
    if not isinstance(rules, dict) or "model" not in rules:
        return QkvError(
            path,
            _("JSON, but not a tokenizer"),
            _("give a tokenizer.json of qkv or the tokenizers library"),
        )
    return QkvError(
        path,
        _("not a whole tokenizer ({reason})", reason=reason),
        _("write it again with the program it comes from"),
    )
