"""`qkv tokenizer merges` and `qkv tokenizer export`: the merge table, and other file formats.

See docs/explanation/tokenization.md, "File formats".
"""

from pathlib import Path

from qkv.cli.options import Json, TokenizerPath
from qkv.cli.output import print_json
from qkv.cli.parameters import option
from qkv.files import atomic_path, check_output, check_output_folder
from qkv.messages import _

FORMATS = (".model", ".json")  # SentencePiece, tokenizer.json
MERGE_FILES = {"vocab.json", "merges.txt"}


def merges(
    tokenizer: TokenizerPath,
    out: Path | None = option(
        None, "folder to write vocab.json and merges.txt to, instead of printing the table"
    ),
    as_json: Json = False,
) -> None:
    """Print the merges of a BPE tokenizer in order, or write vocab.json and merges.txt."""
    if out is not None:
        check_output_folder(out, out.is_dir() and {p.name for p in out.iterdir()} <= MERGE_FILES)
    from qkv.text.files import read_tokenizer, write_vocabulary
    from qkv.text.merge_steps import merge_table

    loaded = read_tokenizer(tokenizer)
    table = merge_table(loaded)
    if out is not None:
        files = list(map(str, write_vocabulary(loaded, out)))
        print_json({"merges": len(table), "files": files}) if as_json else print(*files, sep="\n")
    elif as_json:
        print_json([row._asdict() for row in table])
    else:
        print(_("rank"), _("merge"), _("piece"), _("id"), sep="\t")
        for rank, pair, piece, id in table:
            print(rank, " + ".join(pair), piece, id, sep="\t")


def export(
    tokenizer: TokenizerPath,
    out: Path = option(..., "file to write: .model (SentencePiece) or .json (tokenizer.json)"),
    as_json: Json = False,
) -> None:
    """Convert a tokenizer to a SentencePiece .model or a tokenizer.json with the same ids."""
    check_output(out, [Path(tokenizer)], FORMATS)
    from qkv.text.files import read_tokenizer
    from qkv.text.sentencepiece_writer import sentencepiece_bytes

    loaded = read_tokenizer(tokenizer)
    if out.suffix.lower() == ".json":
        loaded.save(out)
    else:
        content = sentencepiece_bytes(loaded)
        with atomic_path(out) as unfinished:
            unfinished.write_bytes(content)
    report = {"file": str(out), "vocab_size": loaded.vocab_size, "fingerprint": loaded.fingerprint}
    if as_json:
        print_json(report)
    else:
        print(_("{out}: {vocab_size} tokens", out=out, vocab_size=loaded.vocab_size))
