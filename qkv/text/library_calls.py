"""Calls of the `tokenizers` library: its errors in one line, dropout, ids, lone surrogates."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from operator import index

import tokenizers
from tokenizers import models

from qkv.errors import QkvError
from qkv.messages import _
from qkv.text.lines import replace_surrogates


@contextmanager
def library_errors(where: object = "") -> Iterator[None]:
    """Raise a QkvError for an error of the library inside the `with` block.

    A panic of the library's Rust code is a PanicException, which derives from BaseException and
    cannot be imported.

    Args:
        where: The file in the error message; by default "tokenizer".
    """
    try:
        yield
    except BaseException as error:
        panicked = type(error).__name__ == "PanicException"
        if not panicked and type(error) not in (Exception, ValueError, OverflowError):
            raise
        reason = " ".join(str(error).split())[:200]
        wrong = _("not a valid tokenizer ({reason})", reason=reason)
        right = _("export it again with the program that wrote it")
        raise QkvError(where or _("tokenizer"), wrong, right) from None


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
    with library_errors():
        try:
            return core.encode_batch_fast(texts, add_special_tokens=False)
        except TypeError:
            clean = list(map(replace_surrogates, texts))
            return core.encode_batch_fast(clean, add_special_tokens=False)
