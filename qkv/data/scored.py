"""Pairs of sentences with a score that people gave them.

In: a TSV (sentence, sentence, score) or a JSONL ({"sentence1": ..., "sentence2": ..., "score": ...}). Out: three lists.
Told in docs/embedding.md, "Scores".
"""

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from qkv.errors import QkvError
from qkv.language import say
from qkv.text.lines import mend_surrogates, read_lines

KEYS = ("sentence1", "sentence2", "score")
Row = tuple[str, str, float]


def read_scored(path: str | Path) -> tuple[list[str], list[str], list[float]]:
    """The first sentences, the second ones and the scores; a line that lacks one of them is named."""
    rows = list(_rows(Path(path)))
    if len(rows) < 2:
        raise QkvError(path, say(f"{len(rows)} pairs", f"{len(rows)} 对句子"), say("two at least can be compared", "至少两对才能比较"))
    first, second, scores = zip(*rows, strict=True)
    return list(first), list(second), list(scores)


def _rows(path: Path) -> Iterator[Row]:
    of_line = _from_json if path.name.lower().removesuffix(".gz").endswith((".jsonl", ".ndjson")) else _from_columns
    for number, line in enumerate(read_lines(path), start=1):
        if line.strip():
            yield of_line(line, say(f"{path}, line {number}", f"{path} 第 {number} 行"))


def _from_columns(line: str, where: str) -> Row:
    columns = line.split("\t")
    right = say("write sentence<TAB>sentence<TAB>score", "请写成 句子<TAB>句子<TAB>分数")
    if len(columns) < 3:
        raise QkvError(where, say(f"{len(columns)} of 3 columns", f"3 列中只有 {len(columns)} 列"), right)
    return _checked(columns[0], columns[1], columns[2], where, right)


def _from_json(line: str, where: str) -> Row:
    right = say('write {"sentence1": "...", "sentence2": "...", "score": 4.2}', '请写成 {"sentence1": "...", "sentence2": "...", "score": 4.2}')
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        raise QkvError(where, say("not JSON", "不是 JSON"), right) from None
    missing = [f"'{key}'" for key in KEYS if not isinstance(record, dict) or key not in record]
    if missing:
        raise QkvError(where, say(f"no {', '.join(missing)}", f"没有 {'、'.join(missing)}"), right)
    return _checked(record["sentence1"], record["sentence2"], record["score"], where, right)


def _checked(first: Any, second: Any, score: Any, where: str, right: str) -> Row:
    if not all(isinstance(one, str) and one.strip() for one in (first, second)):
        raise QkvError(where, say("an empty sentence", "有空句子"), right)
    try:
        number = float("nan" if isinstance(score, bool) else score)
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise QkvError(where, say(f"{str(score)!r} is no score", f"{str(score)!r} 不是分数"), right)
    return mend_surrogates(first), mend_surrogates(second), number
