"""How a word becomes pieces, one merge after the other.

In: a BPE tokenizer and a word. Out: each merge that happens, its place in the merge table, and the pieces after it.
Told in docs/tokenizers.md, "How BPE encodes".
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import Any

from qkv.errors import QkvError
from qkv.messages import _
from qkv.text.lines import mend_surrogates
from qkv.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class Step:
    """One merge: `rank` counts the merges from 1 in the order they were learned; the first step has none."""

    merge: tuple[str, str] | None
    rank: int | None
    pieces: list[str]


def merge_steps(tokenizer: Tokenizer, word: str) -> list[Step]:
    """The smallest pieces, then every merge in order; the last step holds the tokens of encode(word)."""
    model = tokenizer.rules["model"]
    if model["type"] != "BPE":
        raise QkvError(
            _("tokenizer"), _("{type} has no merges", type=model["type"]), _("use a BPE tokenizer")
        )
    ranks = {(a, b): rank for rank, (a, b) in enumerate(model["merges"], start=1)}
    words = [_start(model, part) for part in _parts(tokenizer, word)]
    steps = [Step(None, None, list(chain.from_iterable(words)))]
    while found := [
        (ranks[pair], pair) for pieces in words for pair in pairwise(pieces) if pair in ranks
    ]:
        rank, pair = min(found)
        words = [_merged(pieces, pair) for pieces in words]
        steps.append(Step(pair, rank, list(chain.from_iterable(words))))
    return steps


def _parts(tokenizer: Tokenizer, text: str) -> list[str]:
    """The text as it is after normalizing and cutting; no merge crosses a cut."""
    text, core = mend_surrogates(text), tokenizer.core
    text = core.normalizer.normalize_str(text) if core.normalizer else text
    return (
        [part for part, _ in core.pre_tokenizer.pre_tokenize_str(text)]
        if core.pre_tokenizer
        else [text]
    )


def _start(model: dict[str, Any], part: str) -> list[str]:
    """The characters of a word, its end marked where the vocabulary does so."""
    if model.get("ignore_merges") and part in model["vocab"]:
        return [part]
    symbols = [*part[:-1], part[-1:] + (model["end_of_word_suffix"] or "")]
    return [known for symbol in symbols if symbol for known in _known(model, symbol)]


def _known(model: dict[str, Any], symbol: str) -> Iterator[str]:
    if symbol in model["vocab"]:
        yield symbol
    elif model["byte_fallback"]:
        yield from (f"<0x{byte:02X}>" for byte in symbol.encode())
    elif model["unk_token"]:
        yield model["unk_token"]


def _merged(pieces: list[str], pair: tuple[str, str]) -> list[str]:
    """Every `pair` joined, left to right: _merged(["a", "b", "c"], ("a", "b")) == ["ab", "c"]."""
    joined: list[str] = []
    for piece in pieces:
        if joined and (joined[-1], piece) == pair:
            joined[-1] += piece
        else:
            joined.append(piece)
    return joined
