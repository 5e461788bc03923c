"""How to write: which tokens stay in the draw, how many are written, what ends a text.

In: the numbers a person chose. Out: a frozen value, or one line that says which number is impossible. It knows no torch,
so that a mistake is told before anything is loaded. Told in docs/generation.md, "Sampling".
"""

import math
from dataclasses import dataclass

from qkv.errors import QkvError
from qkv.language import say


@dataclass(frozen=True)
class Sampling:
    """What is done to the scores of the next token; the rules are applied in the order of these fields."""

    repetition_penalty: float = 1.0  # above 1, tokens already read or said get less likely
    banned: tuple[int, ...] = ()     # ids that are never said
    forced: tuple[int, ...] = ()     # only these ids may be said; (): all
    temperature: float = 1.0         # 0: always the likeliest token (greedy), and the rules below have no say
    top_k: int | None = None         # None: this rule is off, as for those below
    top_p: float | None = None
    min_p: float | None = None
    typical: float | None = None
    seed: int | None = None          # None: another one at every call

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < math.inf:
            raise QkvError("temperature", say(f"{self.temperature} is impossible", f"{self.temperature} 不可用"),
                           say("use 0 (greedy) or more", "请用 0（贪心）或更大的数"))
        if self.top_k is not None and self.top_k < 1:
            raise QkvError("top_k", say(f"{self.top_k} leaves no token", f"{self.top_k} 不剩任何词元"),
                           say("use 1 or more, or leave it out", "请用 1 或更大的数，或不给"))
        for name in ("top_p", "min_p", "typical"):
            share = getattr(self, name)
            if share is not None and not 0 < share <= 1:
                raise QkvError(name, say(f"{share} is not such a share", f"{share} 不是这样的比例"),
                               say("use more than 0, at most 1", "请用大于 0、不大于 1 的数"))
        if not 0 < self.repetition_penalty < math.inf:
            wrong = say(f"{self.repetition_penalty} is no penalty", f"{self.repetition_penalty} 不能作为惩罚")
            raise QkvError("repetition_penalty", wrong, say("use more than 0; 1 changes nothing", "请用大于 0 的数；1 即不变"))
        if self.seed is not None and self.seed < 0:
            raise QkvError("seed", say(f"{self.seed} is negative", f"{self.seed} 是负数"), say("use 0 or more", "请用 0 或更大的数"))


@dataclass(frozen=True)
class Writing(Sampling):
    """Sampling, and how much is written: `n` texts for each prompt, each up to a stop or `max_new_tokens`."""

    max_new_tokens: int = 128
    n: int = 1
    stop: tuple[str, ...] | str = ()  # a text ends before the first of these
    logprobs: int | None = None       # so many of the likeliest tokens are told at each place; None: nothing is
    batch_size: int = 16              # texts written at once

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("max_new_tokens", "n", "batch_size"):
            if getattr(self, name) < 1:
                wrong = say(f"{getattr(self, name)} is too small", f"{getattr(self, name)} 太小")
                raise QkvError(name, wrong, say("use 1 or more", "请用 1 或更大的数"))
        if self.logprobs is not None and self.logprobs < 0:
            raise QkvError("logprobs", say(f"{self.logprobs} is negative", f"{self.logprobs} 是负数"),
                           say("use 0 for the chosen tokens alone", "只要所选词元，请用 0"))
        object.__setattr__(self, "stop", (self.stop,) if isinstance(self.stop, str) else tuple(self.stop))
        if "" in self.stop:
            raise QkvError("stop", say("an empty text stops nothing", "空文本不能作为停止标记"), say("give some text", "请给出文字"))

    def refuse_ids_beyond(self, vocab_size: int) -> None:
        """Banned and forced ids are those of a vocabulary, and something is left to say."""
        for name in ("banned", "forced"):
            strange = [id for id in getattr(self, name) if not 0 <= id < vocab_size]
            if strange:
                raise QkvError(name, say(f"{strange[0]} is no token", f"{strange[0]} 不是词元"),
                               say(f"ids go from 0 to {vocab_size - 1}", f"编号从 0 到 {vocab_size - 1}"))
        if self.banned and not set(self.forced or range(vocab_size)) - set(self.banned):
            raise QkvError("banned", say("nothing is left to say", "没有可说的词元了"), say("ban fewer tokens", "请少禁几个"))
