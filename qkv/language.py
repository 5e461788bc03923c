"""The language of what a person reads.

In: a message in English and in Chinese, side by side where it is used. Out: the one the person asked for.
Told in docs/design-notes.md, "Two languages".
"""

import os

LANGUAGES = ("en", "zh")


def _from_environment() -> str:
    """QKV_LANG if it is set, else the language of the locale, else English."""
    for name in ("QKV_LANG", "LC_ALL", "LC_MESSAGES", "LANG"):
        value = os.environ.get(name, "")
        if value:
            return "zh" if value.lower().startswith("zh") else "en"
    return "en"


_current = _from_environment()


def set_language(language: str) -> None:
    """Choose the language of all later messages: set_language("zh")."""
    global _current
    assert language in LANGUAGES, language
    _current = language


def current_language() -> str:
    return _current


def say(en: str, zh: str) -> str:
    """The message in the person's language: say("no such file", "没有这个文件")."""
    return zh if _current == "zh" else en
