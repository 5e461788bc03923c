"""Masked tokens: some are hidden, and the encoder guesses them from both sides.

In: ids. Out: the ids with 15 % chosen, of which 80 % became [MASK], 10 % any token and 10 % stay; and which were chosen.
Told in docs/embedding.md, "Masked tokens".
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from qkv.errors import QkvError
from qkv.messages import _
from qkv.text.people import BYTE_OF_SIGN
from qkv.text.pipeline import CONTINUED, END
from qkv.text.tokenizer import Tokenizer

HIDDEN, SWAPPED = (
    0.8,
    0.1,
)  # of the chosen; the rest stays, so that a token's own vector is worth something too
SPACE = "Ġ"  # the space as byte-level BPE writes it


@dataclass(frozen=True)
class Masked:
    """What the encoder reads, what it should say, and where."""

    ids: Tensor  # (batch, length)
    targets: Tensor  # (batch, length)
    chosen: Tensor  # (batch, length), True: to be guessed


class Masking:
    """The rule of one vocabulary: special tokens are never chosen, nor do they appear in another's place."""

    def __init__(self, tokenizer: Tokenizer, share: float, whole_words: bool):
        if tokenizer.mask_id is None:
            raise QkvError(
                "tokenizer",
                _("no [MASK] in its vocabulary"),
                _("learn one with it, or use masked_steps 0"),
            )
        self.mask, self.share = tokenizer.mask_id, share
        self.special = torch.zeros(tokenizer.vocab_size, dtype=torch.bool)
        self.special[list(tokenizer.special_ids.values())] = True
        self.ordinary = (~self.special).nonzero()[:, 0]  # ids that may appear in another's place
        self.borders = word_borders(tokenizer) if whole_words else None

    def __call__(self, ids: Tensor, draws: torch.Generator) -> Masked:
        """Chosen by `draws` alone, at least one token a row; padding is special too."""
        free = ~self.special[ids]  # (batch, length)
        luck = self._by_word(ids, torch.rand(ids.shape, generator=draws)).masked_fill(~free, 2.0)
        chosen = free & (luck < self.share).logical_or(luck == luck.amin(dim=1, keepdim=True))
        fate = torch.rand(ids.shape, generator=draws)
        strangers = self.ordinary[torch.randint(len(self.ordinary), ids.shape, generator=draws)]
        shown = torch.where(
            fate < HIDDEN, self.mask, torch.where(fate < HIDDEN + SWAPPED, strangers, ids)
        )
        return Masked(torch.where(chosen, shown, ids), ids, chosen)

    def _by_word(self, ids: Tensor, luck: Tensor) -> Tensor:
        """All pieces of a word share the luck of its first, where whole words are wanted."""
        if self.borders is None:
            return luck
        begins, ends = self.borders
        border = begins[ids]
        border[:, 1:] |= ends[ids[:, :-1]]
        border[:, 0] = True
        places = torch.arange(ids.shape[1]).expand_as(ids).where(border, 0)
        return luck.gather(1, places.cummax(dim=1).values)  # (batch, length)


def word_borders(tokenizer: Tokenizer) -> tuple[Tensor, Tensor]:
    """For every id whether its piece begins a word, and whether it ends one; both tables (vocab,)."""
    pieces = tokenizer.tokens(range(tokenizer.vocab_size))
    model, special = tokenizer.rules["model"], set(tokenizer.special_ids)
    if model["type"] == "WordPiece":
        begins = [not piece.startswith(CONTINUED) for piece in pieces]
    elif SPACE in pieces:
        begins = [not _goes_on(piece) for piece in pieces]
    else:
        begins = [model["type"] == "WordLevel" or piece.startswith("▁") for piece in pieces]
    ends = [piece.endswith(END) for piece in pieces]
    known = [piece in special for piece in pieces]
    return torch.tensor(begins) | torch.tensor(known), torch.tensor(ends) | torch.tensor(known)


def _goes_on(piece: str) -> bool:
    """Whether a piece of bytes goes on with a word: a letter or digit, or the middle of a character's bytes."""
    first = BYTE_OF_SIGN.get(piece[:1], 0)
    return chr(first).isalnum() if first < 0x80 else first < 0xC0
