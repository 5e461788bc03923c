"""Split long texts into chunks at pre-token boundaries, before encoding and before training.

The tokens of the chunks, concatenated, are the tokens of the text; only words longer than a chunk
are split. See docs/explanation/tokenization.md.
"""

import re
from typing import Any

# The pre-tokenization patterns of the tokenizers we train, as written into their tokenizer.json.
CHARACTER = r"[\s\S]"
WORD = r"\w+(?:['’\-]\w+)*|[^\w\s]+"
CHINESE = r"\p{Han}"

# The library's time and memory grow faster than linearly with the text; small chunks also stay in
# the processor's cache.
CHUNK_CHARS = 16_384

# A BPE trainer applies each merge to whole words, so its time grows with merges x word length, and
# a line without spaces is one word. Sentences and paragraphs are shorter than this.
TRAINING_CHUNK_CHARS = 4_000
# After punctuation before a letter: the end of a pre-token of all kinds but bpe (spaces only).
_CLAUSE_END = re.compile(
    r"[\uff0c\u3002\uff01\uff1f\uff1b\uff1a\u3001\u2026\u300d\u300f\u201d](?=[^\W\d_])"
)

_SPLITS_AT_SPACES = {"Whitespace", "WhitespaceSplit", "BertPreTokenizer"}
_PER_CHARACTER_NORMALIZERS = {"Lowercase", "NFKC", "BertNormalizer"}


def can_chunk(config: dict[str, Any]) -> bool:
    """Return whether a tokenizer.json splits at every space or newline after a non-space."""
    non_special = [token for token in config["added_tokens"] if not token["special"]]
    pre_tokenizers = _flatten(config["pre_tokenizer"], "pretokenizers")
    normalizers = _flatten(config["normalizer"], "normalizers")
    return (
        not non_special
        and any(map(_splits_at_spaces, pre_tokenizers))
        and all(step["type"] in _PER_CHARACTER_NORMALIZERS for step in normalizers)
    )


def split_chunks(text: str) -> list[str]:
    """Split a text into chunks of at most CHUNK_CHARS characters; only longer words are split."""
    chunks, start = [], 0
    while len(text) - start > CHUNK_CHARS:
        end = _last_boundary(text, start)
        chunks.append(text[start:end])
        start = end
    return [*chunks, text[start:]]


def split_for_training(text: str) -> list[str]:
    """Split a text into chunks of at most TRAINING_CHUNK_CHARS characters.

    A chunk ends before a space, else after Chinese punctuation, else at the limit.

    >>> [len(chunk) for chunk in split_for_training("ab " * 400 + "长" * 1500)]
    [2700]
    """
    chunks, start = [], 0
    while len(text) - start > TRAINING_CHUNK_CHARS:
        end = _training_boundary(text, start)
        chunks.append(text[start:end])
        start = end
    return [*chunks, text[start:]]


def _training_boundary(text: str, start: int) -> int:
    end = start + TRAINING_CHUNK_CHARS
    space = text.rfind(" ", start + 1, end + 1)
    while space > 0 and text[space - 1].isspace():
        space = text.rfind(" ", start + 1, space)
    if space > 0:
        return space
    clauses = [match.end() for match in _CLAUSE_END.finditer(text, start, end)]
    return clauses[-1] if clauses else end


def _last_boundary(text: str, start: int) -> int:
    """Return the last space or newline after a non-space in the next chunk, else its end."""
    end = start + CHUNK_CHARS
    return next(
        (i for i in range(end, start, -1) if text[i] in " \n" and not text[i - 1].isspace()), end
    )


def _flatten(step: dict[str, Any] | None, inner: str) -> list[dict[str, Any]]:
    """Return a step, or the steps of a (nested) Sequence, as a list."""
    if step is None:
        return []
    if step["type"] != "Sequence":
        return [step]
    return [leaf for part in step[inner] for leaf in _flatten(part, inner)]


def _splits_at_spaces(pre_tokenizer: dict[str, Any]) -> bool:
    match pre_tokenizer["type"]:
        case "ByteLevel":
            return pre_tokenizer["use_regex"] and not pre_tokenizer["add_prefix_space"]
        case "Split":
            return pre_tokenizer["pattern"].get("Regex") in (CHARACTER, WORD)
        case kind:
            return kind in _SPLITS_AT_SPACES
