"""Encode text to token ids and decode ids to text, with the `tokenizers` library.

A tokenizer is completely defined by its tokenizer.json. See docs/explanation/tokenization.md.
"""

import hashlib
import json
from collections.abc import Iterable
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import tokenizers

from qkv.arguments import check_text, check_texts
from qkv.json_files import parse_json
from qkv.messages import _
from qkv.text.chunking import CHUNK_CHARS, can_chunk, split_chunks
from qkv.text.display import BYTE_DECODER, display_pieces
from qkv.text.library_calls import check_dropout, checked_ids, encode_texts, library_errors
from qkv.text.lines import read_text, replace_surrogates, write_text
from qkv.text.normalization import adds_prefix_space
from qkv.text.tokenizer_json import check_ids, check_tokenizer_json, with_defaults

__all__ = ["Tokenizer"]

# The roles of special tokens and their names: ours first, then those of other vocabularies.
SPECIAL_TOKENS = {
    "pad": ("<pad>", "[PAD]", "<|pad|>"),
    "unk": ("<unk>", "[UNK]"),
    "bos": ("<bos>", "<s>", "<|begin_of_text|>", "<|endoftext|>"),
    "eos": ("<eos>", "</s>", "<|end_of_text|>", "<|endoftext|>"),
    "cls": ("[CLS]", "<cls>"),
    "sep": ("[SEP]", "<sep>"),
    "mask": ("[MASK]", "<mask>"),
}

_SPACE = "Ġ"  # in byte-level vocabularies


