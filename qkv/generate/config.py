"""Decoding settings, frozen and validated: beam search for translation, sampling for generation.

This module does not import torch, so that invalid settings are reported before anything is loaded.
See docs/guides/translation.md and docs/guides/generation.md.
"""

import math
from dataclasses import dataclass

from qkv.arguments import check_types
from qkv.errors import QkvError
from qkv.messages import _


def check_at_least_one(config: object, *names: str) -> None:
    """Raise if one of these fields is less than 1; None is allowed."""
    for name in names:
        value = getattr(config, name)
        if value is not None and value < 1:
            raise QkvError(name, _("{value} is too small", value=value), _("use 1 or more"))


def out_of_range(name: str, value: object, right: str) -> QkvError:
    return QkvError(name, _("{value} is out of range", value=value), right)


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
        check_at_least_one(self, "beam_size", "n_best", "max_target_len", "batch_size")
        if not 0 <= self.length_penalty <= 20:  # 1,000 tokens to a power of some hundred overflow
            right = _("use 0 to 20; the 2017 paper uses 0.6")
            raise out_of_range("length_penalty", self.length_penalty, right)
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
        self._check_sampling()
        check_at_least_one(self, "max_new_tokens", "n", "batch_size")
        if self.logprobs is not None and self.logprobs < 0:
            raise QkvError(
                "logprobs",
                _("{logprobs} is negative", logprobs=self.logprobs),
                _("use 0 for the sampled tokens only"),
            )
        stop = (self.stop,) if isinstance(self.stop, str) else self.stop
        object.__setattr__(self, "stop", stop)
        if "" in stop:
            raise QkvError("stop", _("empty stop string"), _("give some text"))

    def _check_sampling(self) -> None:
        if not 0 <= self.temperature < math.inf:
            raise out_of_range("temperature", self.temperature, _("use 0 (greedy) or more"))
        if self.top_k is not None and self.top_k < 1:
            raise QkvError(
                "top_k",
                _("{top_k} leaves no token", top_k=self.top_k),
                _("use 1 or more, or leave it out"),
            )
        for name in ("top_p", "min_p", "typical_p"):
            p = getattr(self, name)
            if p is not None and not 0 < p <= 1:
                raise out_of_range(name, p, _("use more than 0, at most 1"))
        if not 0 < self.repetition_penalty < math.inf:
            right = _("use more than 0; 1 disables it")
            raise out_of_range("repetition_penalty", self.repetition_penalty, right)
        if self.seed is not None and self.seed < 0:
            raise QkvError("seed", _("{seed} is negative", seed=self.seed), _("use 0 or more"))

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
