"""`qkv attention`: a picture of where a translator looks."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from qkv.language import say

if TYPE_CHECKING:
    from qkv.pipeline import Translator


def attention(
    folder: Annotated[Path, typer.Argument(help=say("a trained translator", "训练好的翻译模型"))],
    text: Annotated[str, typer.Argument(help=say("the sentence to translate", "要翻译的句子"))],
    out: Annotated[Path, typer.Option(help=say("the picture", "图片文件"))] = Path("attention.png"),
) -> None:
    """Draw, for each piece of the translation, where in the sentence the decoder looked."""
    from qkv.pipeline import Translator

    print(draw_cross_attention(Translator.load(folder), text, out))


def draw_cross_attention(translator: "Translator", text: str, path: Path) -> Path:
    """The cross-attention of the layer that aligns best, its heads averaged, as a PNG."""
    from qkv.generate.alignment import cross_weights
    from qkv.measure.pictures import attention_picture

    source = translator.encode_source(text)
    target = translator.encode_target(translator(text))                 # <bos> y <eos>
    weights = cross_weights(translator.model, source, target[:-1])      # (target, source)
    rows = [*translator.target.tokens_for_people(target[1:-1]), "<eos>"]
    columns = [*translator.source.tokens_for_people(source[:-1]), "<eos>"]
    attention_picture(weights, rows, columns, path, text)
    return path
