"""The generator: a prompt in, text that goes on from it out.

In: a model folder, then prompts. Out: texts, in the order of the prompts, each the same alone and in company.
Told in docs/generation.md.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from qkv.checkpoint.convert import extras
from qkv.checkpoint.folder import LoadedModel, save_model
from qkv.engine.stepper import make_stepper
from qkv.errors import QkvError
from qkv.generate.loop import Bounds, GenerationLoop, generate
from qkv.generate.settings import Writing
from qkv.generate.writing import Draft, TextGenerator
from qkv.language import say
from qkv.model.eval_mode import eval_mode
from qkv.model.transformer import Transformer
from qkv.pipeline.opening import open_folder
from qkv.text.marks import marks_of
from qkv.text.tokenizer import Tokenizer


class Generator(TextGenerator):
    """generator("ROMEO:", max_new_tokens=80, temperature=0.8, top_k=40); lists give lists."""

    def __init__(self, model: Transformer, tokenizer: Tokenizer, marks: dict[str, Any] | None = None, int8: bool = False):
        """`marks` are the ids that begin and end texts, as an imported folder tells them: start_id, eos_ids."""
        self.model, self.tokenizer, self.marks = model.eval(), tokenizer, marks or {}
        self.vocab_size, self.context = model.spec.vocab_size, model.spec.max_len
        known = marks_of(tokenizer, self.marks)
        self.begin, self.first, self.ends = known.begin, known.first, known.ends
        self.int8 = int8
        make_stepper(model, int8)  # what it prepares is kept; a model that has no such step is refused now

    @classmethod
    def load(cls, folder: str | Path, device: str = "cpu", int8: bool = False) -> "Generator":
        """The generator in a model folder, ours or Hugging Face's; `int8` makes its matrices small and fast."""
        return cls.of(open_folder(folder, device), folder, int8)

    @classmethod
    def of(cls, loaded: LoadedModel, folder: str | Path, int8: bool = False) -> "Generator":
        """The generator that a loaded folder holds."""
        spec = loaded.model.spec
        if spec.encoder is not None or spec.decoder is None or spec.decoder.sees != "past":
            raise QkvError(folder, say("not a language model", "不是语言模型"), say(
                "one has a decoder alone, which sees the past", "语言模型只有解码器，且只看过去"))
        if "tokenizer" not in loaded.tokenizers:
            raise QkvError(folder, say("no tokenizer.json", "没有 tokenizer.json"), say("is the copy complete?", "复制完整了吗？"))
        return cls(loaded.model, loaded.tokenizers["tokenizer"], loaded.facts.get("generation"), int8)

    def save(self, folder: str | Path) -> None:
        """A folder that `qkv.load` reads."""
        save_model(folder, self.model, {"tokenizer": self.tokenizer}, extras(self.marks))

    def write_batch(self, prompts: list[list[int]], settings: Writing, ends: tuple[int, ...]) -> list[Draft]:
        streams = [self.text_stream(prompt, settings) for prompt in prompts for _ in range(settings.n)]

        def stopped(text: int, id: int) -> bool:
            streams[text].add(id)
            return streams[text].stopped
        with eval_mode(self.model):
            stepper = make_stepper(self.model, self.int8)
            return generate(stepper, prompts, settings, self._bounds(ends), stopped if settings.stop else None)

    def write_stream(self, prompt: list[int], settings: Writing, ends: tuple[int, ...]) -> Iterator[int]:
        with eval_mode(self.model):
            loop = GenerationLoop(make_stepper(self.model, self.int8), [prompt], settings, self._bounds(ends))
        while loop.n_alive:
            with eval_mode(self.model):  # not while the caller has the word: his gradients are his own
                id = loop.advance()[0]
            yield id

    def _bounds(self, ends: tuple[int, ...]) -> Bounds:
        return Bounds(self.context, ends, self.begin)
