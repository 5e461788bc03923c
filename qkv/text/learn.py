"""Five kinds of tokenizers, learned from text.

In: texts as a stream, the size of the vocabulary, choices. Out: a Tokenizer that carries its choices in its file.
Told in docs/tokenizers.md, "Learning".
"""

import json
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import models, trainers
from tokenizers.pre_tokenizers import ByteLevel

from qkv.errors import QkvError, near_miss
from qkv.messages import _
from qkv.text.lines import mend_surrogates, read_lines
from qkv.text.pipeline import CONTINUED, END, Choices, decoder, normalizer, pre_tokenizer
from qkv.text.tokenizer import Tokenizer

KINDS = ("word", "char", "bpe", "bytes", "wordpiece")
MOST = 2**31 - 1  # what ids are counted with
PASSES = {
    "word": 1,
    "char": 1,
    "bpe": 2,
    "bytes": 1,
    "wordpiece": 2,
}  # how often the texts are gone through

_OURS = ("<pad>", "<unk>", "<bos>", "<eos>")
_BERT = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
_IN_BRACKETS = re.compile(r"<[^\s<>]*\w[^\s<>]*>|\[[^\s\[\]]*\w[^\s\[\]]*\]")


def learn(
    kind: str, texts: Iterable[str], vocab_size: int = 8000, choices: Choices | None = None
) -> Tokenizer:
    """A tokenizer for such texts, which are read as a stream and may be larger than memory.

    >>> tokenizer = learn("bpe", ["low low lower newest"], vocab_size=20)
    >>> tokenizer.tokens(tokenizer.encode("low newer"))
    ['low</w>', 'newe', 'r</w>']
    """
    choices = choices or Choices()
    specials = special_tokens(kind, choices)
    if PASSES[kind] > 1 and isinstance(texts, Iterator):
        texts = _Spool(texts)
    symbols = _symbols(kind, texts, choices)
    _check_room(vocab_size, symbols, specials)
    model = _train(kind, texts, choices, vocab_size, [*specials, *symbols])
    merges = _without_specials(model.get("merges", []), symbols, specials)
    tokens = sorted(model["vocab"], key=model["vocab"].get)
    if "merges" in model:
        tokens = [*specials, *symbols, *dict.fromkeys(a + b for a, b in merges)]
    if len(tokens) == len(specials):
        raise _no_text()
    return Tokenizer(_core(kind, choices, tokens, merges))


def special_tokens(kind: str, choices: Choices) -> list[str]:
    """The special tokens of a kind, their ids counting from 0, and then those the person adds."""
    if kind not in KINDS:
        raise QkvError(
            "--kind", _("no kind of tokenizer '{kind}'", kind=kind), near_miss(kind, KINDS)
        )
    if not 0 <= choices.min_count <= MOST:
        raise QkvError(
            "--min-count",
            _("{min_count} is no count", min_count=choices.min_count),
            _("use 1 or more"),
        )
    if choices.add_prefix_space and kind != "bytes":
        raise QkvError(
            "--add-prefix-space",
            _("'{kind}' marks the words at the beginning of a text already", kind=kind),
            _("only for bytes"),
        )
    for token in choices.special_tokens:
        if not _IN_BRACKETS.fullmatch(token):  # then no kind can make it out of plain text
            raise QkvError(
                "--special",
                _("'{token}' could be a word of the text", token=token),
                _("write <{token}> or [{token}]", token=token),
            )
    return list(
        dict.fromkeys((*(_BERT if kind == "wordpiece" else _OURS), *choices.special_tokens))
    )


class FileTexts:
    """The lines of files, gone through as often as needed; `progress` is told the bytes read."""

    def __init__(
        self,
        paths: Sequence[str | Path],
        errors: str = "strict",
        progress: Callable[[int], None] | None = None,
    ):
        self.paths, self.errors, self.progress = paths, errors, progress

    def __iter__(self) -> Iterator[str]:
        for path in self.paths:
            lines = read_lines(path, self.errors)
            while batch := list(islice(lines, 1000)):
                if self.progress:
                    self.progress(sum(len(line.encode()) + 1 for line in batch))
                yield from batch


class _Spool:
    """Texts that can be had only once, kept in a file for the second time."""

    def __init__(self, texts: Iterable[str]):
        self.file = tempfile.TemporaryFile("w+")  # noqa: SIM115 (open as long as this object lives)
        self.file.writelines(json.dumps(text) + "\n" for text in texts)

    def __iter__(self) -> Iterator[str]:
        self.file.seek(0)
        return map(json.loads, self.file)


