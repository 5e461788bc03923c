"""`qkv embed`: a file of sentences becomes a file of vectors.

In: a model folder and sentences, one a line. Out: .npy or .jsonl, whole or not at all; without --out JSON lines on stdout.
Memory stays bounded for files of any size. Told in docs/embedding.md, "Use".
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qkv.cli.meter import Meter
from qkv.cli.translate import Device, Folder
from qkv.messages import _

if TYPE_CHECKING:
    from qkv.pipeline.embedder import Embedder, Wishes

File = Annotated[
    Path, typer.Argument(metavar="FILE", help=_("sentences, one a line; - is standard input"))
]
Out = Annotated[Path | None, typer.Option("--out", "-o", help=_("vectors.npy or vectors.jsonl"))]
Pooling = Annotated[str | None, typer.Option(help=_("cls, mean or max; else the model's own"))]
Normalize = Annotated[
    bool | None,
    typer.Option("--normalize/--no-normalize", help=_("to length one; else as the model")),
]
Dimensions = Annotated[int | None, typer.Option(help=_("keep only the first ones"))]
Long = Annotated[str, typer.Option(help=_("beyond the model's length: cut, or split and average"))]
BatchSize = Annotated[int, typer.Option(help=_("sentences at a time"))]


def embed(
    folder: Folder,
    file: File,
    out: Out = None,
    pooling: Pooling = None,
    normalize: Normalize = None,
    dimensions: Dimensions = None,
    long: Long = "cut",
    batch_size: BatchSize = 64,
    device: Device = "cpu",
) -> None:
    """The vector of every line of a file."""
    embedder, wishes = open_embedder(
        folder,
        device,
        pooling=pooling,
        normalize=normalize,
        dimensions=dimensions,
        long=long,
        batch_size=batch_size,
    )
    name = _("standard input") if str(file) == "-" else str(file)
    tell = Meter(None if str(file) == "-" or file.is_fifo() else count_lines(file)) if out else None
    blocks = embedder.embed_lines(lines_of_file(file, name), name, wishes, tell)
    if out:
        return _write(out, wishes.dimensions or embedder.d_model, blocks)
    from qkv.pipeline.vectors import as_line

    for texts, vectors in blocks:
        sys.stdout.writelines(map(as_line, texts, vectors))
        sys.stdout.flush()
    return None


def open_embedder(folder: Path, device: str, **wishes: Any) -> "tuple[Embedder, Wishes]":
    """The model of a folder and how it is to be used, checked before any work."""
    from qkv.allocator import keep_pages

    keep_pages()  # before torch is imported
    from qkv.checkpoint.load import load_spec
    from qkv.pipeline.embedder import Embedder, Wishes

    asked = Wishes(**wishes)
    asked.check(load_spec(folder).d_model)
    return Embedder.load(folder, device), asked


def lines_of_file(file: Path, name: str) -> Iterator[str]:
    from qkv.text.lines import lines_of, read_lines

    return lines_of(open(0, "rb", closefd=False), name) if str(file) == "-" else read_lines(file)


def count_lines(file: Path) -> int:
    """How many there are; one without text is told of now, not when its turn comes after an hour."""
    from qkv.data.corpus import refuse_pipe
    from qkv.text.lines import no_text, read_lines

    refuse_pipe(file)
    count = 0
    for count, line in enumerate(read_lines(file), start=1):
        if not line.strip():
            raise no_text(_("{file}, line {count}", file=file, count=count))
    return count


def _write(out: Path, width: int, blocks: Iterator[Any]) -> None:
    from qkv.pipeline.vectors import VectorWriter

    with VectorWriter(out, width) as file:
        for texts, vectors in blocks:
            file.add(texts, vectors)
    print(
        _("{out}: {count:,} vectors of {width} numbers", out=out, count=file.count, width=width),
        file=sys.stderr,
    )
