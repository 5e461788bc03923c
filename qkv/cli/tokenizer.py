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
from qkv.language import say

if TYPE_CHECKING:
    from qkv.text.learn import FileTexts

app = typer.Typer(no_args_is_help=True, help=say("Text to tokens and back.", "文本与词元互换。"))

TokenizerPath = Annotated[str, typer.Argument(metavar="TOKENIZER", help=say(
    "tokenizer.json, vocab.json, vocab.txt, a .model or .tiktoken file, or a folder with one",
    "tokenizer.json、vocab.json、vocab.txt、.model 或 .tiktoken 文件，或含有它们的文件夹"))]
Files = Annotated[list[Path], typer.Argument(metavar="FILE", help=say(
    "text files in UTF-8, plain or .gz", "UTF-8 文本文件，可为 .gz"))]
Errors = Annotated[str, typer.Option(help=say(
    "what to do with bytes that are not UTF-8: strict or replace", "遇到非 UTF-8 字节：strict（停止）或 replace（替换）"))]
HEADS = {
    "step": say("step", "步"), "merge": say("merge", "合并"), "rank": say("rank", "序号"), "pieces": say("pieces", "片段"),
    "piece": say("piece", "片段"), "id": say("id", "编号"), "file": say("file", "文件"), "lines": say("lines", "行"),
    "tokens": say("tokens", "词元"), "tokens_per_word": say("tokens per word", "词元/词"),
    "tokens_per_character": say("tokens per character", "词元/字符"), "bytes_per_token": say("bytes per token", "字节/词元"),
    "unknown_rate": say("unknown rate", "未知率"), "round_trip": say("round trip", "还原率"),
}
AsJson = Annotated[bool, typer.Option("--json", help=say("for programs", "供程序读取"))]


@app.command(help=say("Learn a tokenizer from text files.", "从文本文件学习分词器。"))
def learn(
    files: Files,
    out: Annotated[Path, typer.Option(help=say("where to write tokenizer.json", "tokenizer.json 的写入位置"))],
    kind: Annotated[str, typer.Option(help="word, char, bpe, bytes, wordpiece")] = "bytes",
    vocab_size: Annotated[int, typer.Option(help=say("how many tokens", "词元个数"))] = 8000,
    lowercase: Annotated[bool, typer.Option("--lowercase", help=say("small letters only", "全部小写"))] = False,
    nfkc: Annotated[bool, typer.Option("--nfkc", help=say("unify look-alikes (Ａ -> A)", "统一等价字符（Ａ -> A）"))] = False,
    split_chinese: Annotated[bool, typer.Option("--split-chinese", help=say(
        "every Chinese character on its own", "每个汉字单独切开"))] = False,
    add_prefix_space: Annotated[bool, typer.Option("--add-prefix-space", help=say(
        "bytes: a word at the beginning of a text is tokenized as after a space", "bytes：文本开头的词与空格后的词切法相同"))] = False,
    min_count: Annotated[int, typer.Option(help=say("leave out what is rarer", "更少见的不收"))] = 1,
    special: Annotated[list[str], typer.Option(help=say("one more special token", "再加一个特殊词元"))] = [],  # noqa: B006
    errors: Errors = "strict",
    as_json: AsJson = False,
) -> None:
    from qkv.text.learn import PASSES, Choices, special_tokens
    from qkv.text.learn import learn as learn_tokenizer

    choices = Choices(lowercase, nfkc, split_chinese, min_count, tuple(special), add_prefix_space)
    special_tokens(kind, choices)  # a mistake in the choices is told before the files are read
    if out.is_dir():
        raise QkvError(out, say("a folder", "这是文件夹"), say(f"write --out {out}/tokenizer.json", f"请写 --out {out}/tokenizer.json"))
    with _reading(files, errors, PASSES[kind]) as texts:
        tokenizer = learn_tokenizer(kind, texts, vocab_size, choices)
    tokenizer.save(out)
    if as_json:
        print(json.dumps({"file": str(out), "kind": kind, "vocab_size": tokenizer.vocab_size,
                          "fingerprint": tokenizer.fingerprint}))
    else:
        print(say(f"{out}: {tokenizer.vocab_size} tokens ({kind})", f"{out}：{tokenizer.vocab_size} 个词元（{kind}）"))


