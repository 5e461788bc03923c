"""Bundle the page's modules, styles and data into a single HTML file without external requests.

Each module becomes a function that returns its exports, so their names do not collide; the content
security policy allows the one script and style by their hashes. See docs/guides/inspect.md.
"""

import base64
import hashlib
import json
import re
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parent / "page"
_IMPORT = re.compile(
    r'^import\s+(?:\*\s+as\s+(\w+)|\{([^}]*)\})\s+from\s+"\./([\w.-]+\.js)";?[ \t]*$', re.M
)
_EXPORT = re.compile(r"^export\s+((?:async\s+)?function\*?|class|const)\s+(\w+)", re.M)
_STYLE = re.compile(r'<link rel="stylesheet" href="page/([\w.-]+)">')
_SCRIPT = re.compile(r'<script type="module" src="page/([\w.-]+)"></script>')


def bundle(folder: Path, data: Any) -> str:
    """The HTML of the page with its data."""
    page = (folder / "index.html").read_text("utf-8")
    entry = _SCRIPT.search(page)
    assert entry is not None, "index.html names its script"
    script = join_modules(folder, entry[1])
    style = "\n".join((folder / name).read_text("utf-8") for name in _STYLE.findall(page))
    policy = (
        f"default-src 'none'; script-src {hash_of(script)}; style-src {hash_of(style)}; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )
    head = f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n<style>{style}</style>'
    body = f'{data_block(data)}\n<script type="module">{script}</script>'
    page = _STYLE.sub("", page).replace(entry[0], body, 1)
    return page.replace('<meta charset="utf-8">', f'<meta charset="utf-8">\n{head}', 1)


def data_block(data: Any) -> str:
    """A JSON script element; `<` is escaped, so that the data cannot contain a tag."""
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    escaped = re.sub("[<\u2028\u2029]", lambda match: f"\\u{ord(match[0]):04x}", text)
    return f'<script type="application/json" id="qkv-data">{escaped}</script>'


def join_modules(folder: Path, entry: str) -> str:
    """The entry module and its imports, in dependency order."""
    order: list[str] = []
    visiting: list[str] = []

    def visit(name: str) -> None:
        assert name not in visiting, f"circular import: {visiting} import {name}"
        if name not in order:
            visiting.append(name)
            for match in _IMPORT.finditer((folder / name).read_text("utf-8")):
                visit(match[3])
            visiting.pop()
            order.append(name)

    visit(entry)
    text = "\n".join(as_function((folder / name).read_text("utf-8"), name) for name in order)
    assert "</script" not in text.lower() and "<!--" not in text, (
        "a script cannot contain its own end tag"
    )
    return f'"use strict";\n{text}'


def as_function(source: str, name: str) -> str:
    """`const $heatmap_js = (() => { ...; return { HeatMap }; })();`, with imports as `const`s."""
    exported = [match[2] for match in _EXPORT.finditer(source)]
    body = _EXPORT.sub(r"\1 \2", source)
    body = _IMPORT.sub(
        lambda match: f"const {match[1] or '{' + match[2] + '}'} = {variable_name(match[3])};", body
    )
    unknown = re.search(r"^(?:import|export)\b.*", body, re.M)
    assert unknown is None, f"{name}: unsupported statement '{unknown and unknown[0]}'"
    exports = ", ".join(exported)
    return f"const {variable_name(name)} = (() => {{\n{body}\nreturn {{ {exports} }};\n}})();"


def variable_name(name: str) -> str:
    return "$" + re.sub(r"\W", "_", name)


def hash_of(text: str) -> str:
    """The hash source of an inline script or style in a content security policy."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
