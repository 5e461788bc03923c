"""`qkv search`: exact top-k search by cosine similarity in a file of sentences.

The vectors are kept in an index folder. See docs/guides/embeddings.md.
"""

import sys
from dataclasses import asdict
from pathlib import Path

from qkv.allocator import keep_pages
from qkv.cli.embed import count_lines, open_embedder
from qkv.cli.lines import lines
from qkv.cli.meter import ProgressMeter
from qkv.cli.options import BatchSize, Device, Dimensions, Folder, Pooling, Truncation
from qkv.cli.output import print_json
from qkv.cli.parameters import argument, option
from qkv.limits import K_LIMIT
from qkv.messages import _


def search(
    folder: Folder,
    sentences: Path = argument(..., "file of sentences, one per line", metavar="SENTENCES"),
    query: str | None = argument(None, "query; default: standard input"),
    k: int = option(5, "number of results", "-k", limit=K_LIMIT),
    index: Path | None = option(None, "folder of the vector index; default SENTENCES.index"),
    rebuild: bool = option(False, "rebuild the index", "--rebuild"),
    pooling: Pooling = None,
    dimensions: Dimensions = None,
    truncation: Truncation = "truncate",
    batch_size: BatchSize = 64,
    device: Device = "cpu",
    as_json: bool = option(False, "print one JSON object per query", "--json"),
) -> None:
    """Semantic search; the index is built again when the file changes."""
    keep_pages()  # before torch is imported
    from qkv.pipeline.index import Index, check_index_folder

    check_index_folder(sentences, index)
    n_lines = count_lines(sentences)
    embedder, options = open_embedder(
        folder,
        device,
        pooling=pooling,
        dimensions=dimensions,
        truncation=truncation,
        batch_size=batch_size,
    )
    opened = Index.open(embedder, sentences, index, options, rebuild, ProgressMeter(n_lines))
    hint = _("Type a query; Ctrl-D to exit.")
    for queries in lines(query, None, batch_size, hint):
        if query is None:
            queries = [line for line in queries if line.strip()]  # an empty line is no query
        for line, hits in zip(queries, opened.search(queries, k), strict=True):
            if as_json:
                print_json({"query": line, "hits": list(map(asdict, hits))})
            else:  # cosine, line number and sentence in columns
                print("\n".join(f"{hit.score:.4f}\t{hit.line}\t{hit.text}" for hit in hits))
        sys.stdout.flush()