@app.command(help=say("The ids of texts, one text a line.", "文本的编号，每行一条。"))
def encode(
    tokenizer: TokenizerPath,
    text: Annotated[list[str] | None, typer.Argument(help=say("default: standard input", "默认：标准输入"))] = None,
    file: Annotated[Path | None, typer.Option(help=say("a text file", "文本文件"))] = None,
    pieces: Annotated[bool, typer.Option("--pieces", help=say("show the pieces, not the ids", "显示片段而非编号"))] = False,
    parse_special: Annotated[bool, typer.Option("--parse-special", help=say(
        "<eos> in the text is the special token", "文中的 <eos> 视为特殊词元"))] = False,
    errors: Errors = "strict",
    as_json: AsJson = False,
) -> None:
    from qkv.text.files import read_tokenizer

    known = read_tokenizer(tokenizer)
    for batch in _batches(text, file, errors):
        for ids in known.encode_batch(batch, parse_special=parse_special):
            if as_json:
                print(json.dumps({"ids": ids, "pieces": known.tokens_for_people(ids)}, ensure_ascii=False))
            else:
                print(*(known.tokens_for_people(ids) if pieces else ids))


@app.command(help=say("The text of ids, one text a line.", "编号还原成文本，每行一条。"))
def decode(
    tokenizer: TokenizerPath,
    ids: Annotated[list[str] | None, typer.Argument(help=say("default: standard input", "默认：标准输入"))] = None,
    file: Annotated[Path | None, typer.Option(help=say("a file of ids", "编号文件"))] = None,
    as_json: AsJson = False,
) -> None:
    from qkv.text.files import read_tokenizer

    known = read_tokenizer(tokenizer)
    for batch in _batches([" ".join(ids)] if ids else None, file, "strict"):
        for text in known.decode_batch([_numbers(line, known.vocab_size) for line in batch]):
            print(json.dumps({"text": text}, ensure_ascii=False) if as_json else text)


@app.command(help=say("The merges that build a word, step by step.", "一个词逐步合并的过程。"))
def show(tokenizer: TokenizerPath, word: str, as_json: AsJson = False) -> None:
    from qkv.text.files import read_tokenizer
    from qkv.text.steps import merge_steps

    known = read_tokenizer(tokenizer)
    if known.rules["model"]["type"] == "BPE":
        rows = [{"step": n, "merge": " + ".join(known.shown(step.merge)) if step.merge else "", "rank": step.rank,
                 "pieces": known.shown(step.pieces)} for n, step in enumerate(merge_steps(known, word))]
    else:  # without merges, the pieces and their ids are all there is to see
        ids = known.encode(word)
        rows = [{"piece": piece, "id": id} for piece, id in zip(known.tokens_for_people(ids), ids, strict=True)]
    _print(rows, as_json)


@app.command(help=say("How well a tokenizer fits texts.", "分词器与文本的契合程度。"))
def report(tokenizer: TokenizerPath, files: Files, errors: Errors = "strict", as_json: AsJson = False) -> None:
    from qkv.text.files import read_tokenizer
    from qkv.text.learn import FileTexts
    from qkv.text.report import report as measure

    known = read_tokenizer(tokenizer)
    _check_errors(errors)
    found = {str(file): measure(known, FileTexts([file], errors)) for file in files}
    _print([{"file": file, "lines": one.texts, "tokens": one.tokens, **one.figures()} for file, one in found.items()], as_json)


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
        task = bar.add_task(say("learning", "学习中"), total=total)
        yield FileTexts(files, errors, lambda count: bar.advance(task, count))


def _check_errors(errors: str) -> None:
    if errors not in ("strict", "replace"):
        raise QkvError("--errors", say(f"no way '{errors}'", f"没有 '{errors}' 这种方式"), near_miss(errors, ("strict", "replace")))


def _batches(texts: list[str] | None, file: Path | None, errors: str) -> Iterator[list[str]]:
    """The texts given, or the lines of the file or of standard input; a person typing gets an answer every line."""
    from qkv.text.lines import lines_of, read_lines

    _check_errors(errors)
    if texts is not None and file is not None:
        raise QkvError("--file", say("a text is given as well", "同时给出了文本"), say("give one of the two", "请二选一"))
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
            raise QkvError("ids", say(f"'{word}' is not an id", f"'{word}' 不是编号"),
                           say(f"write numbers from 0 to {vocab_size - 1}", f"请写 0 到 {vocab_size - 1} 的数"))
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
        table.add_row(*(Text(_cell(value), overflow="fold") for value in row.values()))  # Text: a piece may be "[/]"
    Console(width=None if sys.stdout.isatty() else 160).print(table)


def _cell(value: Any) -> str:
    match value:
        case None: return ""
        case float(): return f"{value:.4g}"
        case list(): return " ".join(value)
        case _: return str(value)
