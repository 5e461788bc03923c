"""A loaded model with its tokenizers: encoding of texts and display of tokens, by side.

The encoder reads the "source" side, the decoder the "target" side. See docs/guides/inspect.md.
"""

import re
from collections.abc import Sequence
from typing import Any

from torch import nn

from qkv.checkpoint.loaded_model import LoadedModel, PoolingConfig
from qkv.errors import QkvError
from qkv.explore.serialize import JsonObject
from qkv.generate.alignment import Unit, target_units, units
from qkv.generate.beam import BeamSearchConfig
from qkv.messages import _, listed
from qkv.model.check_spec import custom_parts
from qkv.model.head import LmHead
from qkv.text.lines import replace_surrogates
from qkv.text.special_tokens import (
    Template,
    decoder_start_id,
    encoder_template,
    translation_template,
)
from qkv.text.tokenizer import Tokenizer

Ids = Sequence[int]

SIDE_OF = {"encoder": "source", "decoder": "target"}
FAMILIES = {
    ("encoder", "decoder"): "translator",
    ("decoder",): "generator",
    ("encoder",): "embedder",
}
_PART = re.compile(r"(<[^<>]+>|.)\[(\d+)(?:-\d+)?/\d\]")  # a part of a character in display_tokens


class ExploredModel:
    """A model of any family and its tokenizers, one for each side."""

    def __init__(self, loaded: LoadedModel, name: str, begin: Ids | None = None):
        """`begin`: ids before every prompt of a generator; None: the <bos> of its tokenizer."""
        self.model, self.spec, self.name = loaded.model, loaded.model.spec, name
        if custom := custom_parts(self.spec):
            wrong = _(
                "the explorer has no description of a custom part ({parts})", parts=listed(custom)
            )
            raise QkvError(name, wrong, _("use `record` in Python, or a model without it"))
        self.stacks = stacks_of(self.model)
        self.family = FAMILIES[tuple(self.stacks)]
        self.tokenizers = tokenizers_of(loaded, [SIDE_OF[stack] for stack in self.stacks], name)
        self.begin = begin if self.family == "generator" else None
        self.generation, self.alignment = loaded.generation, loaded.alignment
        self.pooling = loaded.pooling or PoolingConfig()
        self.has_logits = isinstance(self.model.lm_head, LmHead)
        self.templates = {side: self.template(side) for side in self.tokenizers}

    @property
    def eos_id(self) -> int | None:
        """The token that ends the decoder's output."""
        return (self.generation.eos_ids or (self.tokenizers["target"].eos_id,))[0]

    @property
    def bos_id(self) -> int | None:
        """The token that the decoder starts with."""
        target = self.tokenizers["target"]
        if self.family == "generator":
            return target.bos_id
        return decoder_start_id(target, self.generation)

    def search_config(self, size: int = 1, alpha: float = 0.0) -> BeamSearchConfig:
        """Special tokens of a search; -1 stands for one that the vocabulary lacks."""
        special = self.bos_id, self.eos_id, self.tokenizers["target"].pad_id
        bos, eos, pad = (-1 if id is None else id for id in special)
        return BeamSearchConfig(bos, eos, pad, size, alpha)

    def embedding(self, side: str) -> nn.Embedding:
        """The token embeddings of a side."""
        own = self.model.source_embed if side == "source" else None
        return self.model.embed if own is None else own

    def encode(self, text: str, side: str) -> list[int]:
        """The ids of a text with the special tokens before and after it."""
        return self.templates[side].around(self.encode_plain(text, side))

    def encode_plain(self, text: str, side: str) -> list[int]:
        """The ids of a text without special tokens."""
        return self.tokenizers[side].encode(replace_surrogates(text))

    def template(self, side: str) -> Template:
        """The special tokens before and after a text on this side."""
        if side == "target":
            bos = () if self.bos_id is None else (self.bos_id,)
            return Template(bos if self.begin is None else tuple(self.begin))
        of_source = translation_template if self.family == "translator" else encoder_template
        return of_source(self.tokenizers[side])

    def display_tokens(self, ids: Ids, side: str) -> list[str]:
        """A readable string for each id of a text; "<id>" if the tokenizer has no such token."""
        named = self.tokenizers[side].display_tokens(ids)
        return [text or f"<{id}>" for text, id in zip(named, ids, strict=True)]

    def display_separately(self, ids: Ids, side: str) -> list[str]:
        """Readable strings for unrelated ids: bytes of adjacent ids are not decoded together."""
        return [self.display_tokens([id], side)[0] for id in ids]

    def token_rows(self, ids: Ids, side: str, **columns: Sequence[Any]) -> list[JsonObject]:
        """Unrelated tokens with further columns, as JSON: one object per token."""
        table = {"id": ids, "token": self.display_separately(ids, side), **columns}
        return [dict(zip(table, row, strict=True)) for row in zip(*table.values(), strict=True)]

    def text_of(self, ids: Ids, before: Ids = ()) -> str:
        """Decode ids; bytes of incomplete characters are written as in tokens, never as U+FFFD."""
        tokenizer = self.tokenizers["target"]
        text = tokenizer.decode(ids)
        if before and tokenizer.adds_prefix_space:  # a space after other tokens is no prefix space
            text = tokenizer.decode([*before, *ids])[len(tokenizer.decode(before)) :]
        if "\ufffd" not in text:
            return text
        special = set(tokenizer.special_ids.values())
        kept = [id for id in ids if id not in special]
        tokens = zip(self.display_tokens(kept, "target"), self.partial(kept, "target"), strict=True)
        return "".join(
            _PART.sub(first_part, token) if partial else token for token, partial in tokens
        ).replace("␣", " ")

    def partial(self, ids: Ids, side: str) -> list[bool]:
        """Whether a token is a part of a character, and not a text that resembles our notation."""
        raw = self.tokenizers[side].tokens(ids)
        return [
            bool(_PART.search(token) and not _PART.search(piece))
            for token, piece in zip(self.display_tokens(ids, side), raw, strict=True)
        ]

    def side(self, ids: Ids, side: str, text: str | None) -> JsonObject:
        """Tokens and words of a side, as JSON; `text`: what the ids were encoded from, if known."""
        special = set(self.tokenizers[side].special_ids.values())
        return {
            "ids": list(ids),
            "tokens": self.display_tokens(ids, side),
            "special": [id in special for id in ids],
            "partial": self.partial(ids, side),
            "words": [word._asdict() for word in self.words(ids, side, text)],
        }

    def words(self, ids: Ids, side: str, text: str | None) -> list[Unit]:
        """Tokens grouped into words; a token outside of words, such as <eos>, is its own unit."""
        template, tokenizer = self.templates[side], self.tokenizers[side]
        begin = len(template.before)
        body = ids[begin : len(ids) - len(template.after)]
        if text is None or self.encode_plain(text, side) != list(body):
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
        return min(self.pooling.max_len or self.spec.max_len, self.spec.max_len)


def stacks_of(owner: Any) -> dict[str, Any]:
    """The encoder and the decoder of a model or of its spec, by name, where it has them."""
    stacks = {name: getattr(owner, name) for name in SIDE_OF}
    return {name: stack for name, stack in stacks.items() if stack is not None}


def first_part(part: re.Match[str]) -> str:
    """Replace the first part by the character and drop the others: 好[1/3]好[2-3/3] is one 好."""
    return part[1] if part[2] == "1" else ""


def tokenizers_of(loaded: LoadedModel, sides: list[str], name: str) -> dict[str, Tokenizer]:
    """The tokenizer of each side."""
    tokenizers = {side: found for side in sides if (found := loaded.tokenizer(side)) is not None}
    if len(tokenizers) < len(sides):
        raise QkvError(name, _("no tokenizer.json"), _("is the copy complete?"))
    return tokenizers
