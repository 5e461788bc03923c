"""`qkv search`: exact top-k search by cosine similarity in a file of sentences.

The vectors are kept in an index folder. See docs/embedding.md.
"""

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from qkv.cli.embed import BatchSize, Dimensions, Pooling, Truncation, count_lines, open_embedder
from qkv.cli.lines import lines
from qkv.cli.meter import ProgressMeter
from qkv.cli.translate import Device, Folder
from qkv.errors import QkvError
from qkv.messages import _

if TYPE_CHECKING:
    from qkv.pipeline.index import Hit

Sentences = Annotated[
    Path, typer.Argument(metavar="SENTENCES", help=_("file of sentences, one per line"))
]
Query = Annotated[str | None, typer.Argument(help=_("query; default: standard input"))]
K = Annotated[int, typer.Option("-k", help=_("number of results"))]
IndexFolder = Annotated[
    Path | None,
    typer.Option("--index", help=_("folder of the vector index; default SENTENCES.index")),
]
Rebuild = Annotated[bool, typer.Option("--rebuild", help=_("rebuild the index"))]

Json = Annotated[bool, typer.Option("--json", help=_("print one JSON object per query"))]


def search(
    folder: Folder,
    sentences: Sentences,
    query: Query = None,
    k: K = 5,
    index: IndexFolder = None,
    rebuild: Rebuild = False,
    pooling: Pooling = None,
    dimensions: Dimensions = None,
    truncation: Truncation = "truncate",
    batch_size: BatchSize = 64,
    device: Device = "cpu",
    as_json: Json = False,
) -> None:
    """Semantic search; the index is built again when the file changes."""
    if k < 1:
        raise QkvError("-k", _("{k} is too small", k=k), _("use 1 or more"))
    n_lines = count_lines(sentences)
    embedder, options = open_embedder(
        folder,
        device,
        pooling=pooling,
        dimensions=dimensions,
        truncation=truncation,
        batch_size=batch_size,
    )
    from qkv.pipeline.index import Index

    opened = Index.open(embedder, sentences, index, options, rebuild, ProgressMeter(n_lines))
    hint = _("Type a query; Ctrl-D to exit.")
    for queries in lines(query, None, batch_size, hint):
        if query is None:
            queries = [line for line in queries if line.strip()]  # an empty line is no query
        for line, hits in zip(queries, opened.search(queries, k), strict=True):
            print(_formatted(line, hits, as_json))
        sys.stdout.flush()


def _formatted(query: str, hits: list["Hit"], as_json: bool) -> str:
    """Cosine, line number and sentence in columns; or one JSON object per query."""
    if as_json:
        return json.dumps({"query": query, "hits": list(map(asdict, hits))}, ensure_ascii=False)
    return "\n".join(f"{hit.score:.4f}\t{hit.line}\t{hit.text}" for hit in hits)
