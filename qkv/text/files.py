"""Other people's vocabularies, and ours for them.

In: tokenizer.json, vocab.json + merges.txt, vocab.txt, a SentencePiece .model, a tiktoken rank file, or a folder that
holds one of them. Out: a Tokenizer; and vocabulary files from a Tokenizer. Told in docs/tokenizers.md, "Formats".
"""

import json
from pathlib import Path

import tokenizers
from tokenizers import models, normalizers

from qkv.errors import QkvError
from qkv.messages import _, listed
from qkv.text import spm
from qkv.text.lines import read_lines, read_text, write_text
from qkv.text.people import BYTE_OF_SIGN
from qkv.text.pipeline import END, Choices, decoder, pre_tokenizer
from qkv.text.ranks import read_ranks
from qkv.text.tokenizer import SPECIAL_TOKENS, Tokenizer

_KNOWN_SPECIALS = {name for names in SPECIAL_TOKENS.values() for name in names}
_VERSION = "#version: 0.2"


def read_tokenizer(path: str | Path) -> Tokenizer:
    """The tokenizer in a file or folder, whatever its format; the name tells which."""
    path = _chosen(Path(path)) if Path(path).is_dir() else Path(path)
    if path.name.endswith("vocab.json"):
        return read_vocab_and_merges(
            path, path.with_name(path.name.replace("vocab.json", "merges.txt"))
        )
    match path.suffix:
        case ".model":
            return read_sentencepiece(path)
        case ".tiktoken":
            return read_ranks(path)
        case ".txt":
            return read_vocab_txt(path)
        case _:
            return Tokenizer.load(path)


def _chosen(folder: Path) -> Path:
    """The file that describes the tokenizer best."""
    for name in ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt"):
        if (folder / name).is_file():
            return folder / name
    models_there = sorted([*folder.glob("*.model"), *folder.glob("*.tiktoken")])
    if len(models_there) == 1:
        return models_there[0]
    raise QkvError(
        folder,
        _("no tokenizer in this folder"),
        _("it should hold tokenizer.json, tokenizer.model, vocab.json + merges.txt or vocab.txt"),
    )


def read_vocab_and_merges(vocab: Path, merges: Path) -> Tokenizer:
    """BPE as two files: byte-level, as of GPT-2, or with `</w>` at the ends of words."""
    ids, pairs = _read_vocab_json(vocab), _read_merges(merges)
    missing = sorted({part for a, b in pairs for part in (a, b, a + b) if part not in ids})
    if missing:
        raise QkvError(
            merges,
            _(
                "{n_missing} pieces are not in {name} ({missing})",
                n_missing=len(missing),
                name=vocab.name,
                missing=listed(missing[:5]),
            ),
            _("do the two files belong together?"),
        )
    kind = "bpe" if any(token.endswith(END) for token in ids) else "bytes"
    if kind == "bytes" and not BYTE_OF_SIGN.keys() <= ids.keys():
        raise QkvError(
            vocab,
            _("neither all 256 bytes nor a piece with </w>"),
            _("give a byte-level or </w> vocabulary"),
        )
    core = tokenizers.Tokenizer(models.BPE(ids, pairs))
    if kind == "bpe":
        core.model.end_of_word_suffix = END
        if "<unk>" in ids:
            core.model.unk_token = "<unk>"
    core.pre_tokenizer, core.decoder = pre_tokenizer(kind, Choices()), decoder(kind, Choices())
    core.add_special_tokens(_specials(ids, {a + b for a, b in pairs}))
    return Tokenizer(core)


def read_vocab_txt(path: Path, lowercase: bool | None = None) -> Tokenizer:
    """WordPiece as BERT's list of pieces; lower-casing is not in the file, so a list without capitals means it."""
    pieces = list(read_lines(path))
    if "[UNK]" not in pieces:
        raise QkvError(
            path,
            _("no [UNK], so not a WordPiece vocabulary"),
            _("give one piece a line, as BERT's vocab.txt"),
        )
    ids = {piece: id for id, piece in enumerate(pieces)}
    if lowercase is None:
        lowercase = not any(
            piece != piece.lower() for piece in pieces if piece not in _KNOWN_SPECIALS
        )
    core = tokenizers.Tokenizer(models.WordPiece(ids, unk_token="[UNK]"))
    core.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    core.pre_tokenizer, core.decoder = (
        pre_tokenizer("wordpiece", Choices()),
        decoder("wordpiece", Choices()),
    )
    core.add_special_tokens(_specials(ids, set()))
    return Tokenizer(core)


def read_sentencepiece(path: Path) -> Tokenizer:
    """A SentencePiece model, BPE or unigram."""
    return Tokenizer(spm.convert(spm.read_model(path)))


def write_vocabulary(tokenizer: Tokenizer, folder: str | Path) -> list[Path]:
    """The bare vocabulary for other programs: vocab.json + merges.txt, or vocab.txt. Choices stay in tokenizer.json."""
    folder, model = Path(folder), tokenizer.rules["model"]
    match model["type"]:
        case "BPE":
            merges = "\n".join([_VERSION, *(" ".join(pair) for pair in model["merges"]), ""])
            files = {
                "vocab.json": json.dumps(model["vocab"], ensure_ascii=False),
                "merges.txt": merges,
            }
        case "WordPiece":
            files = {"vocab.txt": "\n".join([*sorted(model["vocab"], key=model["vocab"].get), ""])}
        case kind:
            raise QkvError(
                folder,
                _("a {kind} tokenizer has no such files", kind=kind),
                _("save it as tokenizer.json"),
            )
    for name, text in files.items():
        write_text(folder / name, text)
    return [folder / name for name in files]


def _read_vocab_json(path: Path) -> dict[str, int]:
    try:
        ids = json.loads(read_text(path))
    except json.JSONDecodeError as error:
        raise QkvError(
            path,
            _(
                "damaged JSON (line {lineno}, column {colno})",
                lineno=error.lineno,
                colno=error.colno,
            ),
            _("is the download complete?"),
        ) from None
    if not isinstance(ids, dict) or not all(isinstance(id, int) and id >= 0 for id in ids.values()):
        raise QkvError(
            path, _("not a list of pieces and their numbers"), _('write {{"piece": 0, ...}}')
        )
    return ids


def _read_merges(path: Path) -> list[tuple[str, str]]:
    pairs = []
    for number, line in enumerate(read_lines(path), start=1):
        parts = line.split(" ")
        if len(parts) == 2 and all(parts) and not line.startswith("#version"):
            pairs.append((parts[0], parts[1]))
        elif line and not line.startswith("#version"):
            raise QkvError(
                _("{path}, line {number}", path=path, number=number),
                _("'{line}' is not a merge", line=line),
                _("write two pieces with a space between"),
            )
    return pairs


def _specials(ids: dict[str, int], reachable: set[str]) -> list[str]:
    """The pieces with the name of a special token that no merge makes out of plain text."""
    return sorted(
        (name for name in _KNOWN_SPECIALS & ids.keys() if name not in reachable),
        key=ids.__getitem__,
    )
