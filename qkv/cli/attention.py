"""`qkv attention`: a picture of where a model looks."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from qkv.errors import QkvError
from qkv.messages import _

if TYPE_CHECKING:
    from qkv.pipeline import Translator


def attention(
    folder: Annotated[Path, typer.Argument(help=_("the model"))],
    text: Annotated[str, typer.Argument(help=_("the sentence to read"))],
    out: Annotated[Path, typer.Option(help=_("the picture"))] = Path("attention.png"),
    kind: Annotated[str | None, typer.Option(help="encoder, decoder, cross")] = None,
    layer: Annotated[int | None, typer.Option(help=_("which layer, from 0; all its heads"))] = None,
) -> None:
    """Draw where a model looks: a translator's cross-attention, else every head of the last layer."""
    from qkv.cli.explore import open_explorer
    from qkv.explore.passes import Pass
    from qkv.explore.picture import draw_attention
    from qkv.explore.problem import Problem
    from qkv.pipeline import Translator

    subject = open_explorer(folder).subject
    if subject.family == "translator" and kind is None and layer is None:
        source, target = subject.tokenizers.values()
        translator = Translator.from_model(
            subject.model, source, target, stored=subject.generation, alignment=subject.alignment
        )
        print(draw_cross_attention(translator, text, out))
        return
    try:
        print(draw_attention(Pass(subject, text, ()), out, kind, layer))
    except Problem as problem:
        raise QkvError("qkv attention", problem.text()) from None


def draw_cross_attention(translator: "Translator", text: str, path: Path) -> Path:
    """The cross-attention that --alignment reads, as a PNG: of the guided head, or the mean of the last layer but one."""
    from qkv.evaluate.figures import attention_picture
    from qkv.generate.alignment import cross_weights

    source = translator.encode_source(text)
    target = translator.encode_target(translator(text))  # <bos> y <eos>
    weights = cross_weights(
        translator.model, source, target[:-1], translator.alignment
    )  # (target, source)
    rows, columns = (
        translator.target.tokens_for_people(target[1:]),
        translator.source.tokens_for_people(source),
    )
    attention_picture(weights, rows, columns, path, text)
    return path
