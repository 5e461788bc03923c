"""Inputs of the `tokenizers` library: dropout, ids, and texts without lone surrogates."""

from collections.abc import Iterable
from operator import index

import tokenizers
from tokenizers import models

from qkv.errors import QkvError
from qkv.messages import _
from qkv.text.library_errors import library_errors
from qkv.text.lines import replace_surrogates


def check_dropout(dropout: float, model: models.Model) -> None:
    """Raise if this is not a probability, or if the model is not BPE."""
    if not isinstance(dropout, int | float) or not 0 <= dropout <= 1:
        wrong = _("{dropout} is not a probability", dropout=dropout)
        raise QkvError("dropout", wrong, _("use 0 to 1"))
    if not isinstance(model, models.BPE):
        raise QkvError("dropout", _("only BPE tokenizers support dropout"), _("use 0"))


def checked_ids(ids: Iterable[int]) -> list[int]:
    """Return ids as integers that the library accepts (32 bits, no sign)."""
    checked = []
    for id in ids:
        try:
            number = index(id)
        except TypeError:
            number = -1
        if not 0 <= number < 2**32:
            wrong = _("{id:.40} is not a token id", id=repr(id))
            raise QkvError("ids", wrong, _("use whole numbers from 0 on"))
        checked.append(number)
    return checked


def encode_texts(core: tokenizers.Tokenizer, texts: list[str]) -> list[tokenizers.Encoding]:
    """Encode texts; lone surrogates, which the library rejects, are replaced only when present."""
    with library_errors(_("tokenizer")):
        try:
            return core.encode_batch_fast(texts, add_special_tokens=False)
        except TypeError:
            clean = list(map(replace_surrogates, texts))
            return core.encode_batch_fast(clean, add_special_tokens=False)
