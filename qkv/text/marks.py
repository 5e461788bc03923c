"""The tokens that begin and end texts, for whoever writes them.

In: a tokenizer, and what an imported folder tells (generation.json). Out: what stands before every text, what ends one.
Told in docs/generation.md, "From prompt to text".
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from qkv.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class Marks:
    """Ids: `begin` stands before every text, `first` where a text has no beginning of its own, `ends` end it."""

    begin: tuple[int, ...]
    first: int | None
    ends: tuple[int, ...]


def marks_of(tokenizer: Tokenizer, told: Mapping[str, Any]) -> Marks:
    """The marks of a model; `told` may hold start_id and eos_ids, as its own folder had them."""
    known = [] if tokenizer.eos_id is None else [tokenizer.eos_id]
    ends = tuple(told.get("eos_ids") or known)
    first = told.get("start_id", ends[0] if ends else tokenizer.bos_id)
    return Marks(begin_marks(tokenizer, told.get("start_id"), ends), first, ends)


def start_mark(tokenizer: Tokenizer, told: Mapping[str, Any]) -> int | None:
    """What a translation begins with: what its folder tells (BART: </s>), else <bos>, else <pad>, which Marian's begin with."""
    known = (told.get("start_id"), tokenizer.bos_id, tokenizer.pad_id)
    return next((id for id in known if id is not None), None)


def begin_marks(tokenizer: Tokenizer, start_id: int | None, ends: tuple[int, ...]) -> tuple[int, ...]:
    """What stands before every text: what the tokenizer's own template says, else a start mark that is no end as well.

    Llama's texts begin with <s>; GPT-2's one mark stands between texts, so a prompt goes without it.
    """
    if tokenizer.rules.get("post_processor") is None:
        return () if start_id is None or start_id in ends else (start_id,)
    plain = tokenizer.core.encode("a", add_special_tokens=False).ids
    marked = tokenizer.core.encode("a", add_special_tokens=True).ids
    before = next((n for n in range(len(marked)) if marked[n : n + len(plain)] == plain), 0)
    return tuple(marked[:before])
