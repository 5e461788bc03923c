"""`qkv attention`: a heatmap of attention weights."""

from pathlib import Path
from typing import TYPE_CHECKING

from typer import Option

from qkv.cli.parameters import argument, option
from qkv.errors import QkvError
from qkv.files import PICTURES, check_output
from qkv.messages import _

if TYPE_CHECKING:
    from qkv.pipeline import Translator


def attention(
    folder: Path = argument(..., "a model folder"),
    text: str = argument(..., "input text"),
    out: Path = option(Path("attention.png"), "PNG file to write"),
    kind: str | None = Option(None, help="encoder, decoder, cross"),
    layer: int | None = option(None, "layer, from 0; default: the last one"),
    head: int | None = option(None, "head, from 0; default: every head of the layer"),
) -> None:
    """Draw attention weights: a translator's cross-attention, else every head of the last layer."""
    check_output(out, [folder], PICTURES)
    from qkv.cli.explore import open_explorer
    from qkv.explore.figures import draw_attention
    from qkv.explore.passes import Pass
    from qkv.pipeline import Translator
    from qkv.web.api_errors import ApiError

    explored = open_explorer(folder).explored
    if explored.family == "translator" and (kind, layer, head) == (None, None, None):
        source, target = explored.tokenizers.values()
        translator = Translator.from_model(
            explored.model, source, target, stored=explored.generation, alignment=explored.alignment
        )
        print(draw_cross_attention(translator, text, out))
        return
    try:
        print(draw_attention(Pass(explored, text, ()), out, kind, layer, head))
    except ApiError as error:
        raise QkvError("qkv attention", error.text()) from None


def draw_cross_attention(translator: "Translator", text: str, path: Path) -> Path:
    """Draw the cross-attention that word alignment uses: a guided head, or the mean of a layer."""
    from qkv.evaluate.figures import attention_heatmap, head_name
    from qkv.explore.figures import figure_title
    from qkv.generate.alignment import cross_weights, default_layer

    source = translator.encode_source(text)
    target = translator.encode_target(translator(text))  # <bos> y <eos>
    # (target, source)
    guided = translator.alignment
    weights = cross_weights(translator.model, source, target[:-1], guided)
    rows = translator.target.display_tokens(target[1:])
    columns = translator.source.display_tokens(source)
    layer = guided.layer if guided else default_layer(translator.model)
    heads = head_name(guided.head) if guided else _("mean of the heads")
    title = figure_title(text, "cross", layer, heads)
    return attention_heatmap(weights, rows, columns, path, title)
