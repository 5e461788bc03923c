"""Post-processing template: the special tokens added before and after a text.

See docs/guides/embeddings.md and docs/guides/generation.md.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from qkv.text.library_calls import library_errors
from qkv.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class SpecialTokenIds:
    """Special token ids stored with a model (generation.json); None or (): not stored."""

    start_id: int | None = None  # bos, or an encoder-decoder model's decoder_start_token_id
    pad_id: int | None = None
    eos_ids: tuple[int, ...] = ()


NOT_STORED = SpecialTokenIds()


@dataclass(frozen=True)
class Template:
    """The special tokens before and after a text; the same in training and inference."""

    before: tuple[int, ...] = ()
    after: tuple[int, ...] = ()

    @property
    def size(self) -> int:
        """The number of special tokens."""
        return len(self.before) + len(self.after)

    def around(self, ids: Iterable[int]) -> list[int]:
        """Return the ids with the special tokens before and after them."""
        return [*self.before, *ids, *self.after]


@dataclass(frozen=True)
class GenerationTokens:
    """The special token ids of a language model."""

    begin: tuple[int, ...]  # before every prompt
    first: int | None  # the prompt if the text is empty
    ends: tuple[int, ...]  # the eos tokens


def added_template(tokenizer: Tokenizer) -> Template:
    """Return the template of tokenizer.json's post-processor, found by encoding one word."""
    if tokenizer.core.post_processor is None:
        return Template()
    texts = (  # special tokens decode to the empty string
        text
        for accepts in (str.isalnum, str.strip)
        for id in sorted(tokenizer.core.get_vocab().values())  # not range: ids may have large gaps
        if accepts(text := tokenizer.decode([id]))
    )
    with library_errors():
        encoding = tokenizer.core.encode(next(texts, ""), add_special_tokens=True)
    own = [index for index, special in enumerate(encoding.special_tokens_mask) if not special]
    if not own:  # no word in the vocabulary: tokens before and after cannot be distinguished
        return Template()
    return Template(tuple(encoding.ids[: own[0]]), tuple(encoding.ids[own[-1] + 1 :]))


def encoder_template(tokenizer: Tokenizer) -> Template:
    """Return tokenizer.json's template, else [CLS] and [SEP], else <bos> and <eos>, else none."""
    added = added_template(tokenizer)
    if added.size:
        return added
    pairs = (tokenizer.cls_id, tokenizer.sep_id), (tokenizer.bos_id, tokenizer.eos_id)
    for before, after in pairs:
        if before is not None and after is not None:
            return Template((before,), (after,))
    return added


def translation_template(tokenizer: Tokenizer) -> Template:
    """Return tokenizer.json's template (BART: <s> and </s>), else <eos> after the text."""
    added = added_template(tokenizer)
    return added if added.size or tokenizer.eos_id is None else Template((), (tokenizer.eos_id,))


def decoder_start_id(tokenizer: Tokenizer, stored: SpecialTokenIds = NOT_STORED) -> int | None:
    """Return the decoder start token: stored (BART: </s>), else <bos>, else <pad> (Marian)."""
    return _first_known(stored.start_id, tokenizer.bos_id, tokenizer.pad_id)


def generation_tokens(
    tokenizer: Tokenizer, stored: SpecialTokenIds = NOT_STORED
) -> GenerationTokens:
    """Return the special tokens of a language model: the stored ids, else the tokenizer's.

    A prompt begins with the tokens of tokenizer.json's template, else with the stored start token
    unless it is also eos: Llama's texts begin with <s>, but GPT-2's single token separates texts.
    """
    ends = stored.eos_ids or (() if tokenizer.eos_id is None else (tokenizer.eos_id,))
    start = stored.start_id
    if tokenizer.core.post_processor is not None:
        begin = added_template(tokenizer).before
    else:
        begin = () if start is None or start in ends else (start,)
    return GenerationTokens(begin, _first_known(start, *ends, tokenizer.bos_id), ends)


def _first_known(*ids: int | None) -> int | None:
    for id in ids:
        if id is not None:
            return id
    return None
