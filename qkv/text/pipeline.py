"""The steps around a vocabulary: what is done to a text before it is looked up, and to the pieces afterwards.

In: a kind of tokenizer and the choices of the person. Out: the library's normalizer, pre-tokenizer and decoder, which
are saved in tokenizer.json. Told in docs/tokenizers.md, "Choices".
"""

from dataclasses import dataclass, field
from typing import Any

from tokenizers import Regex, decoders, normalizers, pre_tokenizers

from qkv.text.blocks import CHARACTER, CHINESE, WORD

END, CONTINUED = "</w>", "##"

_CJK = r"[\p{Han}\p{Hiragana}\p{Katakana}\u3000-\u303F\uFF00-\uFFEF“”‘’…—]"
_CLOSING = r" (?=[.,!?;:%)\]}，。！？；：、）》」』”’])"
_OPENING = r"(?<=[(\[{（《「『“‘]) "

# A letter of a script that writes spaces between words; \A, not ^, which would match at every line of a text.
_SPACED = (
    r"[\p{L}&&[^\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}\p{Tibetan}]]"
)
_NO_WORD_START, _PREFIX_SPACE = rf"\A (?! *{_SPACED})", rf"\A (?= *{_SPACED})"


@dataclass(frozen=True)
class Choices:
    """What a person may choose when learning; all of it is saved with the tokenizer."""

    lowercase: bool = False
    nfkc: bool = False
    split_chinese: bool = False
    min_count: int = 1
    special_tokens: tuple[str, ...] = ()
    add_prefix_space: bool = field(
        default=False, repr=False
    )  # notes of older runs hold the repr without it


def normalizer(choices: Choices) -> normalizers.Normalizer | None:
    """NFKC first: it may make capitals (ℌ -> H) that lower-casing must see; the prefix space last, for it looks at the result."""
    steps: list[normalizers.Normalizer] = [normalizers.NFKC()] * choices.nfkc + [
        normalizers.Lowercase()
    ] * choices.lowercase
    if choices.add_prefix_space:
        steps += _prefix_space()
    return normalizers.Sequence(steps) if steps else None


def _prefix_space() -> list[normalizers.Normalizer]:
    """One space before a text that begins with a word: then the vocabulary's ` word` is found at the beginning too.

    Put before every text and removed where spaces and then no letter follow: the library's Replace cannot insert (an
    empty match breaks its offsets). A text is changed exactly if the result matches _PREFIX_SPACE, so decoding inverts it.
    """
    return [normalizers.Prepend(" "), normalizers.Replace(Regex(_NO_WORD_START), "")]


def remove_prefix_space() -> decoders.Decoder:
    """The inverse of the prefix space, for text that is already joined."""
    return decoders.Replace(Regex(_PREFIX_SPACE), "")


def adds_prefix_space(rules: dict[str, Any]) -> bool:
    """Whether a tokenizer.json was learned with `add_prefix_space`."""
    steps = (rules["decoder"] or {}).get("decoders", [])
    return any(step.get("pattern") == {"Regex": _PREFIX_SPACE} for step in steps)


def pre_tokenizer(kind: str, choices: Choices) -> pre_tokenizers.PreTokenizer:
    """Where no piece may cross: around words; with `split_chinese` around every Chinese character too."""
    cut: pre_tokenizers.PreTokenizer
    match kind:
        case "word":
            cut = pre_tokenizers.Split(Regex(WORD), "removed", invert=True)
        case "char":
            cut = pre_tokenizers.Split(Regex(CHARACTER), "isolated")
        case "bpe":
            cut = pre_tokenizers.WhitespaceSplit()
        case "bytes":
            cut = pre_tokenizers.ByteLevel(add_prefix_space=False)
        case "wordpiece":
            cut = pre_tokenizers.BertPreTokenizer()
    if not choices.split_chinese:
        return cut
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(CHINESE), "isolated"), cut])


def decoder(kind: str, choices: Choices) -> decoders.Decoder:
    """Pieces to text: characters and bytes join as they are; words get their spaces back."""
    no_space_in_chinese = decoders.Replace(Regex(f"(?<={_CJK}) (?={_CJK})"), "")
    tidy = [
        decoders.Fuse(),
        decoders.Replace(Regex(_CLOSING), ""),
        decoders.Replace(Regex(_OPENING), ""),
        no_space_in_chinese,
    ]
    match kind:
        # No word holds a space, so with this prefix every word is set off by one.
        case "word":
            return decoders.Sequence([decoders.WordPiece(prefix=" ", cleanup=False), *tidy])
        case "wordpiece":
            return decoders.Sequence([decoders.WordPiece(prefix=CONTINUED, cleanup=False), *tidy])
        case "bpe" if choices.split_chinese:
            return decoders.Sequence(
                [decoders.BPEDecoder(suffix=END), decoders.Fuse(), no_space_in_chinese]
            )
        case "bpe":
            return decoders.BPEDecoder(suffix=END)
        case "bytes" if choices.add_prefix_space:
            return decoders.Sequence([decoders.ByteLevel(), decoders.Fuse(), remove_prefix_space()])
        case "bytes":
            return decoders.ByteLevel()
        case _:
            return decoders.Fuse()
