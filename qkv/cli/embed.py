"""`qkv embed`: sentence embeddings of the lines of a file, as .npy, .jsonl or JSON lines on stdout.

Files are written atomically; memory does not grow with the file. See docs/embedding.md.
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qkv.cli.meter import ProgressMeter
from qkv.cli.translate import Device, Folder
from qkv.messages import _

if TYPE_CHECKING:
    from qkv.pipeline.embed_options import EmbedOptions
    from qkv.pipeline.embedder import Embedder

File = Annotated[
    Path, typer.Argument(metavar="FILE", help=_("sentences, one per line; - is standard input"))
]
Out = Annotated[
    Path | None,
    typer.Option(
        "--out", "-o", help=_("output file, .npy or .jsonl; default: JSON lines on stdout")
    ),
]
Pooling = Annotated[
    str | None, typer.Option(help=_("pooling: cls, mean or max; default: as the model"))
]
Normalize = Annotated[
    bool | None,
    typer.Option(
        "--normalize/--no-normalize", help=_("L2-normalize the vectors; default: as the model")
    ),
]
Dimensions = Annotated[
    int | None, typer.Option(help=_("keep the first dimensions only (Matryoshka)"))
]
Truncation = Annotated[
    str, typer.Option(help=_("inputs longer than the context: truncate, or chunk and average"))
]
BatchSize = Annotated[int, typer.Option(help=_("sentences per batch"))]


def embed(
    folder: Folder,
    file: File,
    out: Out = None,
    pooling: Pooling = None,
    normalize: Normalize = None,
    dimensions: Dimensions = None,
    truncation: Truncation = "truncate",
    batch_size: BatchSize = 64,
    device: Device = "cpu",
) -> None:
    """Embed every line of a file as a vector."""
    embedder, options = open_embedder(
        folder,
        device,
        pooling=pooling,
        normalize=normalize,
        dimensions=dimensions,
        truncation=truncation,
        batch_size=batch_size,
    )
    name = _("standard input") if str(file) == "-" else str(file)
    progress = (
        ProgressMeter(None if str(file) == "-" or file.is_fifo() else count_lines(file))
        if out
        else None
    )
    blocks = embedder.embed_lines(lines_of_file(file, name), name, options, progress)
    if out:
        return _write(out, options.dimensions or embedder.d_model, blocks)
    from qkv.pipeline.vectors import as_line

    for texts, vectors in blocks:
        sys.stdout.writelines(map(as_line, texts, vectors))
        sys.stdout.flush()
    return None


def open_embedder(folder: Path, device: str, **options: Any) -> "tuple[Embedder, EmbedOptions]":
    """Load an embedding model; the options are checked first."""
    from qkv.allocator import keep_pages

    keep_pages()  # before torch is imported
    from qkv.checkpoint.load import load_spec
    from qkv.pipeline.embed_options import EmbedOptions
    from qkv.pipeline.embedder import Embedder

    checked = EmbedOptions(**options)
    checked.check(load_spec(folder).d_model)
    return Embedder.load(folder, device), checked


def lines_of_file(file: Path, name: str) -> Iterator[str]:
    from qkv.text.lines import decode_lines, read_lines

    return (
        decode_lines(open(0, "rb", closefd=False), name) if str(file) == "-" else read_lines(file)
    )


def count_lines(file: Path) -> int:
    """Count the lines; an empty line is an error, reported before the embedding starts."""
    from qkv.data.corpus import check_not_pipe
    from qkv.text.lines import empty_text_error, read_lines

    check_not_pipe(file)
    count = 0
    for count, line in enumerate(read_lines(file), start=1):
        if not line.strip():
            raise empty_text_error(_("{file}, line {line}", file=file, line=count))
    return count


def _write(out: Path, width: int, blocks: Iterator[Any]) -> None:
    from qkv.pipeline.vectors import VectorWriter

    with VectorWriter(out, width) as file:
        for texts, vectors in blocks:
            file.add(texts, vectors)
    print(
        _("{out}: {count:,} vectors of {width} dimensions", out=out, count=file.count, width=width),
        file=sys.stderr,
    )
