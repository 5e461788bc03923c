"""Normalizer, pre-tokenizer and decoder of a tokenizer, as saved in its tokenizer.json.

See docs/explanation/tokenization.md.
"""

from dataclasses import dataclass
from typing import Any

import tokenizers
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers

from qkv.text.chunking import CHARACTER, CHINESE, WORD

END_OF_WORD, CONTINUATION = "</w>", "##"

_CJK = r"[\p{Han}\p{Hiragana}\p{Katakana}\u3000-\u303F\uFF00-\uFFEF“”‘’…—]"
_CLOSING = r" (?=[.,!?;:%)\]}，。！？；：、）》」』”’])"
_OPENING = r"(?<=[(\[{（《「『“‘]) "
_CHINESE_SPACE = f"(?<={_CJK}) (?={_CJK})"

# A letter of a script with spaces between words. \A instead of ^, which matches at every line.
_SPACED = (
    r"[\p{L}&&[^\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}\p{Tibetan}]]"
)
_NO_WORD_START, _PREFIX_SPACE = rf"\A (?! *{_SPACED})", rf"\A (?= *{_SPACED})"


@dataclass(frozen=True)
class TokenizerOptions:
    """Options of tokenizer training; all are saved with the tokenizer.

    Attributes:
        lowercase: Lowercase texts.
        nfkc: Apply Unicode normalization NFKC.
        split_chinese: Pre-tokenize each Chinese character separately.
        min_frequency: Ignore words and pairs that are less frequent.
        special_tokens: Further special tokens, in <> or [].
        add_prefix_space: Encode a word at the beginning of a text as after a space (byte_bpe).
    """

    lowercase: bool = False
    nfkc: bool = False
    split_chinese: bool = False
    min_frequency: int = 1
    special_tokens: tuple[str, ...] = ()
    add_prefix_space: bool = False

    def stored_form(self) -> str:
        """Return the options as written into tokenizer.from, with the names of the first version.

        add_prefix_space is a separate entry of that file.
        """
        return (
            f"Choices(lowercase={self.lowercase}, nfkc={self.nfkc}, "
            f"split_chinese={self.split_chinese}, min_count={self.min_frequency}, "
            f"special_tokens={self.special_tokens})"
        )


def assemble(
    kind: str, model: models.Model, options: TokenizerOptions, specials: list[str]
) -> tokenizers.Tokenizer:
    """Return the library's tokenizer of a kind with this model and these special tokens."""
    core = tokenizers.Tokenizer(model)
    if step := normalizer(options):
        core.normalizer = step
    core.pre_tokenizer, core.decoder = pre_tokenizer(kind, options), decoder(kind, options)
    core.add_special_tokens(specials)
    return core


def normalizer(options: TokenizerOptions) -> normalizers.Normalizer | None:
    """Return the normalizer: NFKC, then lowercasing, then the prefix space.

    NFKC can produce uppercase letters (ℌ -> H), and the prefix space depends on the result.
    """
    steps: list[normalizers.Normalizer] = []
    if options.nfkc:
        steps.append(normalizers.NFKC())
    if options.lowercase:
        steps.append(normalizers.Lowercase())
    if options.add_prefix_space:
        steps += _prefix_space()
    return normalizers.Sequence(steps) if steps else None


def _prefix_space() -> list[normalizers.Normalizer]:
    """Add a space before a text that begins with a word, so that the token ` word` applies there.

    The space is added to every text and removed where no letter follows: the library's Replace
    cannot insert (an empty match breaks its offsets). A text was changed if and only if the result
    matches _PREFIX_SPACE, so decoding can invert it.
    """
    return [normalizers.Prepend(" "), normalizers.Replace(Regex(_NO_WORD_START), "")]


def remove_prefix_space() -> decoders.Decoder:
    """Return the inverse of the prefix space, for decoded text."""
    return _remove(_PREFIX_SPACE)


def adds_prefix_space(config: dict[str, Any]) -> bool:
    """Return whether a tokenizer.json was trained with `add_prefix_space`."""
    steps = (config["decoder"] or {}).get("decoders", [])
    return any(step.get("pattern") == {"Regex": _PREFIX_SPACE} for step in steps)


def pre_tokenizer(kind: str, options: TokenizerOptions) -> pre_tokenizers.PreTokenizer:
    """Return the pre-tokenizer of a kind; `split_chinese` also splits at Chinese characters."""
    splits: dict[str, pre_tokenizers.PreTokenizer] = {
        "word": pre_tokenizers.Split(Regex(WORD), "removed", invert=True),
        "char": pre_tokenizers.Split(Regex(CHARACTER), "isolated"),
        "bpe": pre_tokenizers.WhitespaceSplit(),
        "byte_bpe": pre_tokenizers.ByteLevel(add_prefix_space=False),
        "wordpiece": pre_tokenizers.BertPreTokenizer(),
    }
    if not options.split_chinese:
        return splits[kind]
    chinese = pre_tokenizers.Split(Regex(CHINESE), "isolated")
    return pre_tokenizers.Sequence([chinese, splits[kind]])


def decoder(kind: str, options: TokenizerOptions) -> decoders.Decoder:
    """Return the decoder: characters and bytes are joined, words get spaces between them."""
    first: decoders.Decoder
    match kind:
        case "word" | "wordpiece":
            # No word contains a space, so the prefix " " puts a space before every word.
            prefix = " " if kind == "word" else CONTINUATION
            first = decoders.WordPiece(prefix=prefix, cleanup=False)
            removed = [_CLOSING, _OPENING, _CHINESE_SPACE]
        case "bpe":
            first = decoders.BPEDecoder(suffix=END_OF_WORD)
            removed = [_CHINESE_SPACE] if options.split_chinese else []
        case "byte_bpe":
            first = decoders.ByteLevel()
            removed = [_PREFIX_SPACE] if options.add_prefix_space else []
        case _:
            return decoders.Fuse()
    if not removed:
        return first
    return decoders.Sequence([first, decoders.Fuse(), *map(_remove, removed)])


def _remove(pattern: str) -> decoders.Decoder:
    return decoders.Replace(Regex(pattern), "")
