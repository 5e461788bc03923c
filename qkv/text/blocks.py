"""Where a long text may be cut before it is tokenized.

In: a text and the rules of a tokenizer. Out: blocks whose tokens, one after the other, are the tokens of the text.
Told in docs/tokenizers.md, "Hostile text".
"""

from typing import Any

# The cuts of our learners, written into their tokenizer.json.
CHARACTER = r"[\s\S]"
WORD = r"\w+(?:['’\-]\w+)*|[^\w\s]+"
CHINESE = r"\p{Han}"

# The library's time and memory grow a little faster than the text; small blocks stay in the processor's cache.
BLOCK = 16_384  # characters

_CUT_AT_SPACE = {"Whitespace", "WhitespaceSplit", "BertPreTokenizer"}
_CHARACTER_WISE = {"Lowercase", "NFKC", "BertNormalizer"}


def may_cut(rules: dict[str, Any]) -> bool:
    """Whether a tokenizer.json starts a new token at every space or line end that follows a visible character."""
    plain_tokens = [token for token in rules["added_tokens"] if not token["special"]]
    cuts, steps = (
        _flat(rules["pre_tokenizer"], "pretokenizers"),
        _flat(rules["normalizer"], "normalizers"),
    )
    return (
        not plain_tokens
        and any(map(_cuts_at_space, cuts))
        and all(step["type"] in _CHARACTER_WISE for step in steps)
    )


def blocks(text: str) -> list[str]:
    """The text in blocks of at most BLOCK characters; only a longer word is cut inside."""
    parts, start = [], 0
    while len(text) - start > BLOCK:
        end = _last_cut(text, start)
        parts.append(text[start:end])
        start = end
    return [*parts, text[start:]]


def _last_cut(text: str, start: int) -> int:
    """The last place in the next block where a space or line end follows something visible, else its very end."""
    end = start + BLOCK
    return next(
        (i for i in range(end, start, -1) if text[i] in " \n" and not text[i - 1].isspace()), end
    )


def _flat(rule: dict[str, Any] | None, inner: str) -> list[dict[str, Any]]:
    """A rule, or the rules of a sequence, as a list."""
    if rule is None:
        return []
    return (
        [step for part in rule[inner] for step in _flat(part, inner)]
        if rule["type"] == "Sequence"
        else [rule]
    )


def _cuts_at_space(rule: dict[str, Any]) -> bool:
    match rule["type"]:
        case "ByteLevel":
            return rule["use_regex"] and not rule["add_prefix_space"]
        case "Split":
            return rule["pattern"].get("Regex") in (CHARACTER, WORD)
        case kind:
            return kind in _CUT_AT_SPACE
