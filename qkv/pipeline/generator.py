"""The generator: prompt -> ids -> generation loop -> ids -> text, whole or as a stream.

A backend runs the loop: torch, or CTranslate2, with which torch is never imported. A text does not
depend on the prompts beside its own. Explained in docs/generation.md.
"""

import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qkv.errors import QkvError
from qkv.generate.backend import Draft, GenerationBackend, torch_model
from qkv.generate.config import GenerationConfig
from qkv.generate.stream import TextStream
from qkv.messages import _
from qkv.text.special_tokens import NOT_STORED, GenerationTokens, SpecialTokenIds, generation_tokens
from qkv.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from qkv.checkpoint.loaded_model import LoadedModel
    from qkv.model.transformer import Transformer


@dataclass(frozen=True)
class GeneratedSequence:
    """A text that follows a prompt, its ids, why it ended, and the seed that gives it again."""

    text: str
    ids: list[int]
    why: str
    seed: int
    tokens: list[str] = field(default_factory=list)  # for display
    log_probs: list[float] | None = None  # None: not asked for
    best: list[list[tuple[str, float]]] | None = None


class Generator:
    """generator("ROMEO:", max_new_tokens=80, temperature=0.8, top_k=40); lists give lists."""

    def __init__(
        self,
        backend: GenerationBackend,
        tokenizer: Tokenizer,
        tokens: GenerationTokens,
        stored: SpecialTokenIds = NOT_STORED,
    ):
        """`tokens` begin and end texts; `stored` are the special token ids saved with the model."""
        self.backend, self.tokenizer, self.stored = backend, tokenizer, stored
        self.begin, self.first, self.ends = tokens.begin, tokens.first, tokens.ends
        self.context = backend.context

    @classmethod
    def from_model(
        cls,
        model: "Transformer",
        tokenizer: Tokenizer,
        *,
        int8: bool = False,
        stored: SpecialTokenIds = NOT_STORED,
    ) -> "Generator":
        """The generator of a torch model.

        Args:
            model: with a causal decoder alone.
            tokenizer: the decoder's.
            int8: quantize the matrices.
            stored: special token ids that an imported folder names.
        """
        from qkv.generate.torch_backend import TorchGeneration

        tokens = generation_tokens(tokenizer, stored)
        return cls(TorchGeneration(model, tokens.begin, int8), tokenizer, tokens, stored)

    @classmethod
    def load(cls, folder: str | Path, device: str = "cpu", int8: bool = False) -> "Generator":
        """The generator in a model folder, ours or Hugging Face's."""
        from qkv.checkpoint.load import load_folder

        return cls.of(load_folder(folder, device), folder, int8)

    @classmethod
    def load_ctranslate2(cls, folder: str | Path, device: str = "cpu") -> "Generator":
        """The generator in a folder that `qkv export --to ctranslate2` wrote."""
        from qkv.generate.ctranslate2_generator import CTranslate2Generation

        backend = CTranslate2Generation(Path(folder), device)
        return cls(backend, Tokenizer.load(Path(folder) / "tokenizer.json"), backend.tokens)

    @classmethod
    def of(cls, loaded: "LoadedModel", folder: str | Path, int8: bool = False) -> "Generator":
        """The generator that a loaded folder holds."""
        spec = loaded.model.spec
        if spec.encoder is not None or spec.decoder is None or spec.decoder.sees != "past":
            raise QkvError(
                folder, _("not a language model"), _("one has a decoder alone, which sees the past")
            )
        if "tokenizer" not in loaded.tokenizers:
            wrong = _("no tokenizer.json")
            raise QkvError(folder, wrong, _("is the copy complete?"))
        tokenizer = loaded.tokenizers["tokenizer"]
        return cls.from_model(loaded.model, tokenizer, int8=int8, stored=loaded.generation)

    def save(self, folder: str | Path) -> None:
        """Write a folder that `qkv.load` reads."""
        from qkv.checkpoint.folder import save_model
        from qkv.checkpoint.loaded_model import stored_files

        save_model(folder, self.model, {"tokenizer": self.tokenizer}, stored_files(self.stored))

    @property
    def model(self) -> "Transformer":
        """The torch model; an error if CTranslate2 runs it."""
        return torch_model(self.backend)

    # ── Text to text ─────────────────────────────────────────────────────────────────────────
    def __call__(self, prompts: str | Sequence[str], **settings: Any) -> Any:
        """The text after each prompt (n > 1: a list); `settings` are fields of GenerationConfig."""
        if isinstance(prompts, str):
            return self([prompts], **settings)[0]
        generated = self.generate(prompts, **settings)
        return [[one.text for one in some] if len(some) > 1 else some[0].text for some in generated]

    def generate(
        self, prompts: Sequence[str], config: GenerationConfig | None = None, **settings: Any
    ) -> list[list[GeneratedSequence]]:
        """The `n` texts of each prompt, without the prompt.

        Args:
            prompts: an empty one begins a new text.
            config: how to generate; by default sampling as in GenerationConfig.
            settings: fields that replace those of `config`, such as temperature=0.
        """
        config = self._resolved(config, settings)
        ids = [self.encode_prompt(prompt) for prompt in prompts]
        order = sorted(range(len(ids)), key=lambda n: -len(ids[n]))  # similar lengths together
        found: dict[int, list[GeneratedSequence]] = {}
        size = max(1, config.batch_size // config.n)
        for batch in (order[start : start + size] for start in range(0, len(order), size)):
            drafts = iter(self._drafts([ids[n] for n in batch], config))
            for n in batch:
                found[n] = [self._sequence(ids[n], next(drafts), config) for _ in range(config.n)]
        return [found[n] for n in range(len(ids))]

    def stream(
        self, prompt: str, config: GenerationConfig | None = None, **settings: Any
    ) -> Iterator[str]:
        """The text after a prompt, piece by piece as it is generated."""
        config = self._resolved(config, settings)
        if config.n > 1:
            raise QkvError(
                "n", _("{n} texts in one stream", n=config.n), _("stream them one by one")
            )
        return self._pieces(self.encode_prompt(prompt), config)

    def encode_prompt(self, prompt: str) -> list[int]:
        """The ids of a prompt, with the begin tokens of the model."""
        ids = [*self.begin, *self.tokenizer.encode(prompt)]
        if not ids and self.first is None:
            raise QkvError(
                "prompt",
                _("empty, and the vocabulary has no mark to begin with"),
                _("give some text"),
            )
        ids = ids or [self.first or 0]
        if len(ids) > self.context:
            raise QkvError(
                "prompt",
                _(
                    "{n_ids:,} tokens, the model reads {context:,}",
                    n_ids=len(ids),
                    context=self.context,
                ),
                _("shorten it"),
            )
        return ids

    def _resolved(
        self, config: GenerationConfig | None, settings: dict[str, Any]
    ) -> GenerationConfig:
        """The settings, checked against the model, with a seed and all ids that end a text.

        A stop string that is a special token becomes such an id.
        """
        config = replace(config, **settings) if config else GenerationConfig(**settings)
        self.backend.check(config)
        special_ids = self.tokenizer.special_ids
        stop = tuple(text for text in config.stop if text not in special_ids)
        for text in stop:
            ids = self.tokenizer.encode(text)
            if not ids or self.tokenizer.unk_id in ids:
                raise QkvError(
                    "stop",
                    _("'{text}' never comes", text=text),
                    _("this vocabulary cannot write it"),
                )
        ends = {special_ids[text] for text in config.stop if text in special_ids}
        ends.update(self.ends, config.stop_token_ids)
        seed = secrets.randbits(32) if config.seed is None else config.seed
        return replace(config, stop=stop, seed=seed, stop_token_ids=tuple(sorted(ends)))

    def _drafts(self, prompts: list[list[int]], config: GenerationConfig) -> list[Draft]:
        streams = [self._text_stream(prompt, config) for prompt in prompts for _ in range(config.n)]

        def stops(text: int, id: int) -> bool:
            streams[text].add(id)
            return streams[text].stopped

        return self.backend.generate(prompts, config, stops if config.stop else None)

    def _pieces(self, prompt: list[int], config: GenerationConfig) -> Iterator[str]:
        stream = self._text_stream(prompt, config)
        for id in self.backend.stream(prompt, config):
            if id not in config.stop_token_ids and (piece := stream.add(id)):
                yield piece
            if stream.stopped:
                return
        if piece := stream.finish():
            yield piece

    def _sequence(
        self, prompt: list[int], draft: Draft, config: GenerationConfig
    ) -> GeneratedSequence:
        """The text of a draft up to its first stop string."""
        stream, pieces = self._text_stream(prompt, config), list[str]()
        for id in draft.ids[:-1] if draft.why == "end" else draft.ids:
            if not stream.stopped:
                pieces.append(stream.add(id))
        n = len(pieces) if stream.stopped else len(draft.ids)
        pieces.append(stream.finish())
        ids, why = draft.ids[:n], "stop" if stream.stopped else draft.why
        shown = self.tokenizer.tokens_for_people
        assert config.seed is not None
        sequence = GeneratedSequence("".join(pieces), ids, why, config.seed, shown(ids))
        if config.logprobs is None:
            return sequence
        best = [[(shown([id])[0], number) for id, number in some] for some in draft.best[:n]]
        return replace(sequence, log_probs=list(draft.log_probs[:n]), best=best)

    def _text_stream(self, prompt: list[int], config: GenerationConfig) -> TextStream:
        return TextStream(self.tokenizer, config.stop, before=prompt)
