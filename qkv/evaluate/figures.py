"""Pictures of numbers, with labels in any script.

In: attention weights and the tokens they join. Out: a PNG whose labels, Chinese ones too, can be read.
Told in docs/translation.md, "Where it looked".
"""

import logging
import math
import unicodedata
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib import font_manager
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from qkv.errors import QkvError
from qkv.files import atomic_path
from qkv.messages import _

log = logging.getLogger(__name__)

LATIN = "DejaVu Sans"  # comes with matplotlib
SHIPPED = "Noto Sans SC"  # comes with zhplot
# Installed families with Chinese characters, Simplified forms first; then those that add kana or hangul.
EASTERN = (
    "Noto Sans SC",
    "Noto Sans CJK SC",
    "Source Han Sans SC",
    "Source Han Sans CN",
    "WenQuanYi Micro Hei",
    "WenQuanYi Zen Hei",
    "PingFang SC",
    "Hiragino Sans GB",
    "Heiti SC",
    "STHeiti",
    "Microsoft YaHei",
    "SimHei",
    "Droid Sans Fallback",
    "Arial Unicode MS",
    "Noto Sans CJK JP",
    "Noto Sans JP",
    "Noto Sans CJK KR",
    "Noto Sans KR",
    "Apple SD Gothic Neo",
    "Malgun Gothic",
    "Nanum Gothic",
    "NanumGothic",
)
COLOURS = "viridis"  # equally readable for the colour-blind, and in print
CELL = 0.42  # inches of one weight's square
SMALL = 200  # up to so many weights, each one is also written as a number
LONG = 40  # tokens; beyond, cells and letters shrink, so that a picture never fills the memory
LONGEST_LABEL = 18


def attention_picture(
    weights: Tensor | np.ndarray,
    rows: Sequence[str],
    columns: Sequence[str],
    path: str | Path,
    title: str = "",
) -> Path:
    """Draw who looks where: `weights` (heads, query, key) or (query, key), one row a query, one column a key."""
    grid = _as_heads(weights)  # (heads, query, key)
    _check_shape(grid, rows, columns)
    rows, columns = [_label(token) for token in rows], [_label(token) for token in columns]
    names = (
        [_("head {number}", number=number) for number in range(len(grid))]
        if len(grid) > 1
        else [""]
    )
    with readable([title, *rows, *columns, *names]):
        figure, panels = _frame(grid.shape, rows, columns)
        for panel, head, name in zip(panels, grid, names, strict=True):
            image = panel.imshow(head, cmap=COLOURS, vmin=0, vmax=grid.max() or 1.0, aspect="equal")
            panel.set_xlabel(name)
            _name_axes(panel, rows, columns)
            if len(grid) == 1 and head.size <= SMALL:
                _write_values(panel, head)
        figure.colorbar(image, ax=panels, shrink=0.8, pad=0.02, aspect=30)
        figure.suptitle(title, fontsize=12, parse_math=False)
        return save(figure, path)


def save(figure: Figure, path: str | Path) -> Path:
    """Write the PNG whole or not at all."""
    with atomic_path(path) as unfinished:
        figure.savefig(unfinished, format="png", dpi=150)
    return Path(path)


@contextmanager
def readable(labels: Iterable[str]) -> Iterator[None]:
    """While it lasts, matplotlib draws with fonts that have the characters of `labels`; a warning names the missing."""
    families, missing = fonts_for("".join(labels))
    with matplotlib.rc_context({"font.family": families}), warnings.catch_warnings():
        if missing:
            log.warning(_advice(missing))
            warnings.filterwarnings(
                "ignore", message=r"Glyph \d+ .* missing"
            )  # said once, in our words
        yield


def fonts_for(text: str) -> tuple[list[str], str]:
    """Families that together draw `text`, and the characters that none of them has."""
    families, missing = (
        [LATIN],
        {character for character in text if character.isprintable()} - characters_of(LATIN),
    )
    for family in _candidates():
        if not missing:
            break
        if missing & characters_of(family):
            families.append(family)
            missing -= characters_of(family)
    return families, "".join(sorted(missing))


def characters_of(family: str) -> set[str]:
    """What a font family can draw; nothing when it is not there."""
    try:
        found = font_manager.findfont(
            font_manager.FontProperties(family=family), fallback_to_default=False
        )
    except ValueError:
        return set()
    return {chr(code) for code in font_manager.get_font(found).get_charmap()}


def _candidates() -> Iterator[str]:
    """Fonts of the system, then the one that pip installed, then those newer than matplotlib's list of the system."""
    known = set(font_manager.get_font_names())
    yield from (family for family in EASTERN if family in known)
    if SHIPPED not in known and _add_shipped():
        yield SHIPPED
    for path in set(font_manager.findSystemFonts()) - {
        entry.fname for entry in font_manager.fontManager.ttflist
    }:
        with suppress(RuntimeError, OSError, ValueError):  # a file that is no font to FreeType
            font_manager.fontManager.addfont(path)
    yield from (
        family for family in EASTERN if family in set(font_manager.get_font_names()) - known
    )


