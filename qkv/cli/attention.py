"""`qkv attention`: a heatmap of attention weights."""

from pathlib import Path
from typing import TYPE_CHECKING

from typer import Option

from qkv.cli.parameters import argument, option
from qkv.files import PICTURES, check_output
from qkv.messages import _

if TYPE_CHECKING:
    from qkv.evaluate.paired_heatmaps import Heatmap
    from qkv.pipeline import Translator


def attention(
    folder: Path = argument(..., "a model folder"),
    text: str = argument(..., "input text"),
    out: Path = option(Path("attention.png"), "PNG file to write"),
    kind: str | None = Option(None, help="encoder, decoder, cross"),
    layer: int | None = option(None, "layer, from 0; default: the last one"),
    head: int | None = option(None, "head, from 0; default: every head of the layer"),
    against: str | None = option(None, "another text, drawn beside it: same layer and heads"),
) -> None:
    """Draw attention weights: a translator's cross-attention, else every head of the last layer."""
    check_output(out, [folder], PICTURES)
    from qkv.cli.explore import open_explorer, page_errors
    from qkv.explore.figures import draw_attention, draw_attention_pair
    from qkv.explore.passes import Pass
    from qkv.pipeline import Translator

    explored = open_explorer(folder).explored
    if explored.family == "translator" and (kind, layer, head) == (None, None, None):
        source, target = explored.tokenizers.values()
        translator = Translator.from_model(
            explored.model, source, target, stored=explored.generation, alignment=explored.alignment
        )
        print(draw_cross_attention(translator, text, out, against))
        return
    with page_errors("qkv attention"):
        passes = [Pass(explored, given, ()) for given in (text, against) if given is not None]
        if against is None:
            print(draw_attention(passes[0], out, kind, layer, head))
        else:
            print(draw_attention_pair(passes, out, kind, layer, head))


def draw_cross_attention(
    translator: "Translator", text: str, path: Path, against: str | None = None
) -> Path:
    """Draw the cross-attention that word alignment uses: a guided head, or the mean of a layer."""
    from qkv.evaluate.figures import attention_heatmap, head_name
    from qkv.evaluate.paired_heatmaps import paired_heatmaps
    from qkv.explore.figures import attention_name, figure_title
    from qkv.generate.alignment import default_layer

    guided = translator.alignment
    layer = guided.layer if guided else default_layer(translator.model)
    heads = head_name(guided.head) if guided else _("mean of the heads")
    drawn = _cross_heatmap(translator, text)
    if against is not None:
        pair = [drawn, _cross_heatmap(translator, against)]
        return paired_heatmaps(pair, path, attention_name("cross", layer, heads))
    title = figure_title(text, "cross", layer, heads)
    return attention_heatmap(drawn.weights, drawn.rows, drawn.columns, path, title)


def _cross_heatmap(translator: "Translator", text: str) -> "Heatmap":
    """The cross-attention of a text and its translation, (target, source)."""
    from qkv.evaluate.paired_heatmaps import Heatmap
    from qkv.explore.figures import one_line
    from qkv.generate.alignment import cross_weights

    source = translator.encode_source(text)
    target = translator.encode_target(translator(text))  # <bos> y <eos>
    weights = cross_weights(translator.model, source, target[:-1], translator.alignment)
    rows = translator.target.display_tokens(target[1:])
    columns = translator.source.display_tokens(source)
    return Heatmap(weights, rows, columns, one_line(text))
