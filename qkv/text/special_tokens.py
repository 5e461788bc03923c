"""Special tokens: what a tokenizer's post-processing template adds to a text, and which ids begin and end one.

In: a tokenizer, and the special token ids stored with a model (generation.json). Out: the ids before and after an
encoder's input, before a prompt, and at the end of a text. Explained in docs/embedding.md and docs/generation.md.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from qkv.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class SpecialTokenIds:
    """Special token ids stored with a model, as in transformers' generation_config.json; None or (): not stored."""

    start_id: int | None = None  # bos, or an encoder-decoder model's decoder_start_token_id
    pad_id: int | None = None
    eos_ids: tuple[int, ...] = ()


NOT_STORED = SpecialTokenIds()


@dataclass(frozen=True)
class Template:
    """The special tokens before and after a text; training and inference must use the same ones."""

    before: tuple[int, ...] = ()
    after: tuple[int, ...] = ()

    @property
    def size(self) -> int:
        """The number of special tokens."""
        return len(self.before) + len(self.after)

    def around(self, ids: Iterable[int]) -> list[int]:
        """The ids with the special tokens around them."""
        return [*self.before, *ids, *self.after]


@dataclass(frozen=True)
class GenerationTokens:
    """Ids: `begin` precedes every prompt, `first` is the prompt where a text is empty, `ends` are the eos tokens."""

    begin: tuple[int, ...]
    first: int | None
    ends: tuple[int, ...]


def added_template(tokenizer: Tokenizer) -> Template:
    """The special tokens that tokenizer.json's own post-processing template adds, found by encoding one word."""
    texts = (
        text
        for wanted in (str.isalnum, str.strip)
        for id in range(tokenizer.vocab_size)
        if wanted(text := tokenizer.decode([id]))
    )  # special tokens decode to nothing
    word = next(texts, "")
    encoding = tokenizer.core.encode(word, add_special_tokens=True)
    own = [index for index, special in enumerate(encoding.special_tokens_mask) if not special]
    if not own:  # the vocabulary has no word: tokens before it cannot be told from tokens after it
        return Template()
    return Template(tuple(encoding.ids[: own[0]]), tuple(encoding.ids[own[-1] + 1 :]))


def encoder_template(tokenizer: Tokenizer) -> Template:
    """For an encoder-only model: tokenizer.json's template, else [CLS] and [SEP], or <bos> and <eos>, if they exist."""
    added = added_template(tokenizer)
    if added.size:
        return added
    for before, after in (
        (tokenizer.cls_id, tokenizer.sep_id),
        (tokenizer.bos_id, tokenizer.eos_id),
    ):
        if before is not None and after is not None:
            return Template((before,), (after,))
    return Template()


def translation_template(tokenizer: Tokenizer) -> Template:
    """For a source and a target text: tokenizer.json's template (BART: <s> and </s>), else <eos> at the end."""
    added = added_template(tokenizer)
    return added if added.size or tokenizer.eos_id is None else Template((), (tokenizer.eos_id,))


def decoder_start_id(tokenizer: Tokenizer, stored: SpecialTokenIds = NOT_STORED) -> int | None:
    """The first token of a translation: the stored one (BART: </s>), else <bos>, else <pad> (Marian)."""
    known = (stored.start_id, tokenizer.bos_id, tokenizer.pad_id)
    return next((id for id in known if id is not None), None)


def generation_tokens(
    tokenizer: Tokenizer, stored: SpecialTokenIds = NOT_STORED
) -> GenerationTokens:
    """The special tokens of a language model: the stored ids, else those of its tokenizer.

    A prompt begins with what tokenizer.json's template adds, else with a stored start token that is not eos as well:
    Llama's texts begin with <s>; GPT-2 has one token between texts, so a prompt goes without it.
    """
    ends = stored.eos_ids or (() if tokenizer.eos_id is None else (tokenizer.eos_id,))
    start = stored.start_id
    if tokenizer.rules.get("post_processor") is not None:
        begin = added_template(tokenizer).before
    else:
        begin = () if start is None or start in ends else (start,)
    first = start if start is not None else ends[0] if ends else tokenizer.bos_id
    return GenerationTokens(begin, first, ends)
