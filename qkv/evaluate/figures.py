"""Attention heatmaps as PNG files, with labels in any script. See docs/guides/translation.md."""

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
from qkv.files import PICTURES, atomic_path, check_suffix
from qkv.messages import _

__all__ = ["attention_heatmap"]

log = logging.getLogger(__name__)

LATIN_FONT = "DejaVu Sans"  # comes with matplotlib
ZHPLOT_FONT = "Noto Sans SC"  # comes with zhplot
# Font families with Chinese characters, Simplified first; then those with kana or hangul.
CJK_FONTS = (
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
COLORMAP = "viridis"  # readable with color blindness and in print
CELL_INCHES = 0.42  # side of the square of one weight
MAX_ANNOTATED_WEIGHTS = 200  # larger heatmaps have no numbers in their cells
FULL_SIZE_TOKENS = 40  # with more tokens, cells and letters shrink, which bounds the image size
MAX_LABEL_CHARACTERS = 18
TITLE_POINTS, MIN_TITLE_POINTS = 12, 8  # font sizes of titles
LETTER_WIDTH = 0.62  # mean width of a letter, in font sizes

Labels = Sequence[str]


def attention_heatmap(
    weights: Tensor | np.ndarray, rows: Labels, columns: Labels, path: str | Path, title: str = ""
) -> Path:
    """Draw attention weights as a heatmap, one panel per head.

    Args:
        weights: (heads, query, key) or (query, key).
        rows: Labels of the queries.
        columns: Labels of the keys.
        path: The PNG file.
        title: Text above the panels.
    """
    grid = as_heads(weights)  # (heads, query, key)
    check_shape(grid, rows, columns)
    rows, columns = labels_of(rows), labels_of(columns)
    heads = range(len(grid))
    names = list(map(head_name, heads)) if len(grid) > 1 else [""]
    with fonts_with([title, *rows, *columns, *names]):
        figure, panels = _empty_figure(len(grid), rows, columns)
        for panel, head, name in zip(panels, grid, names, strict=True):
            image = panel.imshow(
                head, cmap=COLORMAP, vmin=0, vmax=grid.max() or 1.0, aspect="equal"
            )
            panel.set_xlabel(name)
            name_axes(panel, rows, columns)
            if len(grid) == 1 and head.size <= MAX_ANNOTATED_WEIGHTS:
                write_values(panel, head)
        figure.colorbar(image, ax=panels, shrink=0.8, pad=0.02, aspect=30)
        write_title(figure, title)
        return save(figure, path)


def head_name(number: int) -> str:
    """The name of an attention head, from 0."""
    return _("head {number}", number=number)


def save(figure: Figure, path: str | Path) -> Path:
    """Write a PNG atomically; its metadata has the title."""
    check_suffix(Path(path), PICTURES)
    with atomic_path(path) as unfinished:
        metadata = {"Title": figure.get_suptitle()}
        figure.savefig(unfinished, format="png", dpi=150, metadata=metadata)
    return Path(path)


@contextmanager
def fonts_with(labels: Iterable[str]) -> Iterator[None]:
    """Make matplotlib use fonts that have the characters of `labels`; warn of missing ones."""
    families, missing = fonts_for("".join(labels))
    with matplotlib.rc_context({"font.family": families}), warnings.catch_warnings():
        if missing:
            log.warning(_advice(missing))
            # matplotlib would warn again for each glyph
            warnings.filterwarnings("ignore", message=r"Glyph \d+ .* missing")
        yield


def fonts_for(text: str) -> tuple[list[str], str]:
    """Font families that together cover `text`, and the characters that none of them has."""
    families, missing = [LATIN_FONT], set(filter(str.isprintable, text)) - characters_of(LATIN_FONT)
    for family in _candidates():
        if not missing:
            break
        if found := missing & characters_of(family):
            families.append(family)
            missing -= found
    return families, "".join(sorted(missing))


def characters_of(family: str) -> set[str]:
    """The characters of a font family; empty if it is not installed."""
    properties = font_manager.FontProperties(family=family)
    try:
        found = font_manager.findfont(properties, fallback_to_default=False)
    except ValueError:
        return set()
    return set(map(chr, font_manager.get_font(found).get_charmap()))


def _candidates() -> Iterator[str]:
    """Fonts known to matplotlib, zhplot's font, then system fonts newer than the font cache."""
    known = set(font_manager.get_font_names())
    yield from filter(known.__contains__, CJK_FONTS)
    if ZHPLOT_FONT not in known and _add_zhplot_font():
        yield ZHPLOT_FONT
    cached = {entry.fname for entry in font_manager.fontManager.ttflist}
    for path in set(font_manager.findSystemFonts()) - cached:
        with suppress(RuntimeError, OSError, ValueError):  # FreeType cannot read the file
            font_manager.fontManager.addfont(path)
    new = set(font_manager.get_font_names()) - known
    yield from filter(new.__contains__, CJK_FONTS)


def _add_zhplot_font() -> bool:
    """Add the font of zhplot, without importing it: that would change matplotlib's settings."""
    package = find_spec("zhplot")
    if not package or not package.origin:
        return False
    font = Path(package.origin).parent / "fonts" / "NotoSansSC-Regular.ttf"
    if font.is_file():
        font_manager.fontManager.addfont(font)
    return font.is_file()


def _advice(missing: str) -> str:
    names = (unicodedata.name(character, "") for character in missing)
    remedy = _("install a font that has them, e.g. `apt-get install fonts-noto-cjk`")
    if all(name.startswith(("CJK", "HIRAGANA", "KATAKANA")) for name in names):
        remedy = _("run `pip install zhplot`")
    return _(
        "figure: no font has {characters}, they appear as boxes; {remedy}",
        characters=missing if len(missing) <= 12 else f"{missing[:12]}…",
        remedy=remedy,
    )


def as_heads(weights: Tensor | np.ndarray) -> np.ndarray:
    grid = (
        weights.detach().float().cpu().numpy()
        if isinstance(weights, Tensor)
        else np.asarray(weights, dtype=float)
    )
    return grid[None] if grid.ndim == 2 else grid


def check_shape(grid: np.ndarray, rows: Labels, columns: Labels) -> None:
    if grid.ndim != 3 or grid.shape[1:] != (len(rows), len(columns)) or grid.size == 0:
        wrong = _(
            "weights of shape {shape} for {n_rows} rows and {n_columns} columns",
            shape=grid.shape,
            n_rows=len(rows),
            n_columns=len(columns),
        )
        right = _("give weights (heads, query, key), a label for each query and key")
        raise QkvError(_("attention heatmap"), wrong, right)


def _empty_figure(heads: int, rows: Labels, columns: Labels) -> tuple[Figure, list[Axes]]:
    """A figure with an empty panel for each head, sized by its cells and labels."""
    across = math.ceil(math.sqrt(heads))
    down = math.ceil(heads / across)
    panel_width, panel_height = panel_size(rows, columns)
    width, height = across * panel_width + 1.2, down * panel_height + 0.8
    figure = Figure(figsize=(max(width, 4.0), max(height, 3.0)), layout="constrained")
    panels = figure.subplots(down, across, squeeze=False).flatten().tolist()
    for empty in panels[heads:]:
        empty.remove()
    return figure, panels[:heads]


def panel_size(rows: Labels, columns: Labels) -> tuple[float, float]:
    """The width and height of a panel in inches, with its labels."""
    cell = CELL_INCHES * _shrink(rows, columns)
    labels = 0.24 * _longest(columns) if _tilted(columns) else 0.7
    width = cell * (len(columns) + 0.24 * _longest(rows) + 0.7)
    return width, cell * (len(rows) + labels + 0.7)


def write_title(figure: Figure, title: str) -> None:
    """Write the title above the panels; a long line gets smaller letters, then an ellipsis."""
    points = 72 * figure.get_figwidth()
    limit = int(points / (MIN_TITLE_POINTS * LETTER_WIDTH))  # letters that fit
    lines = [_shortened(printable(line), limit) for line in title.split("\n")]
    size = min(TITLE_POINTS, points / (max(1, _longest(lines)) * LETTER_WIDTH))
    figure.suptitle("\n".join(lines), fontsize=size, parse_math=False)


def _shortened(line: str, limit: int) -> str:
    """The line, cut to a display width of `limit` letters; wide characters count twice."""
    if _longest([line]) <= limit:
        return line
    line = line[:limit]
    while _longest([line]) >= limit:
        line = line[:-1]
    return f"{line}…"


def name_axes(panel: Axes, rows: Labels, columns: Labels) -> None:
    """Label keys above and queries on the left; a `$` in a token is not a formula."""
    size = 10 * _shrink(rows, columns)
    rotation: dict[str, Any] = (
        {"rotation": 60, "ha": "left", "rotation_mode": "anchor"} if _tilted(columns) else {}
    )
    panel.set_xticks(range(len(columns)), columns, parse_math=False, fontsize=size, **rotation)
    panel.set_yticks(range(len(rows)), rows, parse_math=False, fontsize=size)
    panel.tick_params(length=0, labeltop=True, labelbottom=False)
    panel.spines[:].set_visible(False)


def write_values(panel: Axes, head: np.ndarray) -> None:
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


def labels_of(tokens: Labels) -> list[str]:
    """The labels of the tokens on an axis."""
    return list(map(_label, tokens))


def _label(token: str) -> str:
    """A token as one short printable line."""
    token = printable(token.translate(str.maketrans("\n\t", "↵→")))
    return token if len(token) <= MAX_LABEL_CHARACTERS else f"{token[: MAX_LABEL_CHARACTERS - 1]}…"


def printable(text: str) -> str:
    return "".join(character if character.isprintable() else "�" for character in text)


def _shrink(rows: Labels, columns: Labels) -> float:
    return min(1.0, FULL_SIZE_TOKENS / max(len(rows), len(columns)))


def _longest(labels: Labels) -> int:
    """The width of the longest label; wide characters count twice."""
    return max(
        sum(2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in label) for label in labels
    )


def _tilted(columns: Labels) -> bool:
    return _longest(columns) > 4
