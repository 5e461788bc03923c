"""Masked language modeling (MLM): select tokens and replace them, as in BERT.

15 % of the tokens are selected; of these, 80 % become [MASK], 10 % a random token, 10 % stay. See
docs/guides/embeddings.md.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from qkv.errors import QkvError
from qkv.messages import _
from qkv.text.display import BYTE_DECODER
from qkv.text.normalization import CONTINUATION, END_OF_WORD
from qkv.text.tokenizer import Tokenizer

# Fractions of the selected tokens; the rest stays, so that unmasked tokens are trained too.
MASK_FRACTION, RANDOM_FRACTION = 0.8, 0.1
SPACE = "Ġ"  # the space in byte-level BPE


@dataclass(frozen=True)
class MaskedBatch:
    """An MLM batch: input ids, target ids, and the positions to predict."""

    ids: Tensor  # (batch, length)
    targets: Tensor  # (batch, length)
    selected: Tensor  # (batch, length), True: to predict


class Masking:
    """Masks tokens; special tokens are neither selected nor used as replacement.

    Args:
        tokenizer: Must have a mask token.
        probability: The fraction of tokens to select.
        whole_word_mask: Select all tokens of a word together.
    """

    def __init__(self, tokenizer: Tokenizer, probability: float, whole_word_mask: bool):
        if tokenizer.mask_id is None:
            wrong = _("no [MASK] in its vocabulary")
            raise QkvError("tokenizer", wrong, _("train one with it, or use mlm_steps 0"))
        self.mask_id, self.probability = tokenizer.mask_id, probability
        self.special = torch.zeros(tokenizer.vocab_size, dtype=torch.bool)
        self.special[list(tokenizer.special_ids.values())] = True
        self.ordinary = (~self.special).nonzero()[:, 0]  # ids that may replace a token
        self.boundaries = word_boundaries(tokenizer) if whole_word_mask else None

    def __call__(self, ids: Tensor, generator: torch.Generator) -> MaskedBatch:
        """Mask (batch, length) ids, at least one token of each row; padding is a special token."""
        free = ~self.special[ids]  # (batch, length)
        uniforms = self._per_word(ids, torch.rand(ids.shape, generator=generator))
        uniforms = uniforms.masked_fill(~free, 2.0)
        smallest = uniforms == uniforms.amin(dim=1, keepdim=True)
        selected = free & (uniforms < self.probability).logical_or(smallest)
        action = torch.rand(ids.shape, generator=generator)
        drawn = torch.randint(len(self.ordinary), ids.shape, generator=generator)
        random_or_same = torch.where(
            action < MASK_FRACTION + RANDOM_FRACTION, self.ordinary[drawn], ids
        )
        replaced = torch.where(action < MASK_FRACTION, self.mask_id, random_or_same)
        return MaskedBatch(torch.where(selected, replaced, ids), ids, selected)

    def _per_word(self, ids: Tensor, uniforms: Tensor) -> Tensor:
        """With whole word masking, all tokens of a word get the number of its first token."""
        if self.boundaries is None:
            return uniforms
        begins, ends = self.boundaries
        boundary = begins[ids]
        boundary[:, 1:] |= ends[ids[:, :-1]]
        boundary[:, 0] = True
        starts = torch.arange(ids.shape[1]).expand_as(ids).where(boundary, 0)
        return uniforms.gather(1, starts.cummax(dim=1).values)  # (batch, length)


def word_boundaries(tokenizer: Tokenizer) -> tuple[Tensor, Tensor]:
    """For every id whether its token begins a word, and whether it ends one; both (vocab,)."""
    pieces = tokenizer.tokens(range(tokenizer.vocab_size))
    model, special = tokenizer.config["model"], set(tokenizer.special_ids)
    if model["type"] == "WordPiece":
        begins = [not piece.startswith(CONTINUATION) for piece in pieces]
    elif SPACE in pieces:
        begins = [not _continues_word(piece) for piece in pieces]
    else:
        begins = [model["type"] == "WordLevel" or piece.startswith("▁") for piece in pieces]
    ends = [piece.endswith(END_OF_WORD) for piece in pieces]
    is_special = torch.tensor([piece in special for piece in pieces])
    return torch.tensor(begins) | is_special, torch.tensor(ends) | is_special


def _continues_word(piece: str) -> bool:
    """Whether a byte-level piece begins with a letter, a digit or a continuation byte of UTF-8."""
    first = BYTE_DECODER.get(piece[:1], 0)
    return chr(first).isalnum() if first < 0x80 else first < 0xC0
