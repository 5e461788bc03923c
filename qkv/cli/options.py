"""Options and arguments that several commands share; the others are in the module of their command.

All are evaluated at import, after the language is set.
"""

from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option

from qkv.messages import _


def option(default: Any, explanation: str, *names: str, **settings: Any) -> Any:
    """An option of a command with its help text, which is translated; `...` means required."""
    return Option(default, *names, help=_(explanation), **settings)


def argument(default: Any, explanation: str, **settings: Any) -> Any:
    """An argument of a command, as `option`."""
    return Argument(default, help=_(explanation), **settings)


# ── Models ────────────────────────────────────────────────────────────────────────────────────
Folder = Annotated[Path, Argument(metavar="FOLDER", help=_("a model folder"))]
Model = Annotated[
    str, Argument(help=_("a preset, a model.json or a model folder (qkv or Hugging Face format)"))
]
Device = Annotated[str, Option(help=_("device: cpu, cuda or mps"))]
Engine = Annotated[
    str, Option(help=_("inference engine: torch, or ctranslate2 for an exported folder"))
]
Int8 = Annotated[
    bool, Option("--int8", help=_("int8 quantization: faster, slightly less accurate"))
]

# ── Computation ───────────────────────────────────────────────────────────────────────────────
Batch = Annotated[int, Option(min=1, help=_("sequences per batch"))]
BatchSize = Annotated[int, Option(help=_("sentences per batch"))]
BeamSize = Annotated[int, Option(help=_("beam size of beam search; 1 is greedy decoding"))]
LengthPenalty = Annotated[
    float, Option(help=_("length penalty of beam search; larger values favor longer translations"))
]
Pooling = Annotated[str | None, Option(help=_("pooling: cls, mean or max; default: as the model"))]
Dimensions = Annotated[int | None, Option(help=_("keep the first dimensions only (Matryoshka)"))]
Truncation = Annotated[
    str, Option(help=_("inputs longer than the context: truncate, or chunk and average"))
]

# ── Output ────────────────────────────────────────────────────────────────────────────────────
Json = Annotated[bool, Option("--json", help=_("print JSON"))]
