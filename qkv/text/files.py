"""Read and write vocabulary files.

Formats: tokenizer.json, vocab.json + merges.txt, vocab.txt, a SentencePiece .model, a tiktoken
rank file, or a folder with one of them. See docs/explanation/tokenization.md.
"""

import json
from pathlib import Path

from tokenizers import models, normalizers

from qkv.errors import QkvError
from qkv.json_files import MAX_JSON_BYTES, check_regular, parse_json
from qkv.messages import _, listed
from qkv.text import sentencepiece_format
from qkv.text.display import BYTE_DECODER
from qkv.text.library_calls import library_errors
from qkv.text.lines import read_lines, read_text, replace_surrogates, write_text
from qkv.text.normalization import END_OF_WORD, TokenizerOptions, assemble
from qkv.text.tiktoken_format import read_ranks
from qkv.text.tokenizer import SPECIAL_TOKENS, Tokenizer
from qkv.text.tokenizer_json import check_ids

_KNOWN_SPECIALS = set[str]().union(*SPECIAL_TOKENS.values())
_MERGES_HEADER = "#version: 0.2"


def read_tokenizer(path: str | Path) -> Tokenizer:
    """Read a tokenizer from a file or folder; the file name determines the format."""
    path = Path(path)
    path = _tokenizer_file(path) if path.is_dir() else path
    check_regular(path, MAX_JSON_BYTES)
    readers = {".model": read_sentencepiece, ".tiktoken": read_ranks, ".txt": read_vocab_txt}
    with library_errors(path):
        if path.name.endswith("vocab.json"):
            merges = path.name.replace("vocab.json", "merges.txt")
            return read_vocab_and_merges(path, path.with_name(merges))
        return readers.get(path.suffix, Tokenizer.load)(path)


def _tokenizer_file(folder: Path) -> Path:
    """Return the most complete tokenizer file of a folder."""
    for name in ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt"):
        if (folder / name).is_file():
            return folder / name
    candidates = sorted([*folder.glob("*.model"), *folder.glob("*.tiktoken")])
    if len(candidates) == 1:
        return candidates[0]
    right = _(
        "it should hold tokenizer.json, tokenizer.model, vocab.json + merges.txt or vocab.txt"
    )
    raise QkvError(folder, _("no tokenizer in this folder"), right)


def read_vocab_and_merges(vocab: Path, merges: Path) -> Tokenizer:
    """Read BPE from two files: byte-level as in GPT-2, or with the end-of-word suffix `</w>`."""
    check_regular(merges, MAX_JSON_BYTES)
    ids, pairs = _read_vocab_json(vocab), _read_merges(merges)
    missing = sorted({part for a, b in pairs for part in (a, b, a + b) if part not in ids})
    if missing:
        wrong = _(
            "{n_missing} tokens are not in {name} ({missing})",
            n_missing=len(missing),
            name=vocab.name,
            missing=listed(missing[:5]),
        )
        raise QkvError(merges, wrong, _("do the two files belong together?"))
    kind, model = "byte_bpe", models.BPE(ids, pairs)
    if any(token.endswith(END_OF_WORD) for token in ids):
        kind, model.end_of_word_suffix = "bpe", END_OF_WORD
        model.unk_token = "<unk>" if "<unk>" in ids else None
    elif not BYTE_DECODER.keys() <= ids.keys():
        wrong = _("neither all 256 bytes nor a token with </w>")
        raise QkvError(vocab, wrong, _("give a byte-level or </w> vocabulary"))
    reachable = {a + b for a, b in pairs}
    return Tokenizer(assemble(kind, model, TokenizerOptions(), _specials(ids, reachable)))


def read_vocab_txt(path: Path) -> Tokenizer:
    """Read WordPiece from BERT's vocab.txt, one token per line.

    The file does not say whether to lowercase texts: yes if no token has an uppercase letter.
    """
    tokens = list(read_lines(path))
    if "[UNK]" not in tokens:
        wrong = _("no [UNK], so not a WordPiece vocabulary")
        raise QkvError(path, wrong, _("give one token per line, as in BERT's vocab.txt"))
    ids = {token: id for id, token in enumerate(tokens)}
    lowercase = all(token == token.lower() for token in ids.keys() - _KNOWN_SPECIALS)
    model = models.WordPiece(ids, unk_token="[UNK]")
    core = assemble("wordpiece", model, TokenizerOptions(), _specials(ids, set()))
    core.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    return Tokenizer(core)


def read_sentencepiece(path: Path) -> Tokenizer:
    """Read a SentencePiece model, BPE or unigram."""
    return Tokenizer(sentencepiece_format.convert(sentencepiece_format.read_model(path)))


def write_vocabulary(tokenizer: Tokenizer, folder: str | Path) -> list[Path]:
    """Write vocab.json + merges.txt (BPE) or vocab.txt (WordPiece), and return the paths.

    These files hold the vocabulary only; normalization and the other options are in tokenizer.json.
    """
    folder, model = Path(folder), tokenizer.config["model"]
    match model["type"]:
        case "BPE":
            merges = [_MERGES_HEADER, *map(" ".join, model["merges"]), ""]
            vocabulary = json.dumps(model["vocab"], ensure_ascii=False)
            files = {"vocab.json": vocabulary, "merges.txt": "\n".join(merges)}
        case "WordPiece":
            files = {"vocab.txt": "\n".join([*sorted(model["vocab"], key=model["vocab"].get), ""])}
        case kind:
            wrong = _("no vocabulary file format for a {kind} tokenizer", kind=kind)
            raise QkvError(folder, wrong, _("save it as tokenizer.json"))
    for name, text in files.items():
        write_text(folder / name, text)
    return [folder / name for name in files]


def _read_vocab_json(path: Path) -> dict[str, int]:
    ids = parse_json(read_text(path), path)
    if not isinstance(ids, dict) or not all(
        type(id) is int and id >= 0 and replace_surrogates(token) == token
        for token, id in ids.items()
    ):
        raise QkvError(path, _("not a mapping from tokens to ids"), _('write {{"token": 0, ...}}'))
    check_ids(max(ids.values(), default=-1), path)
    return ids


def _read_merges(path: Path) -> list[tuple[str, str]]:
    pairs = []
    for number, line in enumerate(read_lines(path), start=1):
        if not line or line.startswith("#version"):
            continue
        first, _space, second = line.partition(" ")
        if not first or not second or " " in second:
            where = _("{path}, line {number}", path=path, number=number)
            wrong = _("'{line}' is not a merge", line=line)
            raise QkvError(where, wrong, _("write two tokens separated by a space"))
        pairs.append((first, second))
    return pairs


def _specials(ids: dict[str, int], reachable: set[str]) -> list[str]:
    """Return the tokens with the name of a special token that no merge produces from text."""
    return sorted(_KNOWN_SPECIALS & ids.keys() - reachable, key=ids.__getitem__)
