"""The embedder: text -> ids -> encoder -> pooling -> vector.

Vectors are batch-invariant. See docs/guides/embeddings.md.
"""

import hashlib
import logging
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from qkv.arguments import check_texts, with_settings
from qkv.checkpoint.folder import save_model
from qkv.checkpoint.load import HALF_DTYPES, load_folder
from qkv.checkpoint.loaded_model import LoadedModel, PoolingConfig, stored_files
from qkv.engine.encoder import length_groups, make_encoder
from qkv.errors import QkvError
from qkv.messages import _
from qkv.model.eval_mode import eval_mode
from qkv.model.transformer import Transformer
from qkv.pipeline.embed_batches import (
    Location,
    average_chunks,
    length_sorted_batches,
    pool_groups,
    truncation_warning,
)
from qkv.pipeline.embed_options import EmbedOptions
from qkv.text.lines import empty_text_error
from qkv.text.special_tokens import encoder_template
from qkv.text.tokenizer import Tokenizer

__all__ = ["Embedder"]

log = logging.getLogger(__name__)

BATCHES_READ_AHEAD = 16  # lines of a file, sorted by length before batching

Progress = Callable[[int, int], None]  # texts done, texts in total


class Embedder:
    """Sentence embeddings of an encoder-only model.

    Example:
        embedder = qkv.load("runs/minilm", task="embed")
        embedder("What is RAG?")                          # (d_model,)
        embedder(["What is RAG?", "Why?"], dimensions=64)  # (2, 64)

    Attributes:
        model: The encoder.
        tokenizer: Its tokenizer.
        template: The special tokens before and after each text.
        pooling: The default pooling.
        normalize: Whether vectors are L2-normalized by default.
        max_len: The maximum number of tokens, special tokens included.
    """

    def __init__(
        self, model: Transformer, tokenizer: Tokenizer, pooling: PoolingConfig | None = None
    ):
        """Make an embedder.

        Args:
            model: An encoder-only model.
            tokenizer: Its tokenizer.
            pooling: The pooling stored with the model; by default mean pooling, not normalized.

        Raises:
            QkvError: The maximum length leaves no room for a token.
        """
        self.model, self.tokenizer = model.eval(), tokenizer
        self.template = encoder_template(tokenizer)
        stored = pooling or PoolingConfig()
        self.pooling, self.normalize = stored.pooling, stored.normalize
        self.max_len = min(stored.max_len or model.spec.max_len, model.spec.max_len)
        if self.max_len <= self.template.size:
            raise QkvError(
                "max_len",
                _("{max_len} tokens", max_len=self.max_len),
                _("use more than {n_special_tokens}", n_special_tokens=self.template.size),
            )

    @classmethod
    def load(cls, folder: str | Path, device: str = "cpu") -> "Embedder":
        """Load the embedder of a model folder.

        Args:
            folder: A folder written by qkv or Hugging Face.
            device: A torch device, such as "cpu" or "cuda".

        Raises:
            QkvError: The folder is damaged or holds another kind of model.
        """
        return cls.of(load_folder(folder, device), folder)

    @classmethod
    def of(cls, loaded: LoadedModel, folder: str | Path) -> "Embedder":
        """Make the embedder of a loaded folder.

        Args:
            loaded: The model with its tokenizer.
            folder: The name of the folder in errors.

        Raises:
            QkvError: It is another kind of model.
        """
        if loaded.model.encoder is None or loaded.model.decoder is not None:
            raise QkvError(folder, _("not an embedding model"), _("use an encoder-only model"))
        if "tokenizer" not in loaded.tokenizers:
            raise QkvError(folder, _("no tokenizer.json"), _("is the copy complete?"))
        return cls(loaded.model, loaded.tokenizers["tokenizer"], loaded.pooling)

    def save(self, folder: str | Path) -> None:
        """Write a folder that `qkv.load` reads.

        Args:
            folder: The folder; it is created.
        """
        stored = PoolingConfig(self.pooling, self.normalize, self.max_len)
        save_model(folder, self.model, {"tokenizer": self.tokenizer}, stored_files(pooling=stored))

    @property
    def d_model(self) -> int:
        """The width of the model, and of its vectors unless `dimensions` is smaller."""
        return self.model.spec.d_model

    @cached_property
    def fingerprint(self) -> str:
        """A SHA-256 of the weights and the tokenizer; half precision is hashed as float32."""
        digest = hashlib.sha256(self.tokenizer.fingerprint.encode())
        for name, weight in sorted(self.model.state_dict().items()):
            digest.update(name.encode())
            weight = weight.detach().float() if weight.dtype in HALF_DTYPES else weight.detach()
            digest.update(weight.cpu().contiguous().numpy().data)
        return digest.hexdigest()

    def __call__(
        self,
        texts: str | Sequence[str],
        pooling: str | None = None,
        normalize: bool | None = None,
        dimensions: int | None = None,
        **settings: Any,
    ) -> np.ndarray:
        """Embed a text, or each of a list of texts.

        Args:
            texts: One text or several.
            pooling: cls, mean or max.
            normalize: Whether to L2-normalize the vectors.
            dimensions: Keep only the first dimensions (Matryoshka).
            settings: Other fields of EmbedOptions, such as truncation="chunk".

        Returns:
            Vectors in float32: (dimensions,) for a str, (texts, dimensions) for a list.

        Raises:
            QkvError: A text is empty or not a str, or an option is unknown or out of range.
        """
        options = with_settings(
            EmbedOptions, EmbedOptions(pooling, normalize, dimensions), settings
        )
        if isinstance(texts, str):
            return self.embed([texts], options)[0]
        return self.embed(texts, options)

    def embed(
        self,
        texts: Sequence[str],
        options: EmbedOptions | None = None,
        progress: Progress | None = None,
        file: str = "",
        first_line: int = 1,
    ) -> np.ndarray:
        """Embed texts.

        Args:
            texts: The texts.
            options: Pooling, normalization and truncation.
            progress: Called after each batch with the number of rows done and in total.
            file: The file of the texts, for error messages.
            first_line: The line of the first text, for error messages.

        Returns:
            Vectors in float32, (texts, dimensions).
        """
        texts = check_texts("texts", texts)
        options = with_settings(EmbedOptions, options, {})
        options.check(self.d_model)
        rows, owners = self._rows(texts, options.truncation, Location(file, first_line))
        vectors = self._pooled(rows, options, progress)
        if len(rows) > len(texts):
            n_tokens = [len(row) - self.template.size for row in rows]
            vectors = average_chunks(vectors, owners, n_tokens)
        vectors = vectors[:, : options.dimensions]
        if self.normalize if options.normalize is None else options.normalize:
            vectors = torch.nn.functional.normalize(vectors, dim=-1)
        return vectors.numpy()

    def embed_lines(
        self,
        lines: Iterator[str],
        file: str,
        options: EmbedOptions | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> Iterator[tuple[list[str], np.ndarray]]:
        """Embed the lines of a file of any size.

        Args:
            lines: The lines.
            file: The name of the file, for error messages.
            options: Pooling, normalization and truncation.
            progress: Called after each batch with the number of lines done.

        Yields:
            Some lines and their vectors, (lines, dimensions).
        """
        options, done = options or EmbedOptions(), 0
        while texts := list(islice(lines, BATCHES_READ_AHEAD * options.batch_size)):

            def report(rows: int, total: int, before: int = done, size: int = len(texts)) -> None:
                if progress is not None:
                    progress(before + rows * size // total)

            yield texts, self.embed(texts, options, report, file, done + 1)
            done += len(texts)

    def _rows(
        self, texts: Sequence[str], truncation: str, location: Location
    ) -> tuple[list[list[int]], list[int]]:
        """Return the encoder inputs, and the index of the text of each; several if chunked."""
        max_tokens, rows, owners, too_long = self.max_len - self.template.size, [], [], []
        for index, ids in enumerate(self.tokenizer.encode_batch(texts)):
            if not ids or not texts[index].strip():
                raise empty_text_error(location.of(index))
            if len(ids) > max_tokens:
                too_long.append((index, len(ids)))
            for start in range(0, len(ids) if truncation == "chunk" else 1, max_tokens):
                rows.append(self.template.around(ids[start : start + max_tokens]))
                owners.append(index)
        if too_long and truncation == "truncate":
            log.warning(truncation_warning(too_long, max_tokens, location))
        return rows, owners

    def _pooled(
        self, rows: list[list[int]], options: EmbedOptions, progress: Progress | None
    ) -> Tensor:
        """Return the vector of each row, (rows, d_model)."""
        encoder, device = make_encoder(self.model), self.model.embed.weight.device
        pooled, done = torch.empty(len(rows), self.d_model), 0
        with eval_mode(self.model):
            for batch in length_sorted_batches(rows, options.batch_size):
                ids = torch.tensor([id for n in batch for id in rows[n]], device=device)
                groups = length_groups([len(rows[n]) for n in batch])
                pooling = options.pooling or self.pooling
                vectors = pool_groups(encoder(ids, groups), groups, pooling)
                pooled[batch] = vectors.to("cpu", torch.float32)
                done += len(batch)
                if progress is not None:
                    progress(done, len(rows))
        return pooled
