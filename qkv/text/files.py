"""Read and write vocabulary files.

Formats: tokenizer.json, vocab.json + merges.txt, vocab.txt, a SentencePiece .model, a tiktoken
rank file, or a folder with one of them. See docs/tokenizers.md.
"""

import json
from pathlib import Path

import tokenizers
from tokenizers import models, normalizers

from qkv.errors import QkvError
from qkv.messages import _, listed
from qkv.text import sentencepiece_format
from qkv.text.display import BYTE_DECODER
from qkv.text.lines import read_lines, read_text, write_text
from qkv.text.normalization import END_OF_WORD, TokenizerOptions, decoder, pre_tokenizer
from qkv.text.tiktoken_format import read_ranks
from qkv.text.tokenizer import SPECIAL_TOKENS, Tokenizer

_KNOWN_SPECIALS = {name for names in SPECIAL_TOKENS.values() for name in names}
_MERGES_HEADER = "#version: 0.2"


def read_tokenizer(path: str | Path) -> Tokenizer:
    """Read a tokenizer from a file or folder; the file name determines the format."""
    path = _tokenizer_file(Path(path)) if Path(path).is_dir() else Path(path)
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


def _tokenizer_file(folder: Path) -> Path:
    """Return the most complete tokenizer file of a folder."""
    for name in ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt"):
        if (folder / name).is_file():
            return folder / name
    candidates = sorted([*folder.glob("*.model"), *folder.glob("*.tiktoken")])
    if len(candidates) == 1:
        return candidates[0]
    raise QkvError(
        folder,
        _("no tokenizer in this folder"),
        _("it should hold tokenizer.json, tokenizer.model, vocab.json + merges.txt or vocab.txt"),
    )


def read_vocab_and_merges(vocab: Path, merges: Path) -> Tokenizer:
    """Read BPE from two files: byte-level as in GPT-2, or with the end-of-word suffix `</w>`."""
    ids, pairs = _read_vocab_json(vocab), _read_merges(merges)
    missing = sorted({part for a, b in pairs for part in (a, b, a + b) if part not in ids})
    if missing:
        raise QkvError(
            merges,
            _(
                "{n_missing} tokens are not in {name} ({missing})",
                n_missing=len(missing),
                name=vocab.name,
                missing=listed(missing[:5]),
            ),
            _("do the two files belong together?"),
        )
    kind = "bpe" if any(token.endswith(END_OF_WORD) for token in ids) else "byte_bpe"
    if kind == "byte_bpe" and not BYTE_DECODER.keys() <= ids.keys():
        raise QkvError(
            vocab,
            _("neither all 256 bytes nor a token with </w>"),
            _("give a byte-level or </w> vocabulary"),
        )
    core = tokenizers.Tokenizer(models.BPE(ids, pairs))
    if kind == "bpe":
        core.model.end_of_word_suffix = END_OF_WORD
        if "<unk>" in ids:
            core.model.unk_token = "<unk>"
    options = TokenizerOptions()
    core.pre_tokenizer, core.decoder = pre_tokenizer(kind, options), decoder(kind, options)
    core.add_special_tokens(_specials(ids, {a + b for a, b in pairs}))
    return Tokenizer(core)


def read_vocab_txt(path: Path, lowercase: bool | None = None) -> Tokenizer:
    """Read WordPiece from BERT's vocab.txt.

    Args:
        path: One token per line.
        lowercase: Whether to lowercase texts. The file does not say; None: if no token has an
            uppercase letter.
    """
    tokens = list(read_lines(path))
    if "[UNK]" not in tokens:
        raise QkvError(
            path,
            _("no [UNK], so not a WordPiece vocabulary"),
            _("give one token per line, as in BERT's vocab.txt"),
        )
    ids = {token: id for id, token in enumerate(tokens)}
    if lowercase is None:
        lowercase = not any(
            token != token.lower() for token in tokens if token not in _KNOWN_SPECIALS
        )
    core = tokenizers.Tokenizer(models.WordPiece(ids, unk_token="[UNK]"))
    core.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    options = TokenizerOptions()
    core.pre_tokenizer = pre_tokenizer("wordpiece", options)
    core.decoder = decoder("wordpiece", options)
    core.add_special_tokens(_specials(ids, set()))
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
            merges = "\n".join([_MERGES_HEADER, *(" ".join(pair) for pair in model["merges"]), ""])
            files = {
                "vocab.json": json.dumps(model["vocab"], ensure_ascii=False),
                "merges.txt": merges,
            }
        case "WordPiece":
            files = {"vocab.txt": "\n".join([*sorted(model["vocab"], key=model["vocab"].get), ""])}
        case kind:
            raise QkvError(
                folder,
                _("no vocabulary file format for a {kind} tokenizer", kind=kind),
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
            _("damaged JSON (line {line}, column {column})", line=error.lineno, column=error.colno),
            _("is the download complete?"),
        ) from None
    if not isinstance(ids, dict) or not all(isinstance(id, int) and id >= 0 for id in ids.values()):
        raise QkvError(path, _("not a mapping from tokens to ids"), _('write {{"token": 0, ...}}'))
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
                _("write two tokens separated by a space"),
            )
    return pairs


def _specials(ids: dict[str, int], reachable: set[str]) -> list[str]:
    """Return the tokens with the name of a special token that no merge produces from text."""
    return sorted(
        (name for name in _KNOWN_SPECIALS & ids.keys() if name not in reachable),
        key=ids.__getitem__,
    )
