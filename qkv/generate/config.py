"""Settings of decoding, frozen and validated: beam search of translations, sampling of texts.

It imports no torch, so that a mistake is reported before anything is loaded. The same value goes
from the command line to the search. Explained in docs/translation.md and docs/generation.md.
"""

import math
from dataclasses import dataclass

from qkv.errors import QkvError
from qkv.messages import _


def check_at_least_one(config: object, *names: str) -> None:
    """None is allowed where it is a field's default."""
    for name in names:
        value = getattr(config, name)
        if value is not None and value < 1:
            raise QkvError(name, _("{value} is too small", value=value), _("use 1 or more"))


@dataclass(frozen=True)
class TranslationConfig:
    """Beam search: size 4 and length penalty 0.6 are the paper's; size 1 is greedy and fastest."""

    beam_size: int = 4
    length_penalty: float = 0.6
    n_best: int = 1
    max_length: int | None = None  # tokens of a translated sentence; None: twice its source + 20
    batch_size: int = 32  # sentences searched together
    details: bool = True  # tokens, and scores of a beam of 1, cost a little more time
    alignment: bool = False  # source word of each target word, from cross-attention weights

    def __post_init__(self) -> None:
        check_at_least_one(self, "beam_size", "n_best", "max_length", "batch_size")
        if not 0 <= self.length_penalty <= 20:  # 1,000 tokens to a power of some hundred overflow
            raise QkvError(
                "length_penalty",
                _("{length_penalty} is no penalty", length_penalty=self.length_penalty),
                _("use 0 to 20; the paper has 0.6"),
            )
        if self.n_best > self.beam_size:
            raise QkvError(
                "n_best",
                _(
                    "{n_best} of a beam of {beam_size}",
                    n_best=self.n_best,
                    beam_size=self.beam_size,
                ),
                _("raise beam_size or lower n_best"),
            )

    def penalty(self, length: int) -> float:
        """((5 + length) / 6)^alpha (Wu et al. 2016), by which a log-probability is divided."""
        return ((5 + length) / 6) ** self.length_penalty

    def longest(self, n_source: int, limit: int) -> int:
        """Maximum target tokens, <eos> included, of `n_source` tokens; `limit` is the model's."""
        return min(2 * n_source + 20 if self.max_length is None else self.max_length, limit)


@dataclass(frozen=True)
class GenerationConfig:
    """Sampling, in the order in which the rules are applied to the logits; then stopping."""

    repetition_penalty: float = 1.0  # above 1, tokens of the prompt and the text get less likely
    banned: tuple[int, ...] = ()  # ids that are never sampled
    forced: tuple[int, ...] = ()  # only these ids may be sampled; (): all
    temperature: float = 1.0  # 0 is greedy: the rules below have no effect
    top_k: int | None = None  # None: the rule is off, as for those below
    top_p: float | None = None
    min_p: float | None = None
    typical: float | None = None
    seed: int | None = None  # None: a new one for every call
    max_new_tokens: int = 128
    n: int = 1  # texts for each prompt
    stop: tuple[str, ...] | str = ()  # a text ends before the first of these
    stop_token_ids: tuple[int, ...] = ()  # a text ends with one of these too, not only with eos
    logprobs: int | None = None  # top-k log-probabilities at each position; None: none at all
    batch_size: int = 16  # texts generated together

    def __post_init__(self) -> None:
        self._check_sampling()
        check_at_least_one(self, "max_new_tokens", "n", "batch_size")
        if self.logprobs is not None and self.logprobs < 0:
            raise QkvError(
                "logprobs",
                _("{logprobs} is negative", logprobs=self.logprobs),
                _("use 0 for the chosen tokens alone"),
            )
        stop = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)
        object.__setattr__(self, "stop", stop)
        if "" in stop:
            raise QkvError("stop", _("an empty text stops nothing"), _("give some text"))

    def _check_sampling(self) -> None:
        if not 0 <= self.temperature < math.inf:
            raise QkvError(
                "temperature",
                _("{temperature} is impossible", temperature=self.temperature),
                _("use 0 (greedy) or more"),
            )
        if self.top_k is not None and self.top_k < 1:
            raise QkvError(
                "top_k",
                _("{top_k} leaves no token", top_k=self.top_k),
                _("use 1 or more, or leave it out"),
            )
        for name in ("top_p", "min_p", "typical"):
            share = getattr(self, name)
            if share is not None and not 0 < share <= 1:
                raise QkvError(
                    name,
                    _("{share} is not such a share", share=share),
                    _("use more than 0, at most 1"),
                )
        if not 0 < self.repetition_penalty < math.inf:
            penalty = self.repetition_penalty
            raise QkvError(
                "repetition_penalty",
                _("{penalty} is no penalty", penalty=penalty),
                _("use more than 0; 1 changes nothing"),
            )
        if self.seed is not None and self.seed < 0:
            raise QkvError("seed", _("{seed} is negative", seed=self.seed), _("use 0 or more"))

    def check_vocabulary(self, vocab_size: int) -> None:
        """All ids must be in the vocabulary, and at least one token must remain."""
        for name in ("banned", "forced", "stop_token_ids"):
            unknown = [id for id in getattr(self, name) if not 0 <= id < vocab_size]
            if unknown:
                raise QkvError(
                    name,
                    _("{unknown} is no token", unknown=unknown[0]),
                    _("ids go from 0 to {vocab_size}", vocab_size=vocab_size - 1),
                )
        if self.banned and not set(self.forced or range(vocab_size)) - set(self.banned):
            raise QkvError("banned", _("nothing is left to say"), _("ban fewer tokens"))
