"""`qkv search`: the sentences of a file that mean most nearly what is asked.

In: a model folder, a file of sentences, a question; without one, questions from standard input. Out: the k nearest lines,
exactly, by cosine. Told in docs/embedding.md, "Search".
"""

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from qkv.cli.embed import BatchSize, Dimensions, Long, Pooling, count_lines, open_embedder
from qkv.cli.lines import lines
from qkv.cli.meter import Meter
from qkv.cli.translate import Device, Folder, Json
from qkv.errors import QkvError
from qkv.messages import _

if TYPE_CHECKING:
    from qkv.pipeline.index import Hit

Sentences = Annotated[
    Path, typer.Argument(metavar="SENTENCES", help=_("where to look, one sentence a line"))
]
Query = Annotated[str | None, typer.Argument(help=_("what to look for; else standard input"))]
K = Annotated[int, typer.Option("-k", help=_("how many to show"))]
IndexFolder = Annotated[
    Path | None, typer.Option("--index", help=_("keeps the vectors; else SENTENCES.index"))
]
Rebuild = Annotated[bool, typer.Option("--rebuild", help=_("make the vectors anew"))]


def search(
    folder: Folder,
    sentences: Sentences,
    query: Query = None,
    k: K = 5,
    index: IndexFolder = None,
    rebuild: Rebuild = False,
    pooling: Pooling = None,
    dimensions: Dimensions = None,
    long: Long = "cut",
    batch_size: BatchSize = 64,
    device: Device = "cpu",
    as_json: Json = False,
) -> None:
    """The nearest sentences by meaning; their vectors are kept and made anew when the file changes."""
    if k < 1:
        raise QkvError("-k", _("{k} is too small", k=k), _("use 1 or more"))
    n_lines = count_lines(sentences)
    embedder, wishes = open_embedder(
        folder, device, pooling=pooling, dimensions=dimensions, long=long, batch_size=batch_size
    )
    from qkv.pipeline.index import Index

    found = Index.open(embedder, sentences, index, wishes, rebuild, Meter(n_lines))
    invitation = _("Type what you look for, Ctrl-D to leave.")
    for queries in lines(query, None, batch_size, invitation):
        queries = (
            queries if query is not None else [one for one in queries if one.strip()]
        )  # Enter alone asks nothing
        for asked, hits in zip(queries, found.search(queries, k), strict=True):
            print(_shown(asked, hits, as_json))
        sys.stdout.flush()


def _shown(query: str, hits: list["Hit"], as_json: bool) -> str:
    """Cosine, line number and sentence in columns; or one JSON object a question."""
    if as_json:
        return json.dumps({"query": query, "hits": list(map(asdict, hits))}, ensure_ascii=False)
    return "\n".join(f"{hit.score:.4f}\t{hit.line}\t{hit.text}" for hit in hits)