def _add_shipped() -> bool:
    """Noto Sans SC out of the pip package zhplot, which is not imported: it would change every figure's settings."""
    package = find_spec("zhplot")
    font = (
        Path(package.origin).parent / "fonts" / "NotoSansSC-Regular.ttf"
        if package and package.origin
        else None
    )
    if font is None or not font.is_file():
        return False
    font_manager.fontManager.addfont(font)
    return True


def _advice(missing: str) -> str:
    shown = missing if len(missing) <= 12 else f"{missing[:12]}…"
    if all(
        unicodedata.name(character, "").startswith(("CJK", "HIRAGANA", "KATAKANA"))
        for character in missing
    ):
        remedy = _("run `pip install zhplot`")
    else:
        remedy = _("install a font that has them, e.g. `apt-get install fonts-noto-cjk`")
    return _(
        "picture: no font has {shown}, they appear as boxes; {remedy}", shown=shown, remedy=remedy
    )


def _as_heads(weights: Tensor | np.ndarray) -> np.ndarray:
    grid = (
        weights.detach().float().cpu().numpy()
        if isinstance(weights, Tensor)
        else np.asarray(weights, dtype=float)
    )
    return grid[None] if grid.ndim == 2 else grid


def _check_shape(grid: np.ndarray, rows: Sequence[str], columns: Sequence[str]) -> None:
    if grid.ndim != 3 or grid.shape[1:] != (len(rows), len(columns)) or grid.size == 0:
        raise QkvError(
            _("attention picture"),
            _(
                "weights of shape {shape} for {n_rows} rows and {n_columns} columns",
                shape=grid.shape,
                n_rows=len(rows),
                n_columns=len(columns),
            ),
            _("weights are (heads, query, key), a label for each query and key"),
        )


def _frame(
    shape: tuple[int, ...], rows: Sequence[str], columns: Sequence[str]
) -> tuple[Figure, list[Axes]]:
    """An empty figure with a panel for each head, as large as its cells and labels need."""
    heads, queries, keys = shape
    across = math.ceil(math.sqrt(heads))
    down = math.ceil(heads / across)
    cell = CELL * _shrink(rows, columns)
    width = across * (cell * (keys + 0.24 * _longest(rows) + 0.7)) + 1.2
    height = (
        down * (cell * (queries + (0.24 * _longest(columns) if _tilted(columns) else 0.7) + 0.7))
        + 0.8
    )
    figure = Figure(figsize=(max(width, 4.0), max(height, 3.0)), layout="constrained")
    panels = figure.subplots(down, across, squeeze=False).flatten().tolist()
    for empty in panels[heads:]:
        empty.remove()
    return figure, panels[:heads]


def _name_axes(panel: Axes, rows: Sequence[str], columns: Sequence[str]) -> None:
    """Keys above, queries at the left, as one reads them; a `$` in a token is a dollar, not a formula."""
    size = 10 * _shrink(rows, columns)
    turn: dict[str, Any] = (
        {"rotation": 60, "ha": "left", "rotation_mode": "anchor"} if _tilted(columns) else {}
    )
    panel.set_xticks(range(len(columns)), columns, parse_math=False, fontsize=size, **turn)
    panel.set_yticks(range(len(rows)), rows, parse_math=False, fontsize=size)
    panel.tick_params(length=0, labeltop=True, labelbottom=False)
    panel.spines[:].set_visible(False)


def _write_values(panel: Axes, head: np.ndarray) -> None:
    for (row, column), value in np.ndenumerate(head):
        dark = value < 0.6 * head.max()
        panel.text(
            column,
            row,
            f"{value:.2f}".lstrip("0") if value < 1 else "1",
            ha="center",
            va="center",
            fontsize=7,
            color="white" if dark else "black",
        )


def _label(token: str) -> str:
    """One short printable line, however odd the token."""
    token = token.translate({ord("\n"): "↵", ord("\t"): "→"})
    token = "".join(character if character.isprintable() else "�" for character in token)
    return token if len(token) <= LONGEST_LABEL else f"{token[: LONGEST_LABEL - 1]}…"


def _shrink(rows: Sequence[str], columns: Sequence[str]) -> float:
    return min(1.0, LONG / max(len(rows), len(columns)))


def _longest(labels: Sequence[str]) -> int:
    """The width of the longest label, counted in narrow characters."""
    return max(
        sum(2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in label) for label in labels
    )


def _tilted(columns: Sequence[str]) -> bool:
    return _longest(columns) > 4
