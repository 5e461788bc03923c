"""What a Translator and a Generator need of the engine that runs their model: ids in, ids out.

Two engines do it, torch (torch_backend.py) and CTranslate2 (ctranslate2_translator.py,
ctranslate2_generator.py). It imports no torch.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from qkv.errors import QkvError
from qkv.generate.config import GenerationConfig, TranslationConfig
from qkv.messages import _

if TYPE_CHECKING:
    from qkv.model.transformer import Transformer

OnToken = Callable[[int, int], bool]  # number of a text, its newest token -> whether it stops here


class Hypothesis(NamedTuple):
    """A finished translation, with <eos> if it ended; score = log_prob / length penalty."""

    ids: list[int]
    log_prob: float
    score: float


class Draft(NamedTuple):
    """Ids generated after a prompt; `why` they end: an "end" token, a "stop" text, or "length"."""

    ids: list[int]
    why: str
    log_probs: Sequence[float] = ()  # of each token, before any rule of sampling
    best: Sequence[list[tuple[int, float]]] = ()  # at each position the top-k tokens with theirs


class SearchBackend(Protocol):
    """An encoder-decoder model and its search."""

    bos: int
    eos: int
    pad: int
    max_len: int  # tokens that either side may have

    @property
    def model(self) -> "Transformer | None": ...  # None: it does not run in torch

    def search(self, rows: list[list[int]], config: TranslationConfig) -> list[list[Hypothesis]]:
        """The hypotheses of each row of encoder input ids, best first."""
        ...


class GenerationBackend(Protocol):
    """A decoder-only model and its generation loop."""

    context: int  # tokens it can attend to

    @property
    def model(self) -> "Transformer | None": ...

    def check(self, config: GenerationConfig) -> None:
        """Raise if this engine or its vocabulary cannot do what the settings ask for."""

    def generate(
        self, prompts: list[list[int]], config: GenerationConfig, on_token: OnToken | None
    ) -> list[Draft]:
        """`config.n` drafts of each prompt, in its order; an end token is part of its draft."""
        ...

    def stream(self, prompt: list[int], config: GenerationConfig) -> Iterator[int]:
        """The ids that `generate` gives for a prompt, one by one as they are generated."""
        ...


def torch_model(backend: SearchBackend | GenerationBackend) -> "Transformer":
    """The torch model, for what needs its weights or activations."""
    if backend.model is None:
        raise QkvError(
            "model",
            _("it runs in CTranslate2, not in torch"),
            _("open the folder it was exported from"),
        )
    return backend.model
