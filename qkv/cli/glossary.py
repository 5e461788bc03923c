"""`qkv glossary`: terms with their names in qkv and in other checkpoints, and a model's shapes.

See docs/reference/glossary.md.
"""

import re
import sys
from difflib import get_close_matches
from shutil import get_terminal_size
from typing import TYPE_CHECKING, Annotated, Any

from qkv.cli.options import Json
from qkv.cli.output import print_json
from qkv.cli.parameters import argument, option
from qkv.errors import QkvError
from qkv.messages import _

if TYPE_CHECKING:
    from qkv.checkpoint.glossary.entry import Entry

Record = dict[str, Any]  # a term as a JSON object
WIDTH = 280  # columns of the tables in a file or pipe
MIN_WIDTH = 120  # in a narrower terminal, a table is a list


def glossary(
    model: Annotated[
        str | None,
        argument(
            ...,
            "show the sizes, weights and tensors of this model only: a preset, a model.json or a "
            "model folder (qkv or Hugging Face format)",
        ),
    ] = None,
    term: str | None = option(
        None, "show all about the terms with this word or name: wq, c_attn, attention"
    ),
    as_json: Json = False,
) -> None:
    """List the terms of the field with their names in qkv and in other checkpoints."""
    records = all_records() if model is None else model_records(model)
    if term is not None:
        records = [record for record in records if matches(record, term)]
        check_found(records, term)
    if as_json:
        print_json([json_fields(record) for record in records], indent=2)
    elif term is not None or output_width() < MIN_WIDTH:
        print("\n\n".join(map(card, records)))
    else:
        print_tables(records)


# ── Records ───────────────────────────────────────────────────────────────────────────────────
def all_records() -> list[Record]:
    from qkv.checkpoint.glossary import GLOSSARY

    return [record_of(kind, entry) for kind, entries in GLOSSARY.items() for entry in entries]


def model_records(model: str) -> list[Record]:
    """The terms of a model; `model_shape` is the shape of a weight or tensor in it."""
    from qkv.checkpoint.glossary.model_shapes import model_glossary
    from qkv.cli.model import find_spec

    return [
        record_of(kind, found.entry)
        | {"name": found.name, "value": found.value, "model_shape": list(found.shape) or None}
        | {"bias": found.bias, "layers": found.layers}
        for kind, rows in model_glossary(find_spec(model)).items()
        for found in rows
    ]


def record_of(kind: str, entry: "Entry") -> Record:
    from qkv.checkpoint.glossary.entry import FORMATS

    names = {format: entry.full_names(format) for format in FORMATS}
    return {
        "kind": kind,
        "term": entry.term,
        "chinese": entry.chinese,
        "meaning": _(entry.meaning),
        "symbol": entry.symbol,
        "shape": entry.shape,
        "name": entry.name,
        "names": {format: found for format, found in names.items() if found},
        "textbook": entry.textbook and f"qkv.textbook.{entry.textbook}",
        "entry": entry,
    }


def json_fields(record: Record) -> Record:
    """The fields that are printed as JSON: those that this term has."""
    found = {key: value for key, value in record.items() if value or value is False}
    return {key: value for key, value in found.items() if key != "entry"}


def matches(record: Record, term: str) -> bool:
    """Whether the term has this text, or one of its names this part or end: wq, attention.wq."""
    term, names = term.casefold(), [name.casefold() for name in record["entry"].all_names()]
    parts = {part for name in names for part in [name, *re.split(r"[.,\s]+", name)]}
    return (
        term in parts
        or any(term in name for name in names[:2])
        or any(name.endswith(f".{term}") for name in names[2:])
    )


def check_found(records: list[Record], term: str) -> None:
    if records:
        return
    known = [name for record in all_records() for name in record["entry"].all_names()]
    close = get_close_matches(term, [part for name in known for part in name.split(".")], n=1)
    right = _("did you mean '{close}'?", close=close[0]) if close else _("see qkv glossary")
    raise QkvError("--term", _("no term or name '{term}'", term=term), right)


# ── Text ──────────────────────────────────────────────────────────────────────────────────────
def output_width() -> int:
    return get_terminal_size().columns if sys.stdout.isatty() else WIDTH


def card(record: Record) -> str:
    """All about a term, one field per line."""
    from qkv.checkpoint.glossary.entry import FORMATS

    fields = {
        _("symbol"): record["symbol"],
        _("shape"): record["shape"],
        _("in this model"): model_text(record),
        _("qkv name"): record["name"],
        **{FORMATS[format]: ", ".join(names) for format, names in record["names"].items()},
        _("textbook"): record["textbook"],
    }
    lines = [f"  {name}: {value}" for name, value in fields.items() if value]
    return "\n".join([f"{record['term']} ({record['chinese']}): {record['meaning']}", *lines])


def model_text(record: Record) -> str:
    """The value of a size, or the shape of a weight or tensor in the model."""
    if shape := record.get("model_shape"):
        text = f"({', '.join(map(str, shape))}{',' if len(shape) == 1 else ''})"
        return _("{shape}, bias", shape=text) if record["bias"] else text
    return str(record.get("value") or "")


def print_tables(records: list[Record]) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from qkv.checkpoint.glossary import HEADINGS

    console = Console(highlight=False, width=output_width())
    for kind, heading in HEADINGS.items():
        rows = [table_row(record) for record in records if record["kind"] == kind]
        headings = [name for name in rows[0] if any(row[name] for row in rows)] if rows else []
        table = Table(title=_(heading), title_justify="left", box=None, pad_edge=False)
        for name in headings:
            table.add_column(name, overflow="fold")
        for row in rows:
            table.add_row(*(escape(row[name]) for name in headings))
        if rows:
            console.print(table, "")


def table_row(record: Record) -> dict[str, str]:
    """The columns of a table; columns without a value are left out."""
    entry, in_model = record["entry"], "model_shape" in record
    others = dict.fromkeys(name for format in record["names"] for name in entry.names(format))
    has_names = record["kind"] in ("size", "weight")
    return {
        _("term"): record["term"],
        _("Chinese"): record["chinese"],
        _("symbol"): record["symbol"],
        _("in this model") if in_model else _("shape"): model_text(record) or record["shape"],
        _("layers"): record.get("layers", ""),
        _("qkv name"): record["name"],
        _("other names"): ", ".join(others),
        _("textbook"): "" if has_names else entry.textbook,
        _("meaning"): "" if has_names else record["meaning"],
    }
