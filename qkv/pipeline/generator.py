"""The generator: prompt -> ids -> generation loop -> ids -> text, whole or as a stream.

A backend runs the loop: torch, or CTranslate2, which does not import torch. Generation is
batch-invariant. See docs/guides/generation.md.
"""

import secrets
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qkv.arguments import check_text, check_texts, with_settings
from qkv.errors import QkvError
from qkv.generate.backend import GeneratedTokens, GenerationBackend
from qkv.generate.config import GenerationConfig
from qkv.generate.stream import TextStream
from qkv.messages import _
from qkv.pipeline.generated_sequence import GeneratedSequence, decode_sequence
from qkv.pipeline.text_pipeline import TextPipeline
from qkv.text.special_tokens import NOT_STORED, GenerationTokens, SpecialTokenIds, generation_tokens
from qkv.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from qkv.checkpoint.loaded_model import LoadedModel
    from qkv.model.transformer import Transformer

__all__ = ["Generator"]


class Generator(TextPipeline):
    """Text generation with a decoder-only model.

    Example:
        generator = qkv.load("runs/shakespeare", task="generate")
        generator("ROMEO:", max_new_tokens=80, temperature=0.8, top_k=40)
        for part in generator.stream("ROMEO:", seed=1):
            print(part, end="", flush=True)

    Attributes:
        backend: Runs the generation loop.
        tokenizer: The tokenizer of the model.
        begin: Special tokens before every prompt.
        first: The prompt if the text is empty.
        ends: The eos tokens.
        context_length: The maximum number of prompt tokens.
    """

    backend: GenerationBackend

    def __init__(
        self,
        backend: GenerationBackend,
        tokenizer: Tokenizer,
        tokens: GenerationTokens,
        stored: SpecialTokenIds = NOT_STORED,
    ):
        """Make a generator; see from_model and load.

        Args:
            backend: Runs the generation loop.
            tokenizer: The tokenizer of the model.
            tokens: The special tokens before and after texts.
            stored: Special token ids saved with the model.
        """
        self.backend, self.tokenizer, self.stored = backend, tokenizer, stored
        self.begin, self.first, self.ends = tokens.begin, tokens.first, tokens.ends
        self.context_length = backend.context_length

    @classmethod
    def from_model(
        cls,
        model: "Transformer",
        tokenizer: Tokenizer,
        *,
        int8: bool = False,
        stored: SpecialTokenIds = NOT_STORED,
    ) -> "Generator":
        """Make the generator of a torch model.

        Args:
            model: A decoder-only model.
            tokenizer: Its tokenizer.
            int8: Whether to quantize the weight matrices to int8.
            stored: Special token ids of an imported folder.
        """
        from qkv.generate.torch_backend import TorchGeneration

        tokens = generation_tokens(tokenizer, stored)
        return cls(TorchGeneration(model, tokens.begin, int8), tokenizer, tokens, stored)

    @classmethod
    def load_ctranslate2(cls, folder: str | Path, device: str = "cpu") -> "Generator":
        """Load the generator of an exported folder, without importing torch.

        Args:
            folder: A folder written by `qkv export --to ctranslate2`.
            device: "cpu" or "cuda".
        """
        from qkv.generate.ctranslate2_generator import CTranslate2Generation

        backend = CTranslate2Generation(Path(folder), device)
        return cls(backend, Tokenizer.load(Path(folder) / "tokenizer.json"), backend.tokens)

    @classmethod
    def of(cls, loaded: "LoadedModel", folder: str | Path, int8: bool = False) -> "Generator":
        spec = loaded.model.spec
        if spec.encoder is not None or spec.decoder is None or not spec.decoder.causal:
            raise QkvError(
                folder, _("not a language model"), _("use a decoder-only model with a causal mask")
            )
        if "tokenizer" not in loaded.tokenizers:
            wrong = _("no tokenizer.json")
            raise QkvError(folder, wrong, _("is the copy complete?"))
        tokenizer = loaded.tokenizers["tokenizer"]
        return cls.from_model(loaded.model, tokenizer, int8=int8, stored=loaded.generation)

    def save(self, folder: str | Path) -> None:
        """Write a folder that `qkv.load` reads.

        Args:
            folder: The folder; it is created.
        """
        from qkv.checkpoint.folder import save_model
        from qkv.checkpoint.loaded_model import stored_files

        save_model(folder, self.model, {"tokenizer": self.tokenizer}, stored_files(self.stored))

    # ── Text to text ─────────────────────────────────────────────────────────────────────────
    def __call__(self, prompts: str | Sequence[str], **settings: Any) -> Any:
        """Return the generated text of a prompt, or the texts of several prompts.

        Args:
            prompts: One prompt or several.
            settings: Fields of GenerationConfig, such as max_new_tokens=80.

        Returns:
            The text of one prompt, or a list with the text of each; with n > 1 a list of n texts
            in place of a text.

        Raises:
            QkvError: A prompt is not a str, or a setting is unknown or out of range.
        """
        if isinstance(prompts, str):
            return self([prompts], **settings)[0]
        texts = [
            [sequence.text for sequence in sequences]
            for sequences in self.generate(prompts, **settings)
        ]
        return [several if len(several) > 1 else several[0] for several in texts]

    def generate(
        self, prompts: Sequence[str], config: GenerationConfig | None = None, **settings: Any
    ) -> list[list[GeneratedSequence]]:
        """Generate `n` sequences per prompt, without the prompt.

        Args:
            prompts: The prompts; an empty one starts a new text.
            config: The generation settings; by default sampling as in GenerationConfig.
            settings: Fields that override those of `config`, such as temperature=0.

        Returns:
            A list of n sequences for each prompt.
        """
        config = self._resolved(config, settings)
        ids = [self.encode_prompt(prompt) for prompt in check_texts("prompts", prompts)]
        order = sorted(range(len(ids)), key=lambda n: -len(ids[n]))  # batches of similar length
        sequences: dict[int, list[GeneratedSequence]] = {}
        size = max(1, config.batch_size // config.n)
        for batch in (order[start : start + size] for start in range(0, len(order), size)):
            outputs = iter(self._generate_tokens([ids[n] for n in batch], config))
            for n in batch:
                sequences[n] = [
                    decode_sequence(self.tokenizer, ids[n], next(outputs), config)
                    for _ in range(config.n)
                ]
        return [sequences[n] for n in range(len(ids))]

    def stream(
        self, prompt: str, config: GenerationConfig | None = None, **settings: Any
    ) -> Iterator[str]:
        """Generate the text after a prompt as a stream.

        Args:
            prompt: The prompt.
            config: The generation settings, with n = 1.
            settings: Fields that override those of `config`.

        Yields:
            Parts of the text; a character of several tokens is not split.
        """
        config = self._resolved(config, settings)
        if config.n > 1:
            raise QkvError(
                "n", _("{n} sequences cannot be streamed together", n=config.n), _("use n 1")
            )
        return self._pieces(self.encode_prompt(prompt), config)

    def encode_prompt(self, prompt: str) -> list[int]:
        """Encode a prompt, with the special tokens before it.

        Args:
            prompt: The prompt.

        Returns:
            Its token ids, at least one.

        Raises:
            QkvError: The prompt is longer than the context length, or empty and the vocabulary has
                no token to start with.
        """
        ids = [*self.begin, *self.tokenizer.encode(check_text("prompt", prompt))]
        if not ids and self.first is None:
            raise QkvError(
                "prompt",
                _("empty, and the vocabulary has no bos or eos token"),
                _("give some text"),
            )
        ids = ids or [self.first or 0]
        if len(ids) > self.context_length:
            raise QkvError(
                "prompt",
                _(
                    "{n_tokens:,} tokens, the context length is {context_length:,}",
                    n_tokens=len(ids),
                    context_length=self.context_length,
                ),
                _("shorten it"),
            )
        return ids

    def _resolved(
        self, config: GenerationConfig | None, settings: dict[str, Any]
    ) -> GenerationConfig:
        """Return the checked settings, with a seed and all stop token ids.

        A stop string that is a special token becomes a stop token id.
        """
        config = with_settings(GenerationConfig, config, settings)
        self.backend.check(config)
        special_ids = self.tokenizer.special_ids
        stop = tuple(text for text in config.stop if text not in special_ids)
        for text in stop:
            ids = self.tokenizer.encode(text)
            if not ids or self.tokenizer.unk_id in ids:
                raise QkvError(
                    "stop",
                    _("'{text}' cannot be generated", text=text),
                    _("use characters of the vocabulary"),
                )
        ends = {special_ids[text] for text in config.stop if text in special_ids}
        ends.update(self.ends, config.stop_token_ids)
        seed = secrets.randbits(32) if config.seed is None else config.seed
        return replace(config, stop=stop, seed=seed, stop_token_ids=tuple(sorted(ends)))

    def _generate_tokens(
        self, prompts: list[list[int]], config: GenerationConfig
    ) -> list[GeneratedTokens]:
        """Run the backend; a stop string ends a sequence early."""
        streams = [
            TextStream(self.tokenizer, config.stop, before=prompt)
            for prompt in prompts
            for _ in range(config.n)
        ]

        def on_token(sequence: int, id: int) -> bool:
            streams[sequence].add(id)
            return streams[sequence].stopped

        return self.backend.generate(prompts, config, on_token if config.stop else None)

    def _pieces(self, prompt: list[int], config: GenerationConfig) -> Iterator[str]:
        stream = TextStream(self.tokenizer, config.stop, before=prompt)
        for id in self.backend.stream(prompt, config):
            if id not in config.stop_token_ids and (piece := stream.add(id)):
                yield piece
            if stream.stopped:
                return
        if piece := stream.finish():
            yield piece
