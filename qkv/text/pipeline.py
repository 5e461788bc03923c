"""The steps around a vocabulary: what is done to a text before it is looked up, and to the pieces afterwards.

In: a kind of tokenizer and the choices of the person. Out: the library's normalizer, pre-tokenizer and decoder, which
are saved in tokenizer.json. Told in docs/tokenizers.md, "Choices".
"""

from dataclasses import dataclass

from tokenizers import Regex, decoders, normalizers, pre_tokenizers

from qkv.text.blocks import CHARACTER, CHINESE, WORD

END, CONTINUED = "</w>", "##"

_CJK = r"[\p{Han}\p{Hiragana}\p{Katakana}\u3000-\u303F\uFF00-\uFFEF“”‘’…—]"
_CLOSING = r" (?=[.,!?;:%)\]}，。！？；：、）》」』”’])"
_OPENING = r"(?<=[(\[{（《「『“‘]) "


@dataclass(frozen=True)
class Choices:
    """What a person may choose when learning; all of it is saved with the tokenizer."""

    lowercase: bool = False
    nfkc: bool = False
    split_chinese: bool = False
    min_count: int = 1
    special_tokens: tuple[str, ...] = ()


def normalizer(choices: Choices) -> normalizers.Normalizer | None:
    """NFKC first: it may make capitals (ℌ -> H) that lower-casing must see."""
    steps = [normalizers.NFKC()] * choices.nfkc + [normalizers.Lowercase()] * choices.lowercase
    return normalizers.Sequence(steps) if steps else None


def pre_tokenizer(kind: str, choices: Choices) -> pre_tokenizers.PreTokenizer:
    """Where no piece may cross: around words; with `split_chinese` around every Chinese character too."""
    cut: pre_tokenizers.PreTokenizer
    match kind:
        case "word": cut = pre_tokenizers.Split(Regex(WORD), "removed", invert=True)
        case "char": cut = pre_tokenizers.Split(Regex(CHARACTER), "isolated")
        case "bpe": cut = pre_tokenizers.WhitespaceSplit()
        case "bytes": cut = pre_tokenizers.ByteLevel(add_prefix_space=False)
        case "wordpiece": cut = pre_tokenizers.BertPreTokenizer()
    if not choices.split_chinese:
        return cut
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(CHINESE), "isolated"), cut])


def decoder(kind: str, choices: Choices) -> decoders.Decoder:
    """Pieces to text: characters and bytes join as they are; words get their spaces back."""
    no_space_in_chinese = decoders.Replace(Regex(f"(?<={_CJK}) (?={_CJK})"), "")
    tidy = [decoders.Fuse(), decoders.Replace(Regex(_CLOSING), ""), decoders.Replace(Regex(_OPENING), ""),
            no_space_in_chinese]
    match kind:
        # No word holds a space, so with this prefix every word is set off by one.
        case "word": return decoders.Sequence([decoders.WordPiece(prefix=" ", cleanup=False), *tidy])
        case "wordpiece": return decoders.Sequence([decoders.WordPiece(prefix=CONTINUED, cleanup=False), *tidy])
        case "bpe" if choices.split_chinese:
            return decoders.Sequence([decoders.BPEDecoder(suffix=END), decoders.Fuse(), no_space_in_chinese])
        case "bpe": return decoders.BPEDecoder(suffix=END)
        case "bytes": return decoders.ByteLevel()
        case _: return decoders.Fuse()
