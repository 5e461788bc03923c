"""`qkv tokenizer`: learn, encode, decode, show, report.

In: texts and tokenizer files. Out: a tokenizer, ids, text or a table on stdout; progress on stderr.
"""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qkv.errors import QkvError, near_miss
from qkv.messages import _

if TYPE_CHECKING:
    from qkv.text.learn import FileTexts

app = typer.Typer(no_args_is_help=True, help=_("Text to tokens and back."))

TokenizerPath = Annotated[
    str,
    typer.Argument(
        metavar="TOKENIZER",
        help=_(
            "tokenizer.json, vocab.json, vocab.txt, a .model or .tiktoken file, or a folder with one"
        ),
    ),
]
Files = Annotated[
    list[Path], typer.Argument(metavar="FILE", help=_("text files in UTF-8, plain or .gz"))
]
Errors = Annotated[
    str, typer.Option(help=_("what to do with bytes that are not UTF-8: strict or replace"))
]
HEADS = {
    "step": _("step"),
    "merge": _("merge"),
    "rank": _("rank"),
    "pieces": _("pieces"),
    "piece": _("piece"),
    "id": _("id"),
    "file": _("file"),
    "lines": _("lines"),
    "tokens": _("tokens"),
    "tokens_per_word": _("tokens per word"),
    "tokens_per_character": _("tokens per character"),
    "bytes_per_token": _("bytes per token"),
    "unknown_rate": _("unknown rate"),
    "round_trip": _("round trip"),
}
AsJson = Annotated[bool, typer.Option("--json", help=_("for programs"))]


@app.command(help=_("Learn a tokenizer from text files."))
def learn(
    files: Files,
    out: Annotated[Path, typer.Option(help=_("where to write tokenizer.json"))],
    kind: Annotated[str, typer.Option(help="word, char, bpe, bytes, wordpiece")] = "bytes",
    vocab_size: Annotated[int, typer.Option(help=_("how many tokens"))] = 8000,
    lowercase: Annotated[bool, typer.Option("--lowercase", help=_("small letters only"))] = False,
    nfkc: Annotated[bool, typer.Option("--nfkc", help=_("unify look-alikes (Ａ -> A)"))] = False,
    split_chinese: Annotated[
        bool, typer.Option("--split-chinese", help=_("every Chinese character on its own"))
    ] = False,
    add_prefix_space: Annotated[
        bool,
        typer.Option(
            "--add-prefix-space",
            help=_("bytes: a word at the beginning of a text is tokenized as after a space"),
        ),
    ] = False,
    min_count: Annotated[int, typer.Option(help=_("leave out what is rarer"))] = 1,
    special: Annotated[list[str], typer.Option(help=_("one more special token"))] = [],  # noqa: B006
    errors: Errors = "strict",
    as_json: AsJson = False,
) -> None:
    from qkv.text.learn import PASSES, Choices, special_tokens
    from qkv.text.learn import learn as learn_tokenizer

    choices = Choices(lowercase, nfkc, split_chinese, min_count, tuple(special), add_prefix_space)
    special_tokens(kind, choices)  # a mistake in the choices is told before the files are read
    if out.is_dir():
        raise QkvError(out, _("a folder"), _("write --out {out}/tokenizer.json", out=out))
    with _reading(files, errors, PASSES[kind]) as texts:
        tokenizer = learn_tokenizer(kind, texts, vocab_size, choices)
    tokenizer.save(out)
    if as_json:
        print(
            json.dumps(
                {
                    "file": str(out),
                    "kind": kind,
                    "vocab_size": tokenizer.vocab_size,
                    "fingerprint": tokenizer.fingerprint,
                }
            )
        )
    else:
        print(
            _(
                "{out}: {vocab_size} tokens ({kind})",
                out=out,
                vocab_size=tokenizer.vocab_size,
                kind=kind,
            )
        )


@app.command(help=_("The ids of texts, one text a line."))
def encode(
    tokenizer: TokenizerPath,
    text: Annotated[list[str] | None, typer.Argument(help=_("default: standard input"))] = None,
    file: Annotated[Path | None, typer.Option(help=_("a text file"))] = None,
    pieces: Annotated[
        bool, typer.Option("--pieces", help=_("show the pieces, not the ids"))
    ] = False,
    parse_special: Annotated[
        bool, typer.Option("--parse-special", help=_("<eos> in the text is the special token"))
    ] = False,
    errors: Errors = "strict",
    as_json: AsJson = False,
) -> None:
    from qkv.text.files import read_tokenizer

    known = read_tokenizer(tokenizer)
    for batch in _batches(text, file, errors):
        for ids in known.encode_batch(batch, parse_special=parse_special):
            if as_json:
                print(
                    json.dumps(
                        {"ids": ids, "pieces": known.tokens_for_people(ids)}, ensure_ascii=False
                    )
                )
            else:
                print(*(known.tokens_for_people(ids) if pieces else ids))


