"""A loaded model with its tokenizers: encoding of texts and display of tokens, by side.

The encoder reads the "source" side, the decoder the "target" side. See docs/explore.md.
"""

import re
from collections.abc import Sequence
from functools import cached_property
from typing import Any

from qkv.checkpoint.loaded_model import LoadedModel, PoolingConfig
from qkv.errors import QkvError
from qkv.generate.alignment import Unit, target_units, units
from qkv.messages import _
from qkv.text.lines import replace_surrogates
from qkv.text.special_tokens import (
    Template,
    decoder_start_id,
    encoder_template,
    translation_template,
)
from qkv.text.tokenizer import Tokenizer

_PART = re.compile(r"(<[^<>]+>|.)\[(\d+)(?:-\d+)?/\d\]")  # a part of a character in display_tokens


class ExploredModel:
    """A model of any family and its tokenizers, one for each side."""

    def __init__(self, loaded: LoadedModel, name: str, begin: Sequence[int] | None = None):
        """`begin`: ids before every prompt of a generator; None: the <bos> of its tokenizer."""
        self.model, self.name = loaded.model, name
        spec = self.model.spec
        both = spec.encoder is not None and spec.decoder is not None
        self.family = "translator" if both else "generator" if spec.decoder else "embedder"
        self.tokenizers = tokenizers_of(loaded, self.family, name)
        self.begin = begin
        self.generation, self.alignment = loaded.generation, loaded.alignment
        self.pooling = loaded.pooling or PoolingConfig()

    @property
    def eos_id(self) -> int | None:
        """The token that ends the decoder's output."""
        return (self.generation.eos_ids or (self.tokenizers["target"].eos_id,))[0]

    @property
    def bos_id(self) -> int | None:
        """The token that the decoder starts with."""
        target = self.tokenizers["target"]
        return (
            decoder_start_id(target, self.generation)
            if self.family == "translator"
            else target.bos_id
        )

    def encode(self, text: str, side: str) -> list[int]:
        """The ids of a text with the special tokens before and after it."""
        tokenizer = self.tokenizers[side]
        before, after = self.special_tokens(side)
        return [*before, *tokenizer.encode(replace_surrogates(text)), *after]

    def special_tokens(self, side: str) -> tuple[list[int], list[int]]:
        """The special tokens before and after a text on this side."""
        if side == "target":
            begin = self.begin if self.family == "generator" else None
            bos = [] if self.bos_id is None else [self.bos_id]
            return bos if begin is None else list(begin), []
        return list(self.template.before), list(self.template.after)

    @cached_property
    def template(self) -> Template:
        """The special tokens around an encoder's input."""
        return (translation_template if self.family == "translator" else encoder_template)(
            self.tokenizers["source"]
        )

    def display_tokens(self, ids: Sequence[int], side: str) -> list[str]:
        """A readable string for each id of a text; "<id>" if the tokenizer has no such token."""
        named = self.tokenizers[side].display_tokens(ids)
        return [text or f"<{id}>" for text, id in zip(named, ids, strict=True)]

    def display_separately(self, ids: Sequence[int], side: str) -> list[str]:
        """Readable strings for unrelated ids: bytes of adjacent ids are not decoded together."""
        return [self.display_tokens([id], side)[0] for id in ids]

    def text_of(self, ids: Sequence[int], side: str = "target", before: Sequence[int] = ()) -> str:
        """Decode ids; bytes of incomplete characters are written as in tokens, never as U+FFFD."""
        tokenizer = self.tokenizers[side]
        text = tokenizer.decode(ids)
        if before and tokenizer.adds_prefix_space:  # a space after other tokens is no prefix space
            text = tokenizer.decode([*before, *ids])[len(tokenizer.decode(before)) :]
        if "\ufffd" not in text:
            return text
        special = set(self.tokenizers[side].special_ids.values())
        kept = [id for id in ids if id not in special]
        tokens = zip(self.display_tokens(kept, side), self.partial(kept, side), strict=True)
        return "".join(
            _PART.sub(first_part, token) if partial else token for token, partial in tokens
        ).replace("␣", " ")

    def partial(self, ids: Sequence[int], side: str) -> list[bool]:
        """Whether a token is a part of a character, and not a text that resembles our notation."""
        raw = self.tokenizers[side].tokens(ids)
        return [
            bool(_PART.search(token) and not _PART.search(piece))
            for token, piece in zip(self.display_tokens(ids, side), raw, strict=True)
        ]

    def side(self, ids: Sequence[int], side: str, text: str | None = None) -> dict[str, Any]:
        """Tokens and words of a side, as JSON; `text`: what the ids were encoded from, if known."""
        special = set(self.tokenizers[side].special_ids.values())
        return {
            "ids": list(ids),
            "tokens": self.display_tokens(ids, side),
            "special": [id in special for id in ids],
            "partial": self.partial(ids, side),
            "words": [
                {"text": word.text, "tokens": word.tokens} for word in self.words(ids, side, text)
            ],
        }

    def words(self, ids: Sequence[int], side: str, text: str | None) -> list[Unit]:
        """Tokens grouped into words; a token outside of words, such as <eos>, is its own unit."""
        begin, end = (len(part) for part in self.special_tokens(side))
        body, tokenizer = ids[begin : len(ids) - end], self.tokenizers[side]
        if text is None or tokenizer.encode(replace_surrogates(text)) != list(body):
            begin, found = 0, target_units(tokenizer, ids)
        else:
            found = units(replace_surrogates(text), tokenizer.offsets(text))
        words = [Unit(word.text, [token + begin for token in word.tokens]) for word in found]
        others = set(range(len(ids))) - {token for word in words for token in word.tokens}
        displayed = self.display_tokens(ids, side)
        single = [Unit(displayed[token], [token]) for token in others]
        return sorted([*words, *single], key=lambda word: word.tokens[0])

    @property
    def max_len(self) -> int:
        """Maximum number of tokens of a side."""
        return min(self.pooling.max_len or self.model.spec.max_len, self.model.spec.max_len)


def first_part(part: re.Match[str]) -> str:
    """Replace the first part by the character and drop the others: 好[1/3]好[2-3/3] is one 好."""
    return part[1] if part[2] == "1" else ""


def tokenizers_of(loaded: LoadedModel, family: str, name: str) -> dict[str, Tokenizer]:
    """The tokenizer of each side."""
    sides = {"translator": ["source", "target"], "generator": ["target"], "embedder": ["source"]}[
        family
    ]
    tokenizers = {side: found for side in sides if (found := loaded.tokenizer(side)) is not None}
    if len(tokenizers) < len(sides):
        raise QkvError(name, _("no tokenizer.json"), _("is the copy complete?"))
    return tokenizers
