"""A picture of where a model looked, for papers, slides and notebooks.

In: a recording or a pass. Out: a PNG; a notebook shows it by itself.
Told in docs/explore.md, "Pictures".
"""

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from torch import Tensor

from qkv.errors import QkvError, near_miss
from qkv.evaluate.figures import attention_picture
from qkv.explore.looking import weights
from qkv.explore.passes import Pass
from qkv.explore.story import attention_of
from qkv.messages import _


class Picture:
    """A PNG that a notebook shows; `save` writes it."""

    def __init__(self, png: bytes):
        self.png = png

    def _repr_png_(self) -> bytes:
        return self.png

    def save(self, path: str | Path) -> Path:
        Path(path).write_bytes(self.png)
        return Path(path)


def picture_of(
    grid: Tensor,
    rows: Sequence[str] | None = None,
    columns: Sequence[str] | None = None,
    title: str = "",
) -> Picture:
    """Attention weights (heads, query, key) or (query, key); without names, places are counted from 0."""
    rows = [str(n) for n in range(grid.shape[-2])] if rows is None else rows
    columns = [str(n) for n in range(grid.shape[-1])] if columns is None else columns
    with TemporaryDirectory() as folder:
        return Picture(
            attention_picture(grid, rows, columns, Path(folder) / "picture.png", title).read_bytes()
        )


def draw_attention(
    one: Pass, path: str | Path, which: str | None = None, layer: int | None = None
) -> Path:
    """Every head of one layer; by default the last layer, and cross-attention where there is some."""
    kinds = {kind["name"]: kind for kind in attention_of(one)}
    if not kinds:
        raise QkvError(one.subject.name, _("there is no attention in it"))
    which = next(reversed(kinds)) if which is None else which
    if which not in kinds:
        raise QkvError("--kind", _("no '{which}' attention", which=which), near_miss(which, kinds))
    layers = [each["layer"] for each in kinds[which]["layers"]]
    layer = layers[-1] if layer is None else layer
    if layer not in layers:
        raise QkvError(
            "--layer", _("no layer {layer}", layer=layer), near_miss(str(layer), map(str, layers))
        )
    rows, columns = (
        one.subject.shown(one.ids[kinds[which][axis]], kinds[which][axis])
        for axis in ("rows", "columns")
    )
    return attention_picture(weights(one, which, layer), rows, columns, path, one.text)
