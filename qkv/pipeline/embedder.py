"""Sentences in, vectors out: tokenizing, batching, pooling and cutting in one call.

In: a model folder, then texts. Out: a float32 matrix, one row a text, each the same alone and in company.
Told in docs/embedding.md, "Use".
"""

import hashlib
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from qkv.checkpoint.folder import save_model
from qkv.checkpoint.load import HALVES, load_folder
from qkv.checkpoint.loaded_model import LoadedModel, PoolingConfig, stored_files
from qkv.engine.encoder import Groups, groups_of, make_encoder
from qkv.errors import QkvError, near_miss
from qkv.messages import _
from qkv.model.eval_mode import eval_mode
from qkv.model.pooling import POOLINGS, pool
from qkv.model.transformer import Transformer
from qkv.text.lines import no_text
from qkv.text.special_tokens import encoder_template
from qkv.text.tokenizer import Tokenizer

log = logging.getLogger(__name__)

TOKENS = 8_192  # of one pass at most, however many sentences: memory stays bounded
LONG = ("cut", "split")

BATCHES_AT_ONCE = 16  # lines of a file are read so many batches ahead, so that those of one length can go together

Progress = Callable[[int, int], None]  # sentences done, sentences in all


class Place(NamedTuple):
    """Where a text stands, for messages: a file, and the line of the first text."""

    file: str
    first: int

    def of(self, number: int) -> str:
        line = self.first + number
        return (
            _("{file}, line {line}", file=self.file, line=line)
            if self.file
            else _("line {line}", line=line)
        )


@dataclass(frozen=True)
class Wishes:
    """How token vectors become the vector of a sentence; None: as the model was made for."""

    pooling: str | None = None  # cls, mean or max
    normalize: bool | None = None  # to length one
    dimensions: int | None = None  # keep the first ones only
    long: str = "cut"  # what is beyond the model's length: cut, or split into parts and averaged
    batch_size: int = 64  # sentences of one pass

    def check(self, d_model: int) -> None:
        if self.pooling is not None and self.pooling not in POOLINGS:
            raise QkvError(
                "pooling",
                _("no pooling '{pooling}'", pooling=self.pooling),
                near_miss(self.pooling, POOLINGS),
            )
        if self.long not in LONG:
            raise QkvError("long", _("no way '{long}'", long=self.long), near_miss(self.long, LONG))
        if self.dimensions is not None and not 1 <= self.dimensions <= d_model:
            raise QkvError(
                "dimensions",
                _("{dimensions} of {d_model}", dimensions=self.dimensions, d_model=d_model),
                _("use 1 to {d_model}", d_model=d_model),
            )
        if self.batch_size < 1:
            raise QkvError(
                "batch_size",
                _("{batch_size} is too small", batch_size=self.batch_size),
                _("use 1 or more"),
            )


