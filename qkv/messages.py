"""Messages in English and Chinese, by gettext.

Messages are English in the code, inside `_()`; the Chinese ones are in
`qkv/locale/zh_CN/LC_MESSAGES/qkv.po`. `make messages` extracts and compiles them.
"""

import gettext
import os
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

# N_("...") marks a message for extraction; it is translated later, by `_(message)`.
N_ = str
MAX_LISTED = 10  # names in a message; the rest are counted
LANGUAGES = ("en", "zh")
LOCALES = {"en": "en", "zh": "zh_CN"}


class Both(NamedTuple):
    """A message in both languages, for pages with a language switch."""

    en: str
    zh: str


def _from_environment() -> str:
    """QKV_LANG if it is set, else the language of the locale, else English."""
    for name in ("QKV_LANG", "LC_ALL", "LC_MESSAGES", "LANG"):
        if value := os.environ.get(name):
            return "zh" if value.lower().startswith("zh") else "en"
    return "en"


_current: str | None = None  # None: that of the environment


def set_language(language: str) -> None:
    """Set the language of all later messages: set_language("zh")."""
    global _current
    assert language in LANGUAGES, language
    _current = language


def current_language() -> str:
    return _current or _from_environment()


def _(message: str, /, **values: Any) -> str:
    """Translate a message into the current language and fill in its placeholders.

    >>> _("no field '{name}'", name="warmup")
    "no field 'warmup'"
    """
    return translate(current_language(), message, **values)


def both(message: str, /, **values: Any) -> Both:
    """The message in both languages; of a value that is a `Both`, each gets its own text."""
    texts = []
    for language in LANGUAGES:
        translated = {
            name: getattr(value, language) if isinstance(value, Both) else value
            for name, value in values.items()
        }
        texts.append(translate(language, message, **translated))
    return Both(*texts)


def translate(language: str, message: str, /, **values: Any) -> str:
    """The message in a language, with its placeholders filled in."""
    text = message if language == "en" else _catalog(language).gettext(message)
    return text.format(**values)


def listed(names: Iterable[object], most: int | None = MAX_LISTED) -> str:
    """Join names with the separator of the current language: 'a, b' or 'a、b'.

    Names after the first `most` are counted: a file from outside may have any number of them.

    >>> listed(range(12))
    '0, 1, 2, 3, 4, 5, 6, 7, 8, 9, and 2 more'
    """
    separator = ", " if current_language() == "en" else "、"
    return separator.join(cut(list(map(str, names)), most))


def cut(names: list[str], most: int | None = MAX_LISTED) -> list[str]:
    """The first `most` names, and a last one with the count of the rest."""
    if most is None or len(names) <= most:
        return names
    return [*names[:most], _("and {n_others:,} more", n_others=len(names) - most)]


@cache
def _catalog(language: str) -> gettext.NullTranslations:
    return gettext.translation("qkv", Path(__file__).with_name("locale"), [LOCALES[language]])
