"""The special tokens around a sentence: [CLS] sentence [SEP], or sentence <eos>.

In: a tokenizer. Out: the ids that stand before and after every sentence an encoder reads, as its tokenizer.json says.
Told in docs/embedding.md, "Use".
"""

from collections.abc import Iterable
from dataclasses import dataclass

from qkv.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class Frame:
    """What stands before and after a sentence; training and use take the same, or the vectors would not fit."""

    before: tuple[int, ...] = ()
    after: tuple[int, ...] = ()

    @property
    def size(self) -> int:
        """The tokens of an empty sentence."""
        return len(self.before) + len(self.after)

    def around(self, ids: Iterable[int]) -> list[int]:
        """The sentence as the encoder reads it."""
        return [*self.before, *ids, *self.after]


def frame_of(tokenizer: Tokenizer) -> Frame:
    """What tokenizer.json adds by itself; where it adds nothing, [CLS] and [SEP], or <bos> and <eos>, if it has them."""
    added = _added(tokenizer)
    if added.size:
        return added
    for before, after in ((tokenizer.cls_id, tokenizer.sep_id), (tokenizer.bos_id, tokenizer.eos_id)):
        if before is not None and after is not None:
            return Frame((before,), (after,))
    return Frame()


def pair_frame(tokenizer: Tokenizer) -> Frame:
    """Around a sentence and around its translation: what tokenizer.json adds (BART: <s> and </s>), else <eos> at the end."""
    added = _added(tokenizer)
    return added if added.size or tokenizer.eos_id is None else Frame((), (tokenizer.eos_id,))


def _added(tokenizer: Tokenizer) -> Frame:
    """The library marks what its own rules have put around a text, here around some word of the vocabulary."""
    words = (tokenizer.decode([id]) for id in range(tokenizer.vocab_size))  # special tokens decode to nothing
    word = next((word for word in words if word.isalnum()), "")
    encoding = tokenizer.core.encode(word, add_special_tokens=True)
    own = [place for place, special in enumerate(encoding.special_tokens_mask) if not special]
    if not own:  # no word at all: what stands before cannot be told from what stands after
        return Frame()
    return Frame(tuple(encoding.ids[: own[0]]), tuple(encoding.ids[own[-1] + 1 :]))
