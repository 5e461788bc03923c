"""BPE encoding step by step: each merge applied to a word, its rank, and the tokens after it.

See docs/explanation/tokenization.md.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import Any, NamedTuple

from qkv.errors import QkvError
from qkv.messages import _
from qkv.text.library_calls import library_errors
from qkv.text.lines import replace_surrogates
from qkv.text.tokenizer import Tokenizer

__all__ = ["merge_table"]


@dataclass(frozen=True)
class MergeStep:
    """The tokens after one merge; `rank` counts merges from 1 in training order.

    The initial step (characters or bytes) has no merge and no rank.
    """

    merge: tuple[str, str] | None
    rank: int | None
    pieces: list[str]


class Merge(NamedTuple):
    """A row of the merge table; the tokens are readable, as `display_pieces` gives them."""

    rank: int  # from 1, in training order
    merge: tuple[str, str]
    piece: str
    id: int


def merge_table(tokenizer: Tokenizer) -> list[Merge]:
    """Return all merges of a BPE tokenizer in order."""
    model = _bpe_model(tokenizer)
    rows = []
    for rank, (first, second) in enumerate(model["merges"], start=1):
        merged = first + second.removeprefix(model["continuing_subword_prefix"] or "")
        shown = [tokenizer.display_pieces([piece])[0] for piece in (first, second, merged)]
        rows.append(Merge(rank, (shown[0], shown[1]), shown[2], model["vocab"][merged]))
    return rows


def merge_steps(tokenizer: Tokenizer, word: str) -> list[MergeStep]:
    """Return the initial symbols, then each merge in order; the last step is encode(word)."""
    model = _bpe_model(tokenizer)
    ranks = {(a, b): rank for rank, (a, b) in enumerate(model["merges"], start=1)}
    words = [_initial_symbols(model, part) for part in _pre_tokens(tokenizer, word)]
    steps = [MergeStep(None, None, list(chain.from_iterable(words)))]
    while candidates := [
        (ranks[pair], pair) for pieces in words for pair in pairwise(pieces) if pair in ranks
    ]:
        rank, pair = min(candidates)
        words = [_merge_pair(pieces, pair) for pieces in words]
        steps.append(MergeStep(pair, rank, list(chain.from_iterable(words))))
    return steps


def _bpe_model(tokenizer: Tokenizer) -> dict[str, Any]:
    """Return the "model" part of tokenizer.json; a tokenizer without merges is an error."""
    model = tokenizer.config["model"]
    if model["type"] != "BPE":
        wrong = _("{type} has no merges", type=model["type"])
        raise QkvError(_("tokenizer"), wrong, _("use a BPE tokenizer"))
    return model


def _pre_tokens(tokenizer: Tokenizer, text: str) -> list[str]:
    """Normalize and pre-tokenize a text; no merge crosses a pre-token boundary."""
    text, core = replace_surrogates(text), tokenizer.core
    with library_errors():
        text = core.normalizer.normalize_str(text) if core.normalizer else text
        if not core.pre_tokenizer:
            return [text]
        return [part for part, _span in core.pre_tokenizer.pre_tokenize_str(text)]


def _initial_symbols(model: dict[str, Any], pre_token: str) -> list[str]:
    """Return the characters of a pre-token, with the end-of-word suffix if the model has one."""
    if model.get("ignore_merges") and pre_token in model["vocab"]:
        return [pre_token]
    symbols = [*pre_token[:-1], pre_token[-1:] + (model["end_of_word_suffix"] or "")]
    return [known for symbol in symbols if symbol for known in _in_vocab(model, symbol)]


def _in_vocab(model: dict[str, Any], symbol: str) -> Iterator[str]:
    """Yield the symbol if it is in the vocabulary, else its bytes or the unknown token."""
    if symbol in model["vocab"]:
        yield symbol
    elif model["byte_fallback"]:
        yield from (f"<0x{byte:02X}>" for byte in symbol.encode())
    elif model["unk_token"]:
        yield model["unk_token"]


def _merge_pair(pieces: list[str], pair: tuple[str, str]) -> list[str]:
    """Merge each `pair`, left to right: _merge_pair(["a", "b", "c"], ("a", "b")) == ["ab", "c"]."""
    merged: list[str] = []
    for piece in pieces:
        if merged and (merged[-1], piece) == pair:
            merged[-1] += piece
        else:
            merged.append(piece)
    return merged
