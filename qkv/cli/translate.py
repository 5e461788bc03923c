"""`qkv translate`: translate an argument, the lines of a file, standard input or a terminal.

See docs/guides/translation.md.
"""

import sys
from dataclasses import asdict
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from qkv.allocator import keep_pages
from qkv.cli.lines import lines
from qkv.cli.options import BatchSize, BeamSize, Device, Engine, Folder, Int8, LengthPenalty
from qkv.cli.output import print_json
from qkv.cli.parameters import argument, option
from qkv.errors import QkvError, near_miss
from qkv.messages import _

if TYPE_CHECKING:
    from qkv.pipeline import Generator, Translator
    from qkv.pipeline.segments import Translation

Kind = TypeVar("Kind", "Translator", "Generator")

# Lines are read ahead and sorted by length, so that batches need less padding.
BATCHES_PER_READ = 16


def translate(
    folder: Folder,
    text: str | None = argument(None, "text to translate; default: --file or standard input"),
    file: Path | None = option(None, "file to translate, line by line", "--file", "-f"),
    beam_size: BeamSize = 4,
    length_penalty: LengthPenalty = 0.6,
    n_best: int = option(1, "print the n best hypotheses: line number, score, text"),
    alignment: bool = option(False, "print word alignments from cross-attention", "--alignment"),
    max_target_len: int | None = option(None, "maximum number of tokens of a translated sentence"),
    batch_size: BatchSize = 32,
    int8: Int8 = False,
    device: Device = "cpu",
    engine: Engine = "torch",
    as_json: bool = option(False, "print one JSON object per line", "--json"),
) -> None:
    """Translate a text, a file or standard input, line by line."""
    if text is not None and file is not None:
        raise QkvError("qkv translate", _("both a text and --file"), _("give one of them"))
    from qkv.generate.config import TranslationConfig
    from qkv.pipeline import Translator

    config = TranslationConfig(
        beam_size,
        length_penalty,
        n_best,
        max_target_len,
        batch_size,
        as_json or n_best > 1,
        alignment,
    )
    translator = open_engine(Translator, engine, folder, device, int8)
    numbers = count(1)
    hint = _("Type a sentence; Ctrl-D to exit.")
    for batch in lines(text, file, BATCHES_PER_READ * batch_size, hint):
        for line, best in zip(batch, translator.translate(batch, config), strict=True):
            number = next(numbers)
            if as_json:
                print_json({"source": line, "translations": list(map(_as_json, best))})
            else:
                print("\n".join(_row(number, translation, n_best) for translation in best))
        sys.stdout.flush()


def open_engine(kind: type[Kind], engine: str, folder: Path, device: str, int8: bool) -> Kind:
    """Load a translator or generator with the given engine; CTranslate2 does not import torch."""
    if engine == "torch":
        keep_pages()  # before torch is imported
        return kind.load(folder, device, int8)
    if engine != "ctranslate2":
        wrong = _("no engine '{engine}'", engine=engine)
        raise QkvError("--engine", wrong, near_miss(engine, ("torch", "ctranslate2")))
    if int8:
        wrong = _("the data type of a CTranslate2 model is fixed at export")
        raise QkvError("--int8", wrong, _("export with --int8"))
    return kind.load_ctranslate2(folder, device)


def _row(number: int, translation: "Translation", n_best: int) -> str:
    """The columns of a translation: line number and score if there are several, text, alignment."""
    columns = [str(number), f"{translation.score:.4f}"] if n_best > 1 else []
    columns.append(translation.text)
    if (links := translation.alignment) is not None:
        columns.append(
            " ".join(f"{link.source}→{link.target}({link.weight:.2f})" for link in links)
        )
    return "\t".join(columns)


def _as_json(translation: "Translation") -> dict[str, Any]:
    links = translation.alignment
    alignment = None if links is None else [link._asdict() for link in links]
    return asdict(translation) | {"alignment": alignment}