@app.command(help=_("The text of ids, one text a line."))
def decode(
    tokenizer: TokenizerPath,
    ids: Annotated[list[str] | None, typer.Argument(help=_("default: standard input"))] = None,
    file: Annotated[Path | None, typer.Option(help=_("a file of ids"))] = None,
    as_json: AsJson = False,
) -> None:
    from qkv.text.files import read_tokenizer

    known = read_tokenizer(tokenizer)
    for batch in _batches([" ".join(ids)] if ids else None, file, "strict"):
        for text in known.decode_batch([_numbers(line, known.vocab_size) for line in batch]):
            print(json.dumps({"text": text}, ensure_ascii=False) if as_json else text)


@app.command(help=_("The merges that build a word, step by step."))
def show(tokenizer: TokenizerPath, word: str, as_json: AsJson = False) -> None:
    from qkv.text.files import read_tokenizer
    from qkv.text.steps import merge_steps

    known = read_tokenizer(tokenizer)
    if known.rules["model"]["type"] == "BPE":
        rows = [
            {
                "step": n,
                "merge": " + ".join(known.shown(step.merge)) if step.merge else "",
                "rank": step.rank,
                "pieces": known.shown(step.pieces),
            }
            for n, step in enumerate(merge_steps(known, word))
        ]
    else:  # without merges, the pieces and their ids are all there is to see
        ids = known.encode(word)
        rows = [
            {"piece": piece, "id": id}
            for piece, id in zip(known.tokens_for_people(ids), ids, strict=True)
        ]
    _print(rows, as_json)


@app.command(help=_("How well a tokenizer fits texts."))
def report(
    tokenizer: TokenizerPath, files: Files, errors: Errors = "strict", as_json: AsJson = False
) -> None:
    from qkv.text.files import read_tokenizer
    from qkv.text.learn import FileTexts
    from qkv.text.report import report as measure

    known = read_tokenizer(tokenizer)
    _check_errors(errors)
    found = {str(file): measure(known, FileTexts([file], errors)) for file in files}
    _print(
        [
            {"file": file, "lines": one.texts, "tokens": one.tokens, **one.figures()}
            for file, one in found.items()
        ],
        as_json,
    )


@contextmanager
def _reading(files: list[Path], errors: str, passes: int) -> "Iterator[FileTexts]":
    """The files' lines, with a bar on stderr if a person is watching."""
    from rich.console import Console
    from rich.progress import Progress

    from qkv.text.learn import FileTexts

    _check_errors(errors)
    console = Console(stderr=True)
    plain = all(file.is_file() and file.suffix != ".gz" for file in files)
    total = passes * sum(file.stat().st_size for file in files) if plain else None
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(_("learning"), total=total)
        yield FileTexts(files, errors, lambda count: bar.advance(task, count))


def _check_errors(errors: str) -> None:
    if errors not in ("strict", "replace"):
        raise QkvError(
            "--errors",
            _("no way '{errors}'", errors=errors),
            near_miss(errors, ("strict", "replace")),
        )


def _batches(texts: list[str] | None, file: Path | None, errors: str) -> Iterator[list[str]]:
    """The texts given, or the lines of the file or of standard input; a person typing gets an answer every line."""
    from qkv.text.lines import lines_of, read_lines

    _check_errors(errors)
    if texts is not None and file is not None:
        raise QkvError("--file", _("a text is given as well"), _("give one of the two"))
    if texts is not None:
        lines = iter(texts)
    else:
        lines = read_lines(file, errors) if file else lines_of(sys.stdin.buffer, "stdin", errors)  # type: ignore[arg-type]
    size = 1 if texts is None and file is None and sys.stdin.isatty() else 1000
    while batch := list(islice(lines, size)):
        yield batch


def _numbers(line: str, vocab_size: int) -> list[int]:
    for word in line.split():
        if not word.isdecimal() or int(word) >= vocab_size:
            raise QkvError(
                "ids",
                _("'{word}' is not an id", word=word),
                _("write numbers from 0 to {vocab_size}", vocab_size=vocab_size - 1),
            )
    return [int(word) for word in line.split()]


def _print(rows: list[dict[str, Any]], as_json: bool) -> None:
    """Rows for a program, or as a table for a person."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    if as_json:
        print(json.dumps(rows, ensure_ascii=False))
        return
    table = Table(*(HEADS[name] for name in (rows[0] if rows else ())))
    for row in rows:
        table.add_row(
            *(Text(_cell(value), overflow="fold") for value in row.values())
        )  # Text: a piece may be "[/]"
    Console(width=None if sys.stdout.isatty() else 160).print(table)


def _cell(value: Any) -> str:
    match value:
        case None:
            return ""
        case float():
            return f"{value:.4g}"
        case list():
            return " ".join(value)
        case _:
            return str(value)
