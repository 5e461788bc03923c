"""A griffe extension for the site: the examples of docstrings are shown as code.

In Google style, the text of a section "Example:" is prose; in qkv it is always Python. mkdocs.yml
names this file.
"""

import re
from textwrap import indent
from typing import Any

from griffe import Extension, Object

BLOCK = re.compile(r"^Example:\n((?:    .*\n?|\n(?=    ))+)", re.M)
LINE = re.compile(r"^Example: (?!`)(.+)$", re.M)


class DocstringExamples(Extension):
    """Marks the examples of every docstring as code."""

    def on_object(self, *, obj: Object, **_arguments: Any) -> None:
        if obj.docstring:
            obj.docstring.value = with_code(obj.docstring.value)


def with_code(docstring: str) -> str:
    """The docstring with each "Example:" as a code block, or as code in its line."""
    docstring = BLOCK.sub(lambda found: f"Example:\n{fenced(found[1])}\n", docstring + "\n")
    return LINE.sub(r"Example: `\1`", docstring).rstrip("\n")


def fenced(lines: str) -> str:
    """Indented lines as an indented block of Python code."""
    code = "\n".join(line[4:] for line in lines.rstrip("\n").splitlines())
    return indent(f"```python\n{code}\n```\n", "    ")
