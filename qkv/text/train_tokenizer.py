"""Train word, character, BPE, byte-level BPE and WordPiece tokenizers on a stream of texts.

See docs/explanation/tokenization.md.
"""

import json
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from operator import index
from pathlib import Path
from typing import Any

from tokenizers import models, trainers
from tokenizers.pre_tokenizers import ByteLevel

from qkv.errors import QkvError, near_miss
from qkv.limits import NumberRange
from qkv.messages import _
from qkv.text.chunking import split_for_training
from qkv.text.lines import batches, read_lines, replace_surrogates
from qkv.text.normalization import CONTINUATION, END_OF_WORD, TokenizerOptions, assemble
from qkv.text.tokenizer import Tokenizer
from qkv.text.tokenizer_json import MAX_VOCAB_SIZE

__all__ = ["TokenizerOptions", "train_tokenizer"]

TOKENIZER_LIMITS = {
    "vocab_size": NumberRange(1, MAX_VOCAB_SIZE),
    "min_frequency": NumberRange(0, 2**31 - 1),
}
PASSES = {"word": 1, "char": 1, "bpe": 2, "byte_bpe": 1, "wordpiece": 2}  # over the texts
KINDS = tuple(PASSES)
# Without the suffix or prefix here, the trainer silently ignores that of the model.
_TRAINERS: dict[str, Callable[..., trainers.Trainer]] = {
    "word": trainers.WordLevelTrainer,
    "char": trainers.WordLevelTrainer,
    "bpe": partial(trainers.BpeTrainer, end_of_word_suffix=END_OF_WORD),
    "byte_bpe": trainers.BpeTrainer,
    "wordpiece": partial(trainers.WordPieceTrainer, continuing_subword_prefix=CONTINUATION),
}

_DEFAULT_SPECIALS = ("<pad>", "<unk>", "<bos>", "<eos>")
_BERT_SPECIALS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
_IN_BRACKETS = re.compile(r"<[^\s<>]*\w[^\s<>]*>|\[[^\s\[\]]*\w[^\s\[\]]*\]")


def train_tokenizer(
    kind: str, texts: Iterable[str], vocab_size: int = 8000, options: TokenizerOptions | None = None
) -> Tokenizer:
    """Train a tokenizer.

    Args:
        kind: word, char, bpe, byte_bpe or wordpiece.
        texts: The corpus, read as a stream; it may be larger than memory.
        vocab_size: The maximum number of tokens, special tokens included.
        options: Normalization, pre-tokenization and special tokens.

    >>> tokenizer = train_tokenizer("bpe", ["low low lower newest"], vocab_size=20)
    >>> tokenizer.tokens(tokenizer.encode("low newer"))
    ['low</w>', 'newe', 'r</w>']
    """
    options = options or TokenizerOptions()
    vocab_size = whole_number("vocab_size", vocab_size)
    specials = special_tokens(kind, options)
    if PASSES[kind] > 1 and isinstance(texts, Iterator):
        texts = _Spool(texts)
    alphabet = _alphabet(kind, texts, options)
    _check_vocab_size(vocab_size, alphabet, specials)
    model = _train(kind, texts, options, vocab_size, [*specials, *alphabet])
    merges = _without_specials(model.get("merges", []), alphabet, specials)
    tokens = sorted(model["vocab"], key=model["vocab"].get)
    if "merges" in model:
        tokens = [*specials, *alphabet, *dict.fromkeys(a + b for a, b in merges)]
    if len(tokens) == len(specials):
        raise _no_text()
    return Tokenizer(assemble(kind, _model(kind, tokens, merges), options, specials))


def special_tokens(kind: str, options: TokenizerOptions) -> list[str]:
    """Check the options and return the special tokens in id order: the kind's, then the user's."""
    if kind not in KINDS:
        raise QkvError("--kind", _("no tokenizer kind '{kind}'", kind=kind), near_miss(kind, KINDS))
    whole_number("min_frequency", options.min_frequency)
    if options.add_prefix_space and kind != "byte_bpe":
        wrong = _("'{kind}' does not distinguish words at the beginning of a text", kind=kind)
        raise QkvError("--add-prefix-space", wrong, _("use it with byte_bpe"))
    for token in options.special_tokens:
        if not _IN_BRACKETS.fullmatch(token):  # no kind produces bracketed tokens from text
            wrong = _("'{token}' could be a word of a text", token=token)
            raise QkvError("--special", wrong, _("write <{token}> or [{token}]", token=token))
    defaults = _BERT_SPECIALS if kind == "wordpiece" else _DEFAULT_SPECIALS
    return list(dict.fromkeys((*defaults, *options.special_tokens)))


