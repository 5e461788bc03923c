"""`qkv translate`: a text, a file, standard input or a person at the keyboard, through a model folder.

In: lines. Out: their translations on stdout, line by line and in the same order. Told in docs/translation.md.
"""

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from qkv.cli.lines import lines
from qkv.errors import QkvError, near_miss
from qkv.messages import _

if TYPE_CHECKING:
    from qkv.pipeline import Generator, Translator
    from qkv.pipeline.translator import Translation

Kind = TypeVar("Kind", "Translator", "Generator")

BATCHES_AT_ONCE = (
    16  # lines are read so many batches ahead, so that those of one length can go together
)

Folder = Annotated[Path, typer.Argument(metavar="FOLDER", help=_("the model"))]
Text = Annotated[
    str | None, typer.Argument(help=_("what to translate; else --file or standard input"))
]
File = Annotated[Path | None, typer.Option("--file", "-f", help=_("translate its lines"))]
BeamSize = Annotated[int, typer.Option(help=_("hypotheses kept; 1 is greedy and fastest"))]
LengthPenalty = Annotated[float, typer.Option(help=_("above 0 favours longer translations"))]
NBest = Annotated[int, typer.Option(help=_("print so many: line, score, text"))]
Alignment = Annotated[bool, typer.Option("--alignment", help=_("word pairs from cross-attention"))]
MaxLength = Annotated[int | None, typer.Option(help=_("tokens of a translated sentence"))]
BatchSize = Annotated[int, typer.Option(help=_("sentences at a time"))]
Int8 = Annotated[
    bool, typer.Option("--int8", help=_("matrices in 8 bits: faster, a little less exact"))
]
Device = Annotated[str, typer.Option(help="cpu, cuda, mps")]
Engine = Annotated[str, typer.Option(help=_("torch, or ctranslate2 for a folder exported to it"))]
Json = Annotated[bool, typer.Option("--json", help=_("one JSON object a line"))]


def translate(
    folder: Folder,
    text: Text = None,
    file: File = None,
    beam_size: BeamSize = 4,
    length_penalty: LengthPenalty = 0.6,
    n_best: NBest = 1,
    alignment: Alignment = False,
    max_length: MaxLength = None,
    batch_size: BatchSize = 32,
    int8: Int8 = False,
    device: Device = "cpu",
    engine: Engine = "torch",
    as_json: Json = False,
) -> None:
    """Translate a text, a file or standard input, line by line."""
    if text is not None and file is not None:
        raise QkvError("qkv translate", _("both a text and --file"), _("give one of them"))
    from qkv.generate.config import TranslationConfig
    from qkv.pipeline import Translator

    config = TranslationConfig(
        beam_size, length_penalty, n_best, max_length, batch_size, as_json or n_best > 1, alignment
    )
    translator = open_engine(Translator, engine, folder, device, int8)
    number = 0
    invitation = _("Type a sentence, Ctrl-D to leave.")
    for some in lines(text, file, BATCHES_AT_ONCE * batch_size, invitation):
        for line, best in zip(some, translator.translate(some, config), strict=True):
            number += 1
            print(_shown(number, line, best, n_best, as_json))
        sys.stdout.flush()


def open_engine(kind: type[Kind], engine: str, folder: Path, device: str, int8: bool) -> Kind:
    """The translator or generator of a folder; CTranslate2 runs without torch, whose import costs seconds."""
    if engine == "torch":
        from qkv.allocator import keep_pages

        keep_pages()  # before torch is imported
        return kind.load(folder, device, int8)
    if engine != "ctranslate2":
        raise QkvError(
            "--engine",
            _("no engine '{engine}'", engine=engine),
            near_miss(engine, ("torch", "ctranslate2")),
        )
    if int8:
        raise QkvError(
            "--int8", _("CTranslate2 takes its type from the folder"), _("export with --int8")
        )
    return kind.load_ctranslate2(folder, device)


def _shown(number: int, line: str, best: list["Translation"], n_best: int, as_json: bool) -> str:
    """One line of output a translation, or one JSON object for all of a line."""
    if as_json:
        return json.dumps(
            {"source": line, "translations": list(map(_facts, best))}, ensure_ascii=False
        )
    rows = []
    for one in best:
        columns = [one.text] if n_best == 1 else [str(number), f"{one.score:.4f}", one.text]
        if one.alignment is not None:
            columns.append(
                " ".join(
                    f"{link.source}→{link.target}({link.weight:.2f})" for link in one.alignment
                )
            )
        rows.append("\t".join(columns))
    return "\n".join(rows)


def _facts(one: "Translation") -> dict[str, Any]:
    links = None if one.alignment is None else [link._asdict() for link in one.alignment]
    return asdict(one) | {"alignment": links}
