"""torch backend: greedy search, beam search and generation with a torch model, ids in and out."""

from collections.abc import Iterator

from qkv.engine.stepper import make_stepper
from qkv.generate.backend import GeneratedTokens, Hypothesis, OnToken
from qkv.generate.beam import BeamSearchConfig, beam_search
from qkv.generate.config import GenerationConfig, TranslationConfig
from qkv.generate.decode import forced_log_probs, greedy
from qkv.generate.loop import Bounds, GenerationLoop, generate
from qkv.model.transformer import Transformer


class TorchSearch:
    """Greedy and beam search with an encoder-decoder model; `int8` quantizes its weights."""

    def __init__(self, model: Transformer, bos: int, eos: int, pad: int, int8: bool = False):
        self.model, self.int8, self.max_len = model.eval(), int8, model.spec.max_len
        self.bos, self.eos, self.pad = bos, eos, pad
        if int8:
            make_stepper(model, int8)  # raises now if int8 is not supported

    def search(
        self, rows: list[list[int]], limits: list[int], config: TranslationConfig
    ) -> list[list[Hypothesis]]:
        beam = BeamSearchConfig(
            self.bos, self.eos, self.pad, config.beam_size, config.length_penalty
        )
        if beam.size > 1:
            return beam_search(self.model, rows, beam, limits, self.int8)
        found = greedy(self.model, rows, beam, limits, self.int8)
        if not config.details:
            return [[Hypothesis(ids, 0.0, 0.0)] for ids in found]
        log_probs = forced_log_probs(self.model, rows, found, self.bos, beam.suppressed_ids)
        return [
            [Hypothesis(ids, total, total / config.penalty(len(ids)))]
            for ids, total in zip(found, map(sum, log_probs), strict=True)
        ]


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
        stepper = make_stepper(self.model, self.int8)
        return generate(stepper, prompts, config, self._bounds(config), on_token)

    def stream(self, prompt: list[int], config: GenerationConfig) -> Iterator[int]:
        stepper = make_stepper(self.model, self.int8)
        with stepper.decoding():
            loop = GenerationLoop(stepper, [prompt], config, self._bounds(config))
        while loop.n_alive:
            # Not during the yield, when the caller's code runs.
            with stepper.decoding():
                id = loop.advance()[0]
            yield id

    def _bounds(self, config: GenerationConfig) -> Bounds:
        return Bounds(self.context_length, config.stop_token_ids, self.begin)