def whole_number(name: str, value: object) -> int:
    """Return an option as a whole number in its range, or raise an error that names it."""
    where = f"--{name.replace('_', '-')}"
    try:
        number = index(str(value) if isinstance(value, bool) else value)  # type: ignore[arg-type]
    except TypeError:
        wrong = _("{value:.40} is not a whole number", value=repr(value))
        raise QkvError(where, wrong, _("use a whole number")) from None
    TOKENIZER_LIMITS[name].check(where, number)
    return number


class FileTexts:
    """The lines of files, an iterable for several passes.

    Args:
        paths: Files in UTF-8, plain or gzip.
        errors: "strict" or "replace", see read_lines.
        progress: Called with the number of bytes read since the last call.
    """

    def __init__(
        self,
        paths: Sequence[str | Path],
        errors: str = "strict",
        progress: Callable[[int], None] | None = None,
    ):
        self.paths, self.errors, self.progress = paths, errors, progress

    def __iter__(self) -> Iterator[str]:
        for path in self.paths:
            for batch in batches(read_lines(path, self.errors), 1000):
                if self.progress:
                    self.progress(sum(len(line.encode()) + 1 for line in batch))
                yield from batch


class _Spool:
    """The texts of an iterator, kept in a temporary file for several passes."""

    def __init__(self, texts: Iterable[str]):
        self.file = tempfile.TemporaryFile("w+")  # noqa: SIM115 (open as long as this object lives)
        self.file.writelines(json.dumps(text) + "\n" for text in texts)

    def __iter__(self) -> Iterator[str]:
        self.file.seek(0)
        return map(json.loads, self.file)


def _alphabet(kind: str, texts: Iterable[str], options: TokenizerOptions) -> list[str]:
    """Return the initial symbols, in a fixed order.

    The library numbers marked characters (`x</w>`, `##x`) in hash table order, which differs in
    every run, and breaks ties by these numbers. Numbering them here needs a second pass over the
    texts, but makes training deterministic.
    """
    if kind == "byte_bpe":
        return sorted(ByteLevel.alphabet())
    if PASSES[kind] == 1:
        return []
    vocab = _train(kind, texts, options, vocab_size=0, first_tokens=[])["vocab"]
    return sorted(vocab, key=lambda symbol: (len(symbol), symbol))


def _check_vocab_size(vocab_size: int, alphabet: list[str], specials: list[str]) -> None:
    minimum = len(alphabet) + len(specials)
    if vocab_size < minimum:
        wrong = _(
            "{vocab_size} is smaller than the alphabet "
            "({n_symbols} symbols and {n_specials} special tokens)",
            vocab_size=vocab_size,
            n_symbols=len(alphabet),
            n_specials=len(specials),
        )
        raise QkvError("--vocab-size", wrong, _("use at least {minimum}", minimum=minimum))


def _train(
    kind: str,
    texts: Iterable[str],
    options: TokenizerOptions,
    vocab_size: int,
    first_tokens: list[str],
) -> dict[str, Any]:
    """Train with the library and return the "model" part of the tokenizer.json."""
    core = assemble(kind, _model(kind, [], []), options, [])
    trainer = _TRAINERS[kind](
        vocab_size=vocab_size,
        special_tokens=first_tokens,
        show_progress=False,
        min_frequency=options.min_frequency,
    )
    core.train_from_iterator(_batches(texts), trainer)
    return json.loads(core.to_str())["model"]


def _batches(texts: Iterable[str]) -> Iterator[list[str]]:
    batch: list[str] = []
    chunks = (chunk for text in texts for chunk in split_for_training(replace_surrogates(text)))
    for batch in batches(chunks, 256):
        yield batch
    if not batch:
        raise _no_text()


def _no_text() -> QkvError:
    return QkvError(_("corpus"), _("no text"), _("give at least one line"))


def _without_specials(
    merges: list[list[str]], alphabet: list[str], specials: list[str]
) -> list[tuple[str, str]]:
    """Remove merges that produce a special token, which a corpus may contain as plain text."""
    known, kept = set(alphabet), []
    for a, b in merges:
        if a in known and b in known and a + b not in specials:
            known.add(a + b)
            kept.append((a, b))
    return kept


def _model(kind: str, tokens: list[str], merges: list[tuple[str, str]]) -> models.Model:
    """Return the library's model with this vocabulary."""
    ids = {token: id for id, token in enumerate(tokens)}
    match kind:
        case "bpe":
            return models.BPE(ids, merges, unk_token="<unk>", end_of_word_suffix=END_OF_WORD)
        case "byte_bpe":
            return models.BPE(ids, merges)
        case "wordpiece":
            return models.WordPiece(ids, unk_token="[UNK]")
        case _:
            return models.WordLevel(ids, unk_token="<unk>")
