"""Convert the errors of the `tokenizers` library, Rust panics included, to one-line errors."""

from collections.abc import Iterator
from contextlib import contextmanager

from qkv.errors import QkvError
from qkv.messages import _


@contextmanager
def library_errors(where: object) -> Iterator[None]:
    """Raise a QkvError for an error of the library inside the `with` block.

    A panic of the library's Rust code is a PanicException, which derives from BaseException and
    cannot be imported.

    Args:
        where: The file or the object, in the error message.
    """
    try:
        yield
    except BaseException as error:
        panicked = type(error).__name__ == "PanicException"
        if not panicked and type(error) not in (Exception, ValueError, OverflowError):
            raise
        reason = " ".join(str(error).split())[:200]
        wrong = _("not a valid tokenizer ({reason})", reason=reason)
        raise QkvError(where, wrong, _("export it again with the program that wrote it")) from None
