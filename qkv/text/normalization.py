"""Normalizer, pre-tokenizer and decoder of a tokenizer, as saved in its tokenizer.json.

See docs/tokenizers.md.
"""

from dataclasses import dataclass
from typing import Any

from tokenizers import Regex, decoders, normalizers, pre_tokenizers

from qkv.text.chunking import CHARACTER, CHINESE, WORD

END_OF_WORD, CONTINUATION = "</w>", "##"

_CJK = r"[\p{Han}\p{Hiragana}\p{Katakana}\u3000-\u303F\uFF00-\uFFEF“”‘’…—]"
_CLOSING = r" (?=[.,!?;:%)\]}，。！？；：、）》」』”’])"
_OPENING = r"(?<=[(\[{（《「『“‘]) "

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
    return decoders.Replace(Regex(_PREFIX_SPACE), "")


def adds_prefix_space(config: dict[str, Any]) -> bool:
    """Return whether a tokenizer.json was trained with `add_prefix_space`."""
    steps = (config["decoder"] or {}).get("decoders", [])
    return any(step.get("pattern") == {"Regex": _PREFIX_SPACE} for step in steps)


def pre_tokenizer(kind: str, options: TokenizerOptions) -> pre_tokenizers.PreTokenizer:
    """Return the pre-tokenizer of a kind; `split_chinese` also splits at Chinese characters."""
    split: pre_tokenizers.PreTokenizer
    match kind:
        case "word":
            split = pre_tokenizers.Split(Regex(WORD), "removed", invert=True)
        case "char":
            split = pre_tokenizers.Split(Regex(CHARACTER), "isolated")
        case "bpe":
            split = pre_tokenizers.WhitespaceSplit()
        case "byte_bpe":
            split = pre_tokenizers.ByteLevel(add_prefix_space=False)
        case "wordpiece":
            split = pre_tokenizers.BertPreTokenizer()
    if not options.split_chinese:
        return split
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(CHINESE), "isolated"), split])


def decoder(kind: str, options: TokenizerOptions) -> decoders.Decoder:
    """Return the decoder: characters and bytes are joined, words get spaces between them."""
    remove_chinese_spaces = decoders.Replace(Regex(f"(?<={_CJK}) (?={_CJK})"), "")
    fix_spaces = [
        decoders.Fuse(),
        decoders.Replace(Regex(_CLOSING), ""),
        decoders.Replace(Regex(_OPENING), ""),
        remove_chinese_spaces,
    ]
    match kind:
        # No word contains a space, so this prefix puts a space before every word.
        case "word":
            return decoders.Sequence([decoders.WordPiece(prefix=" ", cleanup=False), *fix_spaces])
        case "wordpiece":
            return decoders.Sequence(
                [decoders.WordPiece(prefix=CONTINUATION, cleanup=False), *fix_spaces]
            )
        case "bpe" if options.split_chinese:
            return decoders.Sequence(
                [decoders.BPEDecoder(suffix=END_OF_WORD), decoders.Fuse(), remove_chinese_spaces]
            )
        case "bpe":
            return decoders.BPEDecoder(suffix=END_OF_WORD)
        case "byte_bpe" if options.add_prefix_space:
            return decoders.Sequence([decoders.ByteLevel(), decoders.Fuse(), remove_prefix_space()])
        case "byte_bpe":
            return decoders.ByteLevel()
        case _:
            return decoders.Fuse()
