"""Figures of attention weights as PNG images. See docs/guides/inspect.md."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from torch import Tensor

from qkv.errors import QkvError, near_miss
from qkv.evaluate.figures import attention_heatmap, head_name
from qkv.evaluate.paired_heatmaps import Heatmap, paired_heatmaps
from qkv.explore.attention_views import weights
from qkv.explore.passes import Pass
from qkv.explore.trace import ATTENTION, attention_layers
from qkv.files import PICTURES, atomic_path, check_suffix
from qkv.messages import _, current_language, listed


@dataclass
class Picture:
    """A PNG image that a notebook displays; `save` writes it to a file."""

    png: bytes

    def _repr_png_(self) -> bytes:
        return self.png

    def save(self, path: str | Path) -> Path:
        check_suffix(Path(path), PICTURES)
        with atomic_path(path) as unfinished:
            unfinished.write_bytes(self.png)
        return Path(path)


def picture_of(
    grid: Tensor, rows: Sequence[str] | None, columns: Sequence[str] | None, title: str
) -> Picture:
    """Draw attention weights, (heads, query, key) or (query, key); default labels are positions."""
    n_rows, n_columns = grid.shape[-2:]
    rows = list(map(str, range(n_rows))) if rows is None else rows
    columns = list(map(str, range(n_columns))) if columns is None else columns
    with TemporaryDirectory() as folder:
        path = attention_heatmap(grid, rows, columns, Path(folder) / "picture.png", title)
        return Picture(path.read_bytes())


class Selection(NamedTuple):
    """The heads of one layer that are drawn; `head` None: all of them."""

    kind: str
    layer: int
    head: int | None
    names: list[str]  # of the heads


def select_heads(
    pass_: Pass, kind: str | None = None, layer: int | None = None, head: int | None = None
) -> Selection:
    """Check the options; by default all heads of the last layer, of cross-attention if any."""
    kinds = {name: found for name in ATTENTION if (found := attention_layers(pass_, name))}
    if not kinds:
        raise QkvError(pass_.explored.name, _("the model has no attention layers"))
    kind = list(kinds)[-1] if kind is None else kind
    if kind not in kinds:
        raise QkvError("--kind", _("no '{kind}' attention", kind=kind), near_miss(kind, kinds))
    layers = list(kinds[kind])
    layer = layers[-1] if layer is None else layer
    if layer not in layers:
        raise QkvError(
            "--layer", _("no layer {layer}", layer=layer), near_miss(str(layer), map(str, layers))
        )
    n_heads = kinds[kind][layer]
    if head is not None and not 0 <= head < n_heads:
        raise QkvError(
            "--head", _("no head {head}", head=head), _("use 0 to {last}", last=n_heads - 1)
        )
    numbers = range(n_heads) if head is None else [head]
    return Selection(kind, layer, head, list(map(head_name, numbers)))


def heatmap_of(pass_: Pass, selection: Selection) -> Heatmap:
    """The weights of the selected heads with the tokens as labels."""
    kind, layer, head, _names = selection
    sides = ATTENTION[kind].rows, ATTENTION[kind].columns
    rows, columns = (pass_.explored.display_tokens(pass_.ids[side], side) for side in sides)
    grid = weights(pass_, kind, layer, None if head is None else str(head))
    return Heatmap(grid, rows, columns, one_line(pass_.text))


def draw_attention(
    pass_: Pass,
    path: str | Path,
    kind: str | None = None,
    layer: int | None = None,
    head: int | None = None,
) -> Path:
    """Draw the heads of one layer; by default all of the last layer, of cross-attention if any."""
    selection = select_heads(pass_, kind, layer, head)
    heads = "" if head is None else head_name(head)
    title = figure_title(pass_.text, selection.kind, selection.layer, heads)
    drawn = heatmap_of(pass_, selection)
    return attention_heatmap(drawn.weights, drawn.rows, drawn.columns, path, title)


def draw_attention_pair(
    passes: Sequence[Pass],
    path: str | Path,
    kind: str | None = None,
    layer: int | None = None,
    head: int | None = None,
) -> Path:
    """Draw the same heads of two texts side by side."""
    selection = select_heads(passes[0], kind, layer, head)
    title = attention_name(selection.kind, selection.layer)
    pair = [heatmap_of(pass_, selection) for pass_ in passes]
    return paired_heatmaps(pair, path, title, selection.names)


def figure_title(text: str, kind: str, layer: int, heads: str = "") -> str:
    """The text, and below it the kind of attention, the layer and the heads that are drawn."""
    return f"{one_line(text)}\n{attention_name(kind, layer, heads)}"


def attention_name(kind: str, layer: int, heads: str = "") -> str:
    """The kind of attention, the layer and the heads."""
    title = getattr(ATTENTION[kind].title, current_language())
    parts = [title, _("layer {number}", number=layer), heads]
    return listed(filter(None, parts))


def one_line(text: str) -> str:
    return " ".join(text.split())
