"""Interface between pipelines and inference backends: token ids in, token ids out.

Two backends implement it, torch (torch_backend.py) and CTranslate2 (ctranslate2_translator.py,
ctranslate2_generator.py). This module does not import torch.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from qkv.errors import QkvError
from qkv.generate.config import GenerationConfig, TranslationConfig
from qkv.messages import _

if TYPE_CHECKING:
    from qkv.model.transformer import Transformer

OnToken = Callable[[int, int], bool]  # index of a sequence, its new token -> whether to stop it


class Hypothesis(NamedTuple):
    """A finished translation, with <eos> if it ended; score = log_prob / length penalty."""

    ids: list[int]
    log_prob: float
    score: float


class GeneratedTokens(NamedTuple):
    """Token ids generated after a prompt.

    `finish_reason` is "eos" (an end token), "stop" (a stop string) or "length".
    """

    ids: list[int]
    finish_reason: str
    logprobs: Sequence[float] = ()  # of each token, before sampling rules are applied
    top_logprobs: Sequence[list[tuple[int, float]]] = ()  # top-k (id, logprob) at each position


class SearchBackend(Protocol):
    """Greedy and beam search with an encoder-decoder model."""

    bos: int
    eos: int
    pad: int
    max_len: int  # maximum tokens of a source, and of a target

    @property
    def model(self) -> "Transformer | None": ...  # None: it does not run in torch

    def search(
        self, rows: list[list[int]], limits: list[int], config: TranslationConfig
    ) -> list[list[Hypothesis]]:
        """Return the hypotheses of each row of encoder input ids, best first.

        `limits` are the maximum target tokens of each row, <eos> included.
        """
        ...


class GenerationBackend(Protocol):
    """Generation with a decoder-only model."""

    context_length: int

    @property
    def model(self) -> "Transformer | None": ...

    def check(self, config: GenerationConfig) -> None:
        """Raise if this backend or its vocabulary does not support the settings."""

    def generate(
        self, prompts: list[list[int]], config: GenerationConfig, on_token: OnToken | None
    ) -> list[GeneratedTokens]:
        """Return `config.n` sequences per prompt, in prompt order; end tokens are included."""
        ...

    def stream(self, prompt: list[int], config: GenerationConfig) -> Iterator[int]:
        """Yield the ids that `generate` returns for a prompt, one by one."""
        ...


def torch_model(backend: SearchBackend | GenerationBackend) -> "Transformer":
    """Return the torch model, for what needs its weights or activations."""
    if backend.model is None:
        raise QkvError(
            "model",
            _("it runs in CTranslate2, not in torch"),
            _("open the folder it was exported from"),
        )
    return backend.model