class Embedder:
    """embedder("What is RAG?") is (d_model,); embedder(["What is RAG?"]) is (1, d_model)."""

    def __init__(
        self, model: Transformer, tokenizer: Tokenizer, pooling: PoolingConfig | None = None
    ):
        self.model, self.tokenizer, self.frame = (
            model.eval(),
            tokenizer,
            encoder_template(tokenizer),
        )
        stored = pooling or PoolingConfig()
        self.pooling, self.normalize = stored.pooling, stored.normalize
        self.limit = min(
            stored.max_len or model.spec.max_len, model.spec.max_len
        )  # tokens, [CLS] and [SEP] too
        if self.limit <= self.frame.size:
            raise QkvError(
                "max_len",
                _("{limit} tokens", limit=self.limit),
                _("a sentence needs more than {size}", size=self.frame.size),
            )

    @classmethod
    def load(cls, folder: str | Path, device: str = "cpu") -> "Embedder":
        """The embedder in a model folder, ours or Hugging Face's."""
        return cls.of(load_folder(folder, device), folder)

    @classmethod
    def of(cls, loaded: LoadedModel, folder: str | Path) -> "Embedder":
        """The embedder that a loaded folder holds."""
        if loaded.model.encoder is None or loaded.model.decoder is not None:
            raise QkvError(folder, _("not an embedder"), _("an embedder is an encoder alone"))
        if "tokenizer" not in loaded.tokenizers:
            raise QkvError(folder, _("no tokenizer.json"), _("is the copy complete?"))
        return cls(loaded.model, loaded.tokenizers["tokenizer"], loaded.pooling)

    def save(self, folder: str | Path) -> None:
        """A folder that `qkv.load` reads."""
        stored = PoolingConfig(self.pooling, self.normalize, self.limit)
        save_model(folder, self.model, {"tokenizer": self.tokenizer}, stored_files(pooling=stored))

    @property
    def d_model(self) -> int:
        return self.model.spec.d_model

    @cached_property
    def fingerprint(self) -> str:
        """Equal for equal weights and tokenizers, wherever they lie."""
        whole = hashlib.sha256(self.tokenizer.fingerprint.encode())
        for name, weight in sorted(self.model.state_dict().items()):
            whole.update(name.encode())
            weight = (
                weight.detach().float() if weight.dtype in HALVES else weight.detach()
            )  # as a CPU computes with it
            whole.update(weight.cpu().contiguous().numpy().data)
        return whole.hexdigest()

    def __call__(
        self,
        texts: str | Sequence[str],
        pooling: str | None = None,
        normalize: bool | None = None,
        dimensions: int | None = None,
        **more: Any,
    ) -> np.ndarray:
        """One vector a text; `more` are the other fields of Wishes, such as long="split"."""
        wishes = Wishes(pooling, normalize, dimensions, **more)
        return (
            self.embed([texts], wishes)[0] if isinstance(texts, str) else self.embed(texts, wishes)
        )

    def embed(
        self,
        texts: Sequence[str],
        wishes: Wishes | None = None,
        progress: Progress | None = None,
        file: str = "",
        first: int = 1,
    ) -> np.ndarray:
        """(n, dimensions) float32; messages name a text as this line of this file."""
        wishes = wishes or Wishes()
        wishes.check(self.d_model)
        rows, owners = self._parts(texts, wishes.long, Place(file, first))
        vectors = self._pooled(rows, wishes, progress)
        if len(rows) > len(texts):
            vectors = joined_parts(vectors, owners, [len(row) - self.frame.size for row in rows])
        vectors = vectors[:, : wishes.dimensions]
        if self.normalize if wishes.normalize is None else wishes.normalize:
            vectors = torch.nn.functional.normalize(vectors, dim=-1)
        return vectors.numpy()

    def embed_lines(
        self,
        lines: Iterator[str],
        file: str,
        wishes: Wishes | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> Iterator[tuple[list[str], np.ndarray]]:
        """Lines of a file of any size, some at a time, with their vectors; `progress` hears how many are done."""
        wishes, done = wishes or Wishes(), 0
        while some := list(islice(lines, BATCHES_AT_ONCE * wishes.batch_size)):

            def tell(now: int, of: int, before: int = done, size: int = len(some)) -> None:
                if progress is not None:
                    progress(before + now * size // of)

            yield some, self.embed(some, wishes, tell, file, done + 1)
            done += len(some)

    def _parts(
        self, texts: Sequence[str], long: str, place: Place
    ) -> tuple[list[list[int]], list[int]]:
        """What the encoder reads, and which text each row belongs to; a text within the limit is one row."""
        room, rows, owners, too_long = self.limit - self.frame.size, [], [], []
        for number, ids in enumerate(self.tokenizer.encode_batch(texts)):
            if not ids or not texts[number].strip():
                raise no_text(place.of(number))
            if len(ids) > room:
                too_long.append((number, len(ids)))
            for start in range(0, len(ids) if long == "split" else 1, room):
                rows.append(self.frame.around(ids[start : start + room]))
                owners.append(number)
        if too_long and long == "cut":
            log.warning(_cut(too_long, room, place))
        return rows, owners

    def _pooled(self, rows: list[list[int]], wishes: Wishes, progress: Progress | None) -> Tensor:
        """The vector of each row, (rows, d_model); rows of about one length go together."""
        encoder, device = make_encoder(self.model), self.model.embed.weight.device
        found, done = torch.empty(len(rows), self.d_model), 0
        with eval_mode(self.model):
            for some in passes(rows, wishes.batch_size):
                ids = torch.tensor([id for n in some for id in rows[n]], device=device)
                groups = groups_of([len(rows[n]) for n in some])
                vectors = pool_groups(encoder(ids, groups), groups, wishes.pooling or self.pooling)
                found[some] = vectors.to("cpu", torch.float32)
                done += len(some)
                if progress is not None:
                    progress(done, len(rows))
        return found


def passes(rows: Sequence[Sequence[int]], batch_size: int) -> Iterator[list[int]]:
    """Which rows go through the model together, the longest first: what does not fit is known at once."""
    some: list[int] = []
    tokens = 0
    for n in sorted(range(len(rows)), key=lambda n: -len(rows[n])):
        if some and (len(some) == batch_size or tokens + len(rows[n]) > TOKENS):
            yield some
            some, tokens = [], 0
        some.append(n)
        tokens += len(rows[n])
    if some:
        yield some


def pool_groups(states: Tensor, groups: Groups, how: str) -> Tensor:
    """(tokens, d_model) of sentences laid end to end -> (sentences, d_model)."""
    parts = zip(states.split([rows * length for rows, length in groups]), groups, strict=True)
    return torch.cat([pool(part.unflatten(0, shape), None, how) for part, shape in parts])


def joined_parts(vectors: Tensor, owners: list[int], tokens: list[int]) -> Tensor:
    """The vector of a text in parts is their mean, each part counting by its tokens."""
    weights = torch.tensor(tokens, dtype=vectors.dtype)
    texts = torch.tensor(owners)
    sums = vectors.new_zeros(owners[-1] + 1, vectors.shape[1]).index_add_(
        0, texts, vectors * weights[:, None]
    )
    return sums / weights.new_zeros(len(sums)).index_add_(0, texts, weights)[:, None]


def _cut(too_long: list[tuple[int, int]], room: int, place: Place) -> str:
    """One line for all that was cut: the first is named, the others are counted."""
    number, tokens = too_long[0]
    others = len(too_long) - 1
    more = _(" (and {others:,} more)", others=others) if others else ""
    return _(
        "{number}{more}: {tokens:,} tokens, the model reads {room:,}; the rest is cut (long=split reads it all)",
        number=place.of(number),
        more=more,
        tokens=tokens,
        room=room,
    )
