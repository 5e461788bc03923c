"""Attention heatmaps of two texts side by side, one row per head. See docs/guides/inspect.md."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from qkv.evaluate import figures


@dataclass(frozen=True)
class Heatmap:
    """Attention weights of one text with their labels.

    Attributes:
        weights: (heads, query, key) or (query, key).
        rows: Labels of the queries.
        columns: Labels of the keys.
        title: What is drawn, such as the text.
    """

    weights: Tensor
    rows: Sequence[str]
    columns: Sequence[str]
    title: str = ""


def paired_heatmaps(
    pair: Sequence[Heatmap], path: str | Path, title: str = "", heads: Sequence[str] = ()
) -> Path:
    """Draw the same heads of several texts, a column for each text, with one color scale.

    Args:
        pair: The heatmaps, with the same number of heads.
        path: The PNG file.
        title: Text above the panels.
        heads: A name for each head.
    """
    grids = [figures.as_heads(part.weights) for part in pair]  # (heads, query, key)
    parts = [(figures.labels_of(part.rows), figures.labels_of(part.columns)) for part in pair]
    for grid, (rows, columns) in zip(grids, parts, strict=True):
        figures.check_shape(grid, rows, columns)
    assert len({len(grid) for grid in grids}) == 1, "the same heads"
    largest = max(grid.max() for grid in grids) or 1.0
    texts = [title, *(part.title for part in pair), *heads]
    texts += [label for rows, columns in parts for label in (*rows, *columns)]
    with figures.fonts_with(texts):
        figure, panels = _empty_figure(len(grids[0]), parts)
        for column, (part, grid, labels) in enumerate(zip(pair, grids, parts, strict=True)):
            for head, weights in enumerate(grid):
                panel = panels[head][column]
                image = panel.imshow(weights, cmap=figures.COLORMAP, vmin=0, vmax=largest)
                panel.set_xlabel(heads[head] if heads else "")
                figures.name_axes(panel, *labels)
                if len(grid) == 1 and weights.size <= figures.MAX_ANNOTATED_WEIGHTS:
                    figures.write_values(panel, weights)
            panels[0][column].set_title(figures.printable(part.title), parse_math=False)
        figure.colorbar(image, ax=[panel for row in panels for panel in row], shrink=0.8)
        figures.write_title(figure, title)
        return figures.save(figure, path)


def _empty_figure(
    n_heads: int, parts: Sequence[tuple[list[str], list[str]]]
) -> tuple[Figure, list[list[Axes]]]:
    """A figure with a row of panels for each head, a column for each text, sized by the cells."""
    sizes = [figures.panel_size(rows, columns) for rows, columns in parts]
    widths, heights = zip(*sizes, strict=True)
    size = max(sum(widths) + 1.2, 6.0), max(n_heads * max(heights) + 1.2, 3.0)
    figure = Figure(figsize=size, layout="constrained")
    panels = figure.subplots(n_heads, len(parts), squeeze=False, width_ratios=widths)
    return figure, [list(row) for row in panels]
