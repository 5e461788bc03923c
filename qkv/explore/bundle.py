"""The page's files as one: modules, styles and data in a single HTML text that asks nobody for anything.

In: the folder of the page and the data. Out: the HTML. Each module becomes a function that gives what it exports, so
names never meet; a content security policy names the one script and style by their hashes. Told in docs/explore.md,
"One file".
"""

import base64
import hashlib
import json
import re
from pathlib import Path
from typing import Any

_IMPORT = re.compile(
    r'^import\s+(?:\*\s+as\s+(\w+)|\{([^}]*)\})\s+from\s+"\./([\w.-]+\.js)";?[ \t]*$', re.M
)
_EXPORT = re.compile(r"^export\s+((?:async\s+)?function\*?|class|const)\s+(\w+)", re.M)
_STYLE = re.compile(r'<link rel="stylesheet" href="page/([\w.-]+)">')
_SCRIPT = re.compile(r'<script type="module" src="page/([\w.-]+)"></script>')


def bundle(folder: Path, data: Any) -> str:
    """The whole page with its data inside."""
    page = (folder / "index.html").read_text("utf-8")
    entry = _SCRIPT.search(page)
    assert entry is not None, "index.html names its script"
    script = joined(folder, entry[1])
    style = "\n".join((folder / name).read_text("utf-8") for name in _STYLE.findall(page))
    policy = (
        f"default-src 'none'; script-src {hash_of(script)}; style-src {hash_of(style)}; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    head = f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n<style>{style}</style>'
    first, *others = _STYLE.finditer(page)
    page = replaced(
        page,
        [
            (first.span(), ""),
            *((each.span(), "") for each in others),
            (entry.span(), f'{data_block(data)}\n<script type="module">{script}</script>'),
        ],
    )
    return page.replace('<meta charset="utf-8">', f'<meta charset="utf-8">\n{head}', 1)


def replaced(text: str, changes: list[tuple[tuple[int, int], str]]) -> str:
    """The text with these stretches changed; what is put in is never read again."""
    for (start, end), new in sorted(changes, reverse=True):
        text = text[:start] + new + text[end:]
    return text


def data_block(data: Any) -> str:
    """JSON that no browser takes for anything else: `<` is written as an escape, so no tag can begin or end in it."""
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for sign, escape in (("<", "\\u003c"), ("\u2028", "\\u2028"), ("\u2029", "\\u2029")):
        text = text.replace(sign, escape)
    return f'<script type="application/json" id="qkv-data">{text}</script>'


def joined(folder: Path, entry: str) -> str:
    """The entry module and all that it imports, each after those it needs."""
    order: list[str] = []
    open_: list[str] = []

    def visit(name: str) -> None:
        assert name not in open_, f"{name} imports itself by way of {open_}"
        if name not in order:
            open_.append(name)
            for found in _IMPORT.finditer((folder / name).read_text("utf-8")):
                visit(found[3])
            open_.pop()
            order.append(name)

    visit(entry)
    text = "\n".join(as_function((folder / name).read_text("utf-8"), name) for name in order)
    assert "</script" not in text.lower() and "<!--" not in text, (
        "a script cannot hold the end of itself"
    )
    return f'"use strict";\n{text}'


def as_function(source: str, name: str) -> str:
    """`const $heat_js = (() => { ...; return { HeatMap }; })();` with imports taken from those before."""
    exported = [found[2] for found in _EXPORT.finditer(source)]
    body = _EXPORT.sub(r"\1 \2", source)
    body = _IMPORT.sub(
        lambda found: f"const {found[1] or '{' + found[2] + '}'} = {variable(found[3])};", body
    )
    left = re.search(r"^(?:import|export)\b.*", body, re.M)
    assert left is None, f"{name}: the bundler does not know '{left and left[0]}'"
    return (
        f"const {variable(name)} = (() => {{\n{body}\nreturn {{ {', '.join(exported)} }};\n}})();"
    )


def variable(name: str) -> str:
    return "$" + re.sub(r"\W", "_", name)


def hash_of(text: str) -> str:
    """The name of an inline script or style in a content security policy."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
