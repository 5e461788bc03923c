"""torch backend: greedy search, beam search and generation with a torch model, ids in and out."""

from collections.abc import Iterator

import torch
from torch import Tensor

from qkv.engine.int8 import int8_unsupported
from qkv.engine.stepper import decode_threads, make_stepper
from qkv.engine.supports import supports
from qkv.generate.backend import GeneratedTokens, Hypothesis, OnToken
from qkv.generate.beam import BeamSearchConfig, beam_search
from qkv.generate.config import GenerationConfig, TranslationConfig
from qkv.generate.decode import forced_log_probs, greedy, suppressed_ids
from qkv.generate.loop import Bounds, GenerationLoop, generate
from qkv.model.eval_mode import eval_mode
from qkv.model.transformer import Transformer


class TorchSearch:
    """Greedy and beam search with an encoder-decoder model; `int8` quantizes its weights."""

    def __init__(self, model: Transformer, bos: int, eos: int, pad: int, int8: bool = False):
        if int8 and not supports(model, int8):
            raise int8_unsupported()
        self.model, self.int8, self.max_len = model.eval(), int8, model.spec.max_len
        self.bos, self.eos, self.pad = bos, eos, pad

    def search(self, rows: list[list[int]], config: TranslationConfig) -> list[list[Hypothesis]]:
        source, attention_mask = self._padded(rows)
        limits = [config.target_limit(len(row), self.max_len) for row in rows]
        max_target_len = torch.tensor(limits, device=source.device)
        if config.beam_size > 1:
            size, alpha = config.beam_size, config.length_penalty
            beam = BeamSearchConfig(self.bos, self.eos, self.pad, size, alpha)
            return beam_search(self.model, source, attention_mask, beam, max_target_len, self.int8)
        found = greedy(
            self.model,
            source,
            attention_mask,
            bos_id=self.bos,
            eos_id=self.eos,
            pad_id=self.pad,
            max_target_len=max_target_len,
            int8=self.int8,
        )
        if not config.details:
            return [[Hypothesis(ids, 0.0, 0.0)] for ids in found]
        suppressed = suppressed_ids(self.bos, self.eos, self.pad)
        log_probs = forced_log_probs(
            self.model, source, attention_mask, found, self.bos, suppressed
        )
        return [
            [Hypothesis(ids, total, total / config.penalty(len(ids)))]
            for ids, total in zip(found, map(sum, log_probs), strict=True)
        ]

    def _padded(self, rows: list[list[int]]) -> tuple[Tensor, Tensor]:
        """Ids (batch, source), padded on the right, and their attention mask."""
        width, device = max(map(len, rows)), self.model.embed.weight.device
        padded = [row + [0] * (width - len(row)) for row in rows]  # any id: it is masked
        lengths = torch.tensor(list(map(len, rows)), device=device)[:, None]
        return torch.tensor(padded, device=device), torch.arange(width, device=device) < lengths


class TorchGeneration:
    """Sampling from a decoder-only model; `begin` are the ids at the start of every sequence."""

    def __init__(self, model: Transformer, begin: tuple[int, ...], int8: bool = False):
        self.model, self.begin, self.int8 = model.eval(), begin, int8
        self.context_length = model.spec.max_len
        make_stepper(model, int8)  # packs the weights; raises now if int8 is not supported

    def check(self, config: GenerationConfig) -> None:
        config.check_vocabulary(self.model.spec.vocab_size)

    def generate(
        self, prompts: list[list[int]], config: GenerationConfig, on_token: OnToken | None
    ) -> list[GeneratedTokens]:
        with eval_mode(self.model):
            stepper = make_stepper(self.model, self.int8)
            return generate(stepper, prompts, config, self._bounds(config), on_token)

    def stream(self, prompt: list[int], config: GenerationConfig) -> Iterator[int]:
        with eval_mode(self.model):
            stepper = make_stepper(self.model, self.int8)
            loop = GenerationLoop(stepper, [prompt], config, self._bounds(config))
        while loop.n_alive:
            # Not during the yield, when the caller's code runs.
            with eval_mode(self.model), decode_threads(stepper):
                id = loop.advance()[0]
            yield id

    def _bounds(self, config: GenerationConfig) -> Bounds:
        return Bounds(self.context_length, config.stop_token_ids, self.begin)
