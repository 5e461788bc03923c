"""`qkv tokenizer`: train, encode, decode, show, report. See docs/explanation/tokenization.md."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Typer

from qkv.cli.options import Json, TokenizerPath
from qkv.cli.output import print_json
from qkv.cli.parameters import argument, option
from qkv.cli.tokenizer_files import export, merges
from qkv.errors import QkvError, near_miss
from qkv.files import check_output, write_errors
from qkv.messages import _
from qkv.text.lines import batches, decode_lines, read_lines

if TYPE_CHECKING:
    from qkv.text.train_tokenizer import FileTexts

app = Typer(no_args_is_help=True, help=_("Train and use tokenizers."))

Files = Annotated[list[Path], argument(..., "text files in UTF-8, plain or .gz", metavar="FILE")]
Errors = Annotated[str, option(..., "bytes that are not UTF-8: strict (error) or replace")]
COLUMN_NAMES = {
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


@app.command(help=_("Train a tokenizer on text files."))
def train(
    files: Files,
    out: Path = option(..., "tokenizer.json to write"),
    kind: str = option("byte_bpe", "word, char, bpe, byte_bpe or wordpiece"),
    vocab_size: int = option(8000, "vocabulary size"),
    lowercase: bool = option(False, "convert text to lowercase", "--lowercase"),
    nfkc: bool = option(False, "NFKC normalization (Ａ -> A)", "--nfkc"),
    split_chinese: bool = option(False, "split every Chinese character", "--split-chinese"),
    add_prefix_space: bool = option(
        False,
        "byte_bpe: a word at the beginning of a text is tokenized as after a space",
        "--add-prefix-space",
    ),
    min_frequency: int = option(1, "minimum frequency of a word or pair"),
    special: list[str] = option([], "additional special token; may be repeated"),
    errors: Errors = "strict",
    as_json: Json = False,
) -> None:
    from qkv.text.normalization import TokenizerOptions
    from qkv.text.train_tokenizer import PASSES, special_tokens, train_tokenizer

    options = TokenizerOptions(
        lowercase, nfkc, split_chinese, min_frequency, tuple(special), add_prefix_space
    )
    special_tokens(kind, options)  # reports invalid options before the files are read
    with write_errors(out):
        if out.is_dir():
            raise QkvError(out, _("a folder"), _("write --out {out}/tokenizer.json", out=out))
    check_output(out, files)
    with _reading(files, errors, PASSES[kind]) as texts:
        tokenizer = train_tokenizer(kind, texts, vocab_size, options)
    tokenizer.save(out)
    trained = {
        "file": str(out),
        "kind": kind,
        "vocab_size": tokenizer.vocab_size,
        "fingerprint": tokenizer.fingerprint,
    }
    text = _("{out}: {vocab_size} tokens ({kind})", out=out, **trained)
    print(json.dumps(trained) if as_json else text)


@app.command(help=_("Encode text as token ids, one text per line."))
def encode(
    tokenizer: TokenizerPath,
    text: list[str] | None = argument(None, "default: standard input"),
    file: Path | None = option(None, "a text file"),
    pieces: bool = option(False, "print tokens instead of ids", "--pieces"),
    parse_special: bool = option(
        False, "parse special tokens such as <eos> in the text", "--parse-special"
    ),
    errors: Errors = "strict",
    as_json: Json = False,
) -> None:
    from qkv.text.files import read_tokenizer

    loaded = read_tokenizer(tokenizer)
    for batch in _batches(text, file, errors):
        for ids in loaded.encode_batch(batch, parse_special=parse_special):
            if as_json:
                print_json({"ids": ids, "pieces": loaded.display_tokens(ids)})
            else:
                print(*(loaded.display_tokens(ids) if pieces else ids))


@app.command(help=_("Decode token ids as text, one text per line."))
def decode(
    tokenizer: TokenizerPath,
    ids: list[str] | None = argument(None, "default: standard input"),
    file: Path | None = option(None, "a file of ids"),
    as_json: Json = False,
) -> None:
    from qkv.text.files import read_tokenizer

    loaded = read_tokenizer(tokenizer)
    for batch in _batches([" ".join(ids)] if ids else None, file, "strict"):
        for text in loaded.decode_batch([_numbers(line, loaded.vocab_size) for line in batch]):
            if as_json:
                print_json({"text": text})
            else:
                print(text)


@app.command(help=_("Show the BPE merges of a word, step by step."))
def show(tokenizer: TokenizerPath, word: str, as_json: Json = False) -> None:
    from qkv.text.files import read_tokenizer
    from qkv.text.merge_steps import merge_steps

    loaded = read_tokenizer(tokenizer)
    if loaded.config["model"]["type"] == "BPE":
        rows = [
            {
                "step": n,
                "merge": " + ".join(loaded.display_pieces(step.merge)) if step.merge else "",
                "rank": step.rank,
                "pieces": loaded.display_pieces(step.pieces),
            }
            for n, step in enumerate(merge_steps(loaded, word))
        ]
    else:  # other models have no merges
        ids = loaded.encode(word)
        pieces = loaded.display_tokens(ids)
        rows = [{"piece": piece, "id": id} for piece, id in zip(pieces, ids, strict=True)]
    _print(rows, as_json)


app.command(
    help=_("Print the merges of a BPE tokenizer in order, or write vocab.json and merges.txt.")
)(merges)
app.command(
    help=_("Convert a tokenizer to a SentencePiece .model or a tokenizer.json with the same ids.")
)(export)


@app.command(
    help=_("Report tokens per word, bytes per token, unknown rate and round trip on text files.")
)
def report(
    tokenizer: TokenizerPath, files: Files, errors: Errors = "strict", as_json: Json = False
) -> None:
    from qkv.text.files import read_tokenizer
    from qkv.text.report import evaluate_tokenizer
    from qkv.text.train_tokenizer import FileTexts

    loaded = read_tokenizer(tokenizer)
    _check_errors(errors)
    rows = []
    for file in dict.fromkeys(files):
        counts = evaluate_tokenizer(loaded, FileTexts([file], errors))
        row = {"file": str(file), "lines": counts.texts, "tokens": counts.tokens}
        rows.append(row | counts.metrics())
    _print(rows, as_json)


@contextmanager
def _reading(files: list[Path], errors: str, passes: int) -> "Iterator[FileTexts]":
    """The lines of the files, with a progress bar if stderr is a terminal."""
    from rich.console import Console
    from rich.progress import Progress

    from qkv.text.train_tokenizer import FileTexts

    _check_errors(errors)
    console = Console(stderr=True)
    plain = all(file.is_file() and file.suffix != ".gz" for file in files)
    total = passes * sum(file.stat().st_size for file in files) if plain else None
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(_("training"), total=total)
        yield FileTexts(files, errors, lambda count: bar.advance(task, count))


def _check_errors(errors: str) -> None:
    if errors not in ("strict", "replace"):
        wrong = _("no error handler '{errors}'", errors=errors)
        raise QkvError("--errors", wrong, near_miss(errors, ("strict", "replace")))


def _batches(texts: list[str] | None, file: Path | None, errors: str) -> Iterator[list[str]]:
    """Batches of the arguments, of the file or of standard input; single lines on a terminal."""
    _check_errors(errors)
    size = 1000
    if texts is not None and file is not None:
        raise QkvError("--file", _("both a text and --file"), _("give one of them"))
    if texts is not None:
        lines = iter(texts)
    elif file is not None:
        lines = read_lines(file, errors)
    else:
        stdin: Any = sys.stdin.buffer
        lines = decode_lines(stdin, "stdin", errors)
        size = 1 if sys.stdin.isatty() else size
    return batches(lines, size)


def _numbers(line: str, vocab_size: int) -> list[int]:
    words = line.split()
    for word in words:
        if not word.isdecimal() or len(word) > 20 or int(word) >= vocab_size:
            wrong = _("'{word:.40}' is not an id", word=word)
            right = _("use numbers from 0 to {last_id}", last_id=vocab_size - 1)
            raise QkvError("ids", wrong, right)
    return list(map(int, words))


def _print(rows: list[dict[str, Any]], as_json: bool) -> None:
    """Print rows as JSON or as a table."""
    if as_json:
        print_json(rows)
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(*(COLUMN_NAMES[name] for name in (rows[0] if rows else ())))
    for row in rows:  # Text: a piece may be "[/]"
        table.add_row(*(Text(_formatted(value), overflow="fold") for value in row.values()))
    Console(width=None if sys.stdout.isatty() else 160).print(table)


def _formatted(value: Any) -> str:
    match value:
        case None:
            return ""
        case float():
            return f"{value:.4g}"
        case list():
            return " ".join(value)
        case _:
            return str(value)