def _symbols(kind: str, texts: Iterable[str], choices: Choices) -> list[str]:
    """The smallest pieces, in a fixed order.

    The library numbers marked characters (`x</w>`, `##x`) as its hash table gives them, differently in every run, and
    breaks ties by these numbers; so we number them beforehand, at the price of a second look at the texts.
    """
    if kind == "bytes":
        return sorted(ByteLevel.alphabet())
    if PASSES[kind] == 1:
        return []
    found = _train(kind, texts, choices, vocab_size=0, first_tokens=[])["vocab"]
    return sorted(found, key=lambda symbol: (len(symbol), symbol))


def _check_room(vocab_size: int, symbols: list[str], specials: list[str]) -> None:
    least = len(symbols) + len(specials)
    if vocab_size < least:
        raise QkvError(
            "--vocab-size",
            _(
                "{vocab_size} is smaller than the alphabet ({n_symbols} symbols and {n_specials} special tokens)",
                vocab_size=vocab_size,
                n_symbols=len(symbols),
                n_specials=len(specials),
            ),
            _("use at least {least}", least=least),
        )
    if vocab_size > MOST:
        raise QkvError(
            "--vocab-size",
            _("{vocab_size:,} is too large", vocab_size=vocab_size),
            _("use at most {most:,}", most=MOST),
        )


def _train(
    kind: str, texts: Iterable[str], choices: Choices, vocab_size: int, first_tokens: list[str]
) -> dict[str, Any]:
    """What the library learns, as the "model" part of a tokenizer.json."""
    core = _core(kind, choices, [], [])
    wishes: dict[str, Any] = {
        "vocab_size": vocab_size,
        "special_tokens": first_tokens,
        "show_progress": False,
        "min_frequency": choices.min_count,
    }
    trainer: trainers.Trainer
    match kind:
        case "word" | "char":
            trainer = trainers.WordLevelTrainer(**wishes)
        # The mark must be given to the trainer as well as to the model, or it is silently ignored.
        case "bpe":
            trainer = trainers.BpeTrainer(**wishes, end_of_word_suffix=END)
        case "bytes":
            trainer = trainers.BpeTrainer(**wishes)
        case "wordpiece":
            trainer = trainers.WordPieceTrainer(**wishes, continuing_subword_prefix=CONTINUED)
    core.train_from_iterator(_batches(texts), trainer)
    return json.loads(core.to_str())["model"]


def _batches(texts: Iterable[str]) -> Iterator[list[str]]:
    mended = map(mend_surrogates, texts)
    batch = list(islice(mended, 256))
    if not batch:
        raise _no_text()
    while batch:
        yield batch
        batch = list(islice(mended, 256))


def _no_text() -> QkvError:
    return QkvError(_("corpus"), _("no text"), _("give at least one line"))


def _without_specials(
    merges: list[list[str]], symbols: list[str], specials: list[str]
) -> list[tuple[str, str]]:
    """A corpus may spell out <eos>; no merge may lead there, or plain text would become the special token."""
    known, kept = set(symbols), []
    for a, b in merges:
        if a in known and b in known and a + b not in specials:
            known.add(a + b)
            kept.append((a, b))
    return kept


def _core(
    kind: str, choices: Choices, tokens: list[str], merges: list[tuple[str, str]]
) -> tokenizers.Tokenizer:
    """The library's tokenizer with that vocabulary; the first tokens are the special ones."""
    vocabulary = {token: id for id, token in enumerate(tokens)}
    model: models.Model
    match kind:
        case "word" | "char":
            model = models.WordLevel(vocabulary, unk_token="<unk>")
        case "bpe":
            model = models.BPE(vocabulary, merges, unk_token="<unk>", end_of_word_suffix=END)
        case "bytes":
            model = models.BPE(vocabulary, merges)
        case "wordpiece":
            model = models.WordPiece(vocabulary, unk_token="[UNK]")
    core = tokenizers.Tokenizer(model)
    if step := normalizer(choices):
        core.normalizer = step
    core.pre_tokenizer, core.decoder = pre_tokenizer(kind, choices), decoder(kind, choices)
    if tokens:
        core.add_special_tokens(special_tokens(kind, choices))
    return core
