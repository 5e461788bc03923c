"""Decoding settings, frozen and validated: beam search for translation, sampling for generation.

This module does not import torch, so that invalid settings are reported before anything is loaded.
See docs/guides/translation.md and docs/guides/generation.md.
"""

import math
from dataclasses import dataclass

from qkv.arguments import check_types
from qkv.errors import QkvError
from qkv.limits import MAX_BATCH_SIZE, MAX_TOKENS, NumberRange, check_limits
from qkv.messages import N_, _

__all__ = ["GenerationConfig", "TranslationConfig"]

POSITIVE_FRACTION = NumberRange(math.ulp(0.0), 1, message=N_("use more than 0, at most 1"))
TRANSLATION_LIMITS = {
    "beam_size": NumberRange(1, 1_024),
    # 1,000 tokens to a power of some hundred overflow
    "length_penalty": NumberRange(
        0, 20, message=N_("use {least} to {most}; the 2017 paper uses 0.6")
    ),
    "n_best": NumberRange(1, 1_024),
    "max_target_len": NumberRange(1, MAX_TOKENS),
    "batch_size": NumberRange(1, MAX_BATCH_SIZE),
}
GENERATION_LIMITS = {
    # Beyond these, logits that are divided by them are infinite.
    "repetition_penalty": NumberRange(
        0.01, 100, message=N_("use {least} to {most}; 1 disables it")
    ),
    "temperature": NumberRange(
        1e-6, 1e6, or_zero=True, message=N_("use 0 (greedy), or {least} to {most}")
    ),
    "top_k": NumberRange(1, 2**27),  # the largest vocabulary
    "top_p": POSITIVE_FRACTION,
    "min_p": POSITIVE_FRACTION,
    "typical_p": POSITIVE_FRACTION,
    "seed": NumberRange(0, 2**63 - 1),
    "max_new_tokens": NumberRange(1, MAX_TOKENS),
    "n": NumberRange(1, 16_384),
    "logprobs": NumberRange(0, 10_000),
    "batch_size": NumberRange(1, MAX_BATCH_SIZE),
}


@dataclass(frozen=True)
class TranslationConfig:
    """Settings of beam search; the defaults are those of the 2017 paper.

    >>> TranslationConfig(beam_size=5, n_best=2).length_penalty
    0.6

    Attributes:
        beam_size: Hypotheses that are kept at each step; 1 is greedy search, the fastest.
        length_penalty: Exponent of the length penalty; 0: none.
        n_best: Translations to return, at most `beam_size`.
        max_target_len: Maximum tokens per sentence; None: twice the source + 20.
        batch_size: Sentences per batch.
        details: Return tokens, and the scores of greedy search, which take extra time.
        alignment: Align target words to source words by cross-attention weights.
    """

    beam_size: int = 4
    length_penalty: float = 0.6
    n_best: int = 1
    max_target_len: int | None = None
    batch_size: int = 32
    details: bool = True
    alignment: bool = False

    def __post_init__(self) -> None:
        check_types(self)
        check_limits(self, TRANSLATION_LIMITS)
        if self.n_best > self.beam_size:
            raise QkvError(
                "n_best",
                _(
                    "{n_best} is larger than beam_size {beam_size}",
                    n_best=self.n_best,
                    beam_size=self.beam_size,
                ),
                _("raise beam_size or lower n_best"),
            )

    def penalty(self, length: int) -> float:
        """Compute the length penalty ((5 + length) / 6)^alpha (Wu et al. 2016).

        Args:
            length: Tokens of a hypothesis.

        Returns:
            The divisor of its log-probability.
        """
        return ((5 + length) / 6) ** self.length_penalty


@dataclass(frozen=True)
class GenerationConfig:
    """Sampling rules, in the order in which they are applied to the logits; stopping criteria.

    >>> GenerationConfig(temperature=0.8, top_k=40, stop="\\n").stop
    ('\\n',)

    Attributes:
        repetition_penalty: Above 1, tokens of the prompt and the text get less likely.
        suppress_tokens: Ids that are never sampled.
        allowed_token_ids: Only these ids are sampled; (): all.
        temperature: Divides the logits; 0 is greedy, and the rules below have no effect.
        top_k: Keep the k most likely tokens; None: the rule is off, as for those below.
        top_p: Keep the most likely tokens whose probabilities sum to p (nucleus sampling).
        min_p: Keep tokens with probability >= p x the maximum.
        typical_p: Keep the tokens of typical information content that sum to p.
        seed: Random seed; None: a new one for every call.
        max_new_tokens: Maximum tokens to generate.
        n: Sequences per prompt.
        stop: The text ends before the first of these strings.
        stop_token_ids: End tokens besides eos.
        logprobs: Return log-probabilities, and the top-k at each position; None: none.
        batch_size: Sequences per batch.
    """

    repetition_penalty: float = 1.0
    suppress_tokens: tuple[int, ...] = ()
    allowed_token_ids: tuple[int, ...] = ()
    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    typical_p: float | None = None
    seed: int | None = None
    max_new_tokens: int = 128
    n: int = 1
    stop: tuple[str, ...] | str = ()
    stop_token_ids: tuple[int, ...] = ()
    logprobs: int | None = None
    batch_size: int = 16

    def __post_init__(self) -> None:
        check_types(self)
        check_limits(self, GENERATION_LIMITS)
        stop = (self.stop,) if isinstance(self.stop, str) else self.stop
        object.__setattr__(self, "stop", stop)
        if "" in stop:
            raise QkvError("stop", _("empty stop string"), _("give some text"))

    def check_vocabulary(self, vocab_size: int) -> None:
        """Check the token ids of the settings against a vocabulary.

        Args:
            vocab_size: The size of the vocabulary.

        Raises:
            QkvError: An id is not in the vocabulary, or every token is suppressed.
        """
        for name in ("suppress_tokens", "allowed_token_ids", "stop_token_ids"):
            unknown = [id for id in getattr(self, name) if not 0 <= id < vocab_size]
            if unknown:
                raise QkvError(
                    name,
                    _("{id} is not in the vocabulary", id=unknown[0]),
                    _("ids are 0 to {last_id}", last_id=vocab_size - 1),
                )
        suppressed = set(self.suppress_tokens)
        if suppressed and not set(self.allowed_token_ids or range(vocab_size)) - suppressed:
            wrong, right = _("every token is suppressed"), _("suppress fewer tokens")
            raise QkvError("suppress_tokens", wrong, right)