class Tokenizer:
    """A tokenizer of any kind.

    >>> from qkv.text.train_tokenizer import train_tokenizer
    >>> tokenizer = train_tokenizer("char", ["low lower"], vocab_size=20)
    >>> tokenizer.decode(tokenizer.encode("low")), len(tokenizer.encode("low"))
    ('low', 3)

    Attributes:
        core: The tokenizer of the `tokenizers` library.
        vocab_size: The largest id + 1.
        special_ids: The id of each special token.
        pad_id, unk_id, bos_id, eos_id, cls_id, sep_id, mask_id: Special token ids, or None.
    """

    def __init__(self, core: tokenizers.Tokenizer, tokenizer_json: str = ""):
        """Wrap a tokenizer of the library.

        Args:
            core: The tokenizer.
            tokenizer_json: The text it was read from: unigram scores change slightly when the
                library reads and writes them.
        """
        self._json = tokenizer_json or core.to_str()
        core.encode_special_tokens = True  # special tokens written in a text are plain text
        core.no_padding()
        core.no_truncation()
        self.core = core
        check_ids(max(core.get_vocab().values(), default=-1), _("tokenizer"))
        # By dropout and parse_special; a copy each, so that threads do not interfere.
        self._variants: dict[tuple[float, bool], tokenizers.Tokenizer] = {(0.0, False): core}
        self.vocab_size: int = 1 + max(core.get_vocab().values(), default=-1)
        self.special_ids = {
            token.content: id
            for id, token in core.get_added_tokens_decoder().items()
            if token.special
        }
        ids = map(self._special_id, SPECIAL_TOKENS.values())
        self.pad_id, self.unk_id, self.bos_id, self.eos_id, *others = ids
        self.cls_id, self.sep_id, self.mask_id = others

    def encode(self, text: str, dropout: float = 0.0, parse_special: bool = False) -> list[int]:
        """Encode a text.

        Args:
            text: The text.
            dropout: BPE-dropout: the probability of skipping a merge.
            parse_special: Whether special tokens written in the text become their ids; if not,
                they are plain text.

        Returns:
            The token ids, without special tokens before and after them.

        Raises:
            QkvError: The text is not a str, or the tokenizer does not support dropout.
        """
        return self.encode_batch([check_text("text", text)], dropout, parse_special)[0]

    def encode_batch(
        self, texts: Iterable[str], dropout: float = 0.0, parse_special: bool = False
    ) -> list[list[int]]:
        """Encode several texts in parallel.

        Args:
            texts: The texts.
            dropout: As in encode.
            parse_special: As in encode.

        Returns:
            The token ids of each text.
        """
        texts, core = check_texts("texts", texts), self._core(dropout, parse_special)
        long = max(map(len, texts), default=0) > CHUNK_CHARS
        if long and not parse_special and self._can_chunk:
            chunked = [split_chunks(text) for text in texts]
            encoded = iter(encode_texts(core, [chunk for chunks in chunked for chunk in chunks]))
            return [
                [id for encoding in islice(encoded, len(chunks)) for id in encoding.ids]
                for chunks in chunked
            ]
        return [encoding.ids for encoding in encode_texts(core, texts)]

    def offsets(self, text: str) -> list[tuple[int, int]]:
        """Find the characters of each token of a text.

        Args:
            text: The text.

        Returns:
            (start, end) for each id of encode(text): the token is text[start:end].
        """
        clean = replace_surrogates(text)
        start, spans = 0, []
        for chunk in split_chunks(clean) if self._can_chunk else [clean]:
            with library_errors():
                encoding = self.core.encode(chunk, add_special_tokens=False)
            spans += [(start + a, start + b) for a, b in encoding.offsets]
            start += len(chunk)
        if (
            self.adds_prefix_space
            and len(spans) > 1
            and spans[1][0] == 0
            and self.tokens(self.encode(text)[:1]) == [_SPACE]
        ):  # the prefix space alone covers no character; the library gives it the first one
            spans[0] = (0, 0)
        return spans

    def decode(self, ids: Iterable[int]) -> str:
        """Decode ids, skipping special tokens.

        Args:
            ids: Token ids.

        Returns:
            The text.
        """
        checked = checked_ids(ids)
        with library_errors():
            return self.core.decode(checked, skip_special_tokens=True)

    def decode_batch(self, rows: Iterable[Iterable[int]]) -> list[str]:
        """Decode several rows of ids in parallel.

        Args:
            rows: Rows of token ids.

        Returns:
            The text of each row.
        """
        checked = [checked_ids(row) for row in rows]
        with library_errors():
            return self.core.decode_batch(checked, skip_special_tokens=True)

    def tokens(self, ids: Iterable[int]) -> list[str]:
        """Look up tokens as they are written in the vocabulary.

        Args:
            ids: Token ids.

        Returns:
            The token of each id.
        """
        return [self.core.id_to_token(id) or "" for id in checked_ids(ids)]

    def display_tokens(self, ids: Iterable[int]) -> list[str]:
        """Make tokens readable.

        Args:
            ids: Token ids.

        Returns:
            A string per id; a part of a character is marked: '好[1/3]'.
        """
        return self.display_pieces(self.tokens(ids))

    def display_pieces(self, pieces: Iterable[str]) -> list[str]:
        """Make tokens readable that are written as in the vocabulary.

        Args:
            pieces: The tokens.

        Returns:
            A string per token.
        """
        return display_pieces(
            [piece if piece in self.special_ids else self._bytes(piece) for piece in pieces]
        )

    def save(self, path: str | Path) -> None:
        """Write tokenizer.json in the format of the `tokenizers` library.

        Args:
            path: The file.
        """
        write_text(path, self._json)

    @classmethod
    def load(cls, path: str | Path) -> "Tokenizer":
        """Read a tokenizer.json.

        Args:
            path: The file, or its folder.

        Raises:
            QkvError: The file is damaged or not a tokenizer.
        """
        path = Path(path)
        path = path / "tokenizer.json" if path.is_dir() else path
        return cls.from_json(read_text(path), path)

    @classmethod
    def from_json(cls, text: str, where: object = "tokenizer.json") -> "Tokenizer":
        """Build a tokenizer from the text of a tokenizer.json.

        Args:
            text: The text.
            where: The name of the file in errors.

        Raises:
            QkvError: The text is not a tokenizer.
        """
        check_tokenizer_json(parse_json(text, where), where)
        with library_errors(where):
            return cls(tokenizers.Tokenizer.from_str(text), text)

    def __reduce__(self) -> tuple[Any, ...]:
        return Tokenizer.from_json, (self._json,)

    @cached_property
    def fingerprint(self) -> str:
        """The SHA-256 of tokenizer.json."""
        return hashlib.sha256(self._json.encode()).hexdigest()

    @cached_property
    def config(self) -> dict[str, Any]:
        """tokenizer.json as a dictionary, with default values for missing fields."""
        return with_defaults(json.loads(self._json), type(self.core.model).__name__)

    @cached_property
    def adds_prefix_space(self) -> bool:
        """Whether a text that begins with a word is encoded as after a space."""
        return adds_prefix_space(self.config)

    @cached_property
    def _can_chunk(self) -> bool:
        return can_chunk(self.config)

    @cached_property
    def _is_byte_level(self) -> bool:
        return "ByteLevel" in json.dumps(self.config["decoder"])

    def _special_id(self, names: Iterable[str]) -> int | None:
        """Return the id of the first of these names that is a special token."""
        for name in names:
            if name in self.special_ids:
                return self.special_ids[name]
        return None

    def _bytes(self, piece: str) -> bytes | str:
        """Return the bytes of a byte-level or byte-fallback token, else the token."""
        if self._is_byte_level and BYTE_DECODER.keys() >= set(piece):
            return bytes(map(BYTE_DECODER.__getitem__, piece))
        is_byte = len(piece) == 6 and piece.startswith("<0x")
        if is_byte and self.config["model"].get("byte_fallback"):
            return bytes([int(piece[3:5], 16)])
        return piece

    def _core(self, dropout: float, parse_special: bool) -> tokenizers.Tokenizer:
        if (dropout, parse_special) not in self._variants:
            core = tokenizers.Tokenizer.from_str(self._json)
            core.encode_special_tokens = not parse_special
            core.no_padding()
            core.no_truncation()
            if dropout:
                check_dropout(dropout, core.model)
                core.model.dropout = dropout
            self._variants[dropout, parse_special] = core
        return self._variants[dropout, parse_special]
