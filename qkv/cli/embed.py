"""`qkv embed`: sentence embeddings of the lines of a file, as .npy, .jsonl or JSON lines on stdout.

Files are written atomically; memory does not grow with the file. See docs/guides/embeddings.md.
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qkv.allocator import keep_pages
from qkv.cli.lines import stdin_lines
from qkv.cli.meter import ProgressMeter
from qkv.cli.options import BatchSize, Device, Dimensions, Folder, Pooling, Truncation
from qkv.cli.parameters import argument, option
from qkv.files import VECTOR_FILES, check_output
from qkv.messages import _
from qkv.text.lines import empty_text_error, read_lines

if TYPE_CHECKING:
    from qkv.pipeline.embed_options import EmbedOptions
    from qkv.pipeline.embedder import Embedder


def embed(
    folder: Folder,
    file: Path = argument(..., "sentences, one per line; - is standard input", metavar="FILE"),
    out: Path | None = option(
        None, "output file, .npy or .jsonl; default: JSON lines on stdout", "--out", "-o"
    ),
    pooling: Pooling = None,
    normalize: bool | None = option(
        None, "L2-normalize the vectors; default: as the model", "--normalize/--no-normalize"
    ),
    dimensions: Dimensions = None,
    truncation: Truncation = "truncate",
    batch_size: BatchSize = 64,
    device: Device = "cpu",
) -> None:
    """Embed every line of a file as a vector."""
    if out:
        check_output(out, [file, folder], VECTOR_FILES)
    embedder, options = open_embedder(
        folder,
        device,
        pooling=pooling,
        normalize=normalize,
        dimensions=dimensions,
        truncation=truncation,
        batch_size=batch_size,
    )
    piped = str(file) == "-"
    name = _("standard input") if piped else str(file)
    progress = None
    if out:
        progress = ProgressMeter(None if piped or file.is_fifo() else count_lines(file))
    lines = stdin_lines() if piped else read_lines(file)
    blocks = embedder.embed_lines(lines, name, options, progress)
    if out:
        _write(out, options.dimensions or embedder.d_model, blocks)
    else:
        _print(blocks)


def open_embedder(folder: Path, device: str, **options: Any) -> "tuple[Embedder, EmbedOptions]":
    """Load an embedding model; the options are checked first."""
    keep_pages()  # before torch is imported
    from qkv.checkpoint.load import load_spec
    from qkv.pipeline.embed_options import EmbedOptions
    from qkv.pipeline.embedder import Embedder

    checked = EmbedOptions(**options)
    checked.check(load_spec(folder).d_model)
    return Embedder.load(folder, device), checked


def count_lines(file: Path) -> int:
    """Count the lines; an empty line is an error, reported before the embedding starts."""
    from qkv.data.corpus import check_not_pipe

    check_not_pipe(file)
    count = 0
    for count, line in enumerate(read_lines(file), start=1):
        if not line.strip():
            raise empty_text_error(_("{file}, line {line}", file=file, line=count))
    return count


def _print(blocks: Iterator[Any]) -> None:
    from qkv.pipeline.vectors import as_line

    for texts, vectors in blocks:
        sys.stdout.writelines(map(as_line, texts, vectors))
        sys.stdout.flush()


def _write(out: Path, width: int, blocks: Iterator[Any]) -> None:
    from qkv.pipeline.vectors import VectorWriter

    with VectorWriter(out, width) as file:
        for texts, vectors in blocks:
            file.add(texts, vectors)
    print(
        _("{out}: {count:,} vectors of {width} dimensions", out=out, count=file.count, width=width),
        file=sys.stderr,
    )
