"""Read sentence pairs with human similarity scores (STS) from TSV or JSONL.

See docs/guides/embeddings.md.
"""

import math
from pathlib import Path
from typing import Any

from qkv.data.corpus import is_jsonl, located_lines, parse_json
from qkv.errors import QkvError
from qkv.messages import _, listed
from qkv.text.lines import replace_surrogates

KEYS = ("sentence1", "sentence2", "score")
Row = tuple[str, str, float]


def read_scored(path: Path) -> tuple[list[str], list[str], list[float]]:
    """Return the first sentences, the second sentences and the scores."""
    parse = _from_json if is_jsonl(path) else _from_columns
    rows = [parse(line, where) for where, line in located_lines(path) if line.strip()]
    if len(rows) < 2:
        raise QkvError(path, _("{n_pairs} pairs", n_pairs=len(rows)), _("give at least two pairs"))
    first, second, scores = zip(*rows, strict=True)
    return list(first), list(second), list(scores)


def _from_columns(line: str, where: str) -> Row:
    columns = line.split("\t")
    right = _("write sentence<TAB>sentence<TAB>score")
    if len(columns) < 3:
        raise QkvError(where, _("{n_columns} of 3 columns", n_columns=len(columns)), right)
    return _checked(columns, where, right)


def _from_json(line: str, where: str) -> Row:
    right = _('write {{"sentence1": "...", "sentence2": "...", "score": 4.2}}')
    record = parse_json(line, where, right)
    missing = [f"'{key}'" for key in KEYS if not isinstance(record, dict) or key not in record]
    if missing:
        raise QkvError(where, _("no {missing}", missing=listed(missing)), right)
    return _checked([record[key] for key in KEYS], where, right)


def _checked(fields: list[Any], where: str, right: str) -> Row:
    first, second, score = fields[:3]
    if not all(isinstance(text, str) and text.strip() for text in (first, second)):
        raise QkvError(where, _("an empty sentence"), right)
    try:
        number = float("nan" if isinstance(score, bool) else score)
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise QkvError(where, _("{score!r} is not a score", score=str(score)), right)
    return replace_surrogates(first), replace_surrogates(second), number
