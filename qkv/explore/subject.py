"""The model that is looked at, with what turns a person's text into its ids.

In: a loaded folder of any family, ours or imported. Out: ids, tokens and words as a person reads them, by side: the
encoder reads the "source" side, the decoder the "target" side. Told in docs/explore.md, "The page".
"""

import re
from collections.abc import Sequence
from functools import cached_property
from typing import Any

from qkv.checkpoint.loaded_model import LoadedModel, PoolingConfig
from qkv.errors import QkvError
from qkv.generate.alignment import Unit, target_units, units
from qkv.messages import _
from qkv.text.lines import mend_surrogates
from qkv.text.special_tokens import (
    Template,
    decoder_start_id,
    encoder_template,
    translation_template,
)
from qkv.text.tokenizer import Tokenizer

_PART = re.compile(
    r"(<[^<>]+>|.)\[(\d+)(?:-\d+)?/\d\]"
)  # how tokens_for_people marks a piece of a character


class Subject:
    """A model of any family and its tokenizers, one for each side it has."""

    def __init__(self, loaded: LoadedModel, name: str, begin: Sequence[int] | None = None):
        """`begin`: what a generator reads before every text; None: the <bos> of its tokenizer."""
        self.model, self.name = loaded.model, name
        spec = self.model.spec
        both = spec.encoder is not None and spec.decoder is not None
        self.family = "translator" if both else "generator" if spec.decoder else "embedder"
        self.tokenizers = sides_of(loaded, self.family, name)
        self.begin = begin
        self.generation, self.alignment = loaded.generation, loaded.alignment
        self.pooling = loaded.pooling or PoolingConfig()

    @property
    def eos_id(self) -> int | None:
        """The token that ends what the decoder says."""
        return (self.generation.eos_ids or (self.tokenizers["target"].eos_id,))[0]

    @property
    def bos_id(self) -> int | None:
        """The token that what the decoder says begins with."""
        target = self.tokenizers["target"]
        return (
            decoder_start_id(target, self.generation)
            if self.family == "translator"
            else target.bos_id
        )

    def read(self, text: str, side: str) -> list[int]:
        """What the model reads of a person's text: its ids with the special tokens around them."""
        tokenizer = self.tokenizers[side]
        begin, end = self.around(side)
        return [*begin, *tokenizer.encode(mend_surrogates(text)), *end]

    def around(self, side: str) -> tuple[list[int], list[int]]:
        """The special tokens before and after a text on this side."""
        if side == "target":
            begin = self.begin if self.family == "generator" else None
            return present(self.bos_id) if begin is None else list(begin), []
        return list(self.template.before), list(self.template.after)

    @cached_property
    def template(self) -> Template:
        """The special tokens around an encoder's input."""
        return (translation_template if self.family == "translator" else encoder_template)(
            self.tokenizers["source"]
        )

    def shown(self, ids: Sequence[int], side: str) -> list[str]:
        """A readable string for each id of a text; a vocabulary larger than its tokenizer has nameless ids."""
        named = self.tokenizers[side].tokens_for_people(ids)
        return [text or f"<{id}>" for text, id in zip(named, ids, strict=True)]

    def text_of(self, ids: Sequence[int], side: str = "target", before: Sequence[int] = ()) -> str:
        """What these ids say; bytes that make no character are shown as the tokens are, never as the replacement sign."""
        tokenizer = self.tokenizers[side]
        text = tokenizer.decode(ids)
        if (
            before and tokenizer.adds_prefix_space
        ):  # a space that follows other tokens is no prefix space
            text = tokenizer.decode([*before, *ids])[len(tokenizer.decode(before)) :]
        if "\ufffd" not in text:
            return text
        special = set(self.tokenizers[side].special_ids.values())
        kept = [id for id in ids if id not in special]
        partial = zip(self.shown(kept, side), self.partial(kept, side), strict=True)
        return "".join(
            _PART.sub(first_part, token) if cut else token for token, cut in partial
        ).replace("␣", " ")

    def partial(self, ids: Sequence[int], side: str) -> list[bool]:
        """Whether a token has a part of a character, not just a text that looks like our mark of one."""
        raw = self.tokenizers[side].tokens(ids)
        return [
            bool(_PART.search(one) and not _PART.search(piece))
            for one, piece in zip(self.shown(ids, side), raw, strict=True)
        ]

    def names(self, ids: Sequence[int], side: str) -> list[str]:
        """The same for ids that do not follow each other: bytes of one are never read together with the next one's."""
        return [self.shown([id], side)[0] for id in ids]

    def side(self, ids: Sequence[int], side: str, text: str | None = None) -> dict[str, Any]:
        """All that the page needs to name the tokens of a side; `text`: what the ids were read from, if they were."""
        tokenizer, shown = self.tokenizers[side], self.shown(ids, side)
        special = set(tokenizer.special_ids.values())
        return {
            "ids": list(ids),
            "tokens": shown,
            "special": [id in special for id in ids],
            "partial": self.partial(ids, side),
            "words": [
                {"text": one.text, "tokens": one.tokens} for one in self.words(ids, side, text)
            ],
        }

    def words(self, ids: Sequence[int], side: str, text: str | None) -> list[Unit]:
        """Pieces merged to words; what belongs to no word, such as <eos>, stands alone."""
        begin, end = (len(part) for part in self.around(side))
        body, tokenizer = ids[begin : len(ids) - end], self.tokenizers[side]
        if text is None or tokenizer.encode(mend_surrogates(text)) != list(body):
            begin, found = 0, target_units(tokenizer, ids)
        else:
            found = units(mend_surrogates(text), tokenizer.offsets(text))
        whole = [Unit(one.text, [token + begin for token in one.tokens]) for one in found]
        left = set(range(len(ids))) - {token for one in whole for token in one.tokens}
        shown = self.shown(ids, side)
        alone = [Unit(shown[token], [token]) for token in left]
        return sorted([*whole, *alone], key=lambda one: one.tokens[0])

    @property
    def longest(self) -> int:
        """How many tokens a side may have."""
        return min(self.pooling.max_len or self.model.spec.max_len, self.model.spec.max_len)


def first_part(part: re.Match[str]) -> str:
    """A character stands where its first part does: 好[1/3]好[2-3/3] is one 好."""
    return part[1] if part[2] == "1" else ""


def present(id: int | None) -> list[int]:
    return [] if id is None else [id]


def sides_of(loaded: LoadedModel, family: str, name: str) -> dict[str, Tokenizer]:
    """The tokenizer of each side."""
    wanted = {"translator": ["source", "target"], "generator": ["target"], "embedder": ["source"]}[
        family
    ]
    sides = {side: found for side in wanted if (found := loaded.tokenizer(side)) is not None}
    if len(sides) < len(wanted):
        raise QkvError(name, _("no tokenizer.json"), _("is the copy complete?"))
    return sides
