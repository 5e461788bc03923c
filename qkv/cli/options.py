"""Options and arguments that several commands share; the others are in the module of their command.

All are evaluated at import, after the language is set.
"""

from pathlib import Path
from typing import Annotated

from qkv.cli.parameters import argument, option
from qkv.limits import MAX_BATCH_SIZE, MAX_TOKENS, NumberRange

# ── Models ────────────────────────────────────────────────────────────────────────────────────
Folder = Annotated[Path, argument(..., "a model folder", metavar="FOLDER")]
Model = Annotated[
    str, argument(..., "a preset, a model.json or a model folder (qkv or Hugging Face format)")
]
TokenizerPath = Annotated[
    str,
    argument(
        ...,
        "tokenizer.json, vocab.json, vocab.txt, a .model or .tiktoken file, or a folder with one",
        metavar="TOKENIZER",
    ),
]
Device = Annotated[str, option(..., "device: cpu, cuda or mps")]
Engine = Annotated[
    str, option(..., "inference engine: torch, or ctranslate2 for an exported folder")
]
Int8 = Annotated[bool, option(..., "int8 quantization: faster, slightly less accurate", "--int8")]

# ── Computation ───────────────────────────────────────────────────────────────────────────────
Batch = Annotated[int, option(..., "sequences per batch", limit=NumberRange(1, MAX_BATCH_SIZE))]
SEQ_LEN_LIMIT = NumberRange(1, MAX_TOKENS)
BatchSize = Annotated[int, option(..., "sentences per batch")]
BeamSize = Annotated[int, option(..., "beam size of beam search; 1 is greedy decoding")]
LengthPenalty = Annotated[
    float, option(..., "length penalty of beam search; larger values favor longer translations")
]
Pooling = Annotated[str | None, option(..., "pooling: cls, mean or max; default: as the model")]
Dimensions = Annotated[int | None, option(..., "keep the first dimensions only (Matryoshka)")]
Truncation = Annotated[
    str, option(..., "inputs longer than the context: truncate, or chunk and average")
]

# ── Output ────────────────────────────────────────────────────────────────────────────────────
Json = Annotated[bool, option(..., "print JSON", "--json")]
