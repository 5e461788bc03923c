"""The task of sentence vectors: first masked tokens if the recipe says so, then pairs that mean the same.

In: a recipe, groups of sentences, perhaps plain text. Out: for each step a batch and its loss; for each validation how
often a sentence finds its own among all held-out ones. Told in docs/embedding.md, "Training".
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations, pairwise
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from qkv.checkpoint.loaded_model import PoolingConfig
from qkv.data.batches import BatchPlan, collate
from qkv.data.group_plan import GroupPlan
from qkv.data.groups import GroupStore
from qkv.data.store import Store
from qkv.evaluate.similarity import retrieval
from qkv.messages import _
from qkv.model.pooling import pool
from qkv.model.spec import Spec
from qkv.model.transformer import Transformer
from qkv.text.special_tokens import encoder_template
from qkv.text.tokenizer import Tokenizer
from qkv.train.contrast import Chunks, contrastive_loss, cut_chunks, meanings
from qkv.train.luck import luck_at
from qkv.train.masking import Masked, Masking
from qkv.train.recipe import EmbedRecipe
from qkv.train.task import Final, new_model
from qkv.train.task_specs import embedding_spec

VALID_MASKED = 16  # batches of masked tokens in a validation


@dataclass(frozen=True)
class GroupData:
    """Groups of sentences and the ids of all their sentences."""

    groups: GroupStore
    ids: Store


@dataclass(frozen=True)
class MeaningBatch:
    """Sentences to be encoded, which two of them mean the same, and what each means."""

    chunks: Chunks
    pairs: Tensor  # (pairs, 2): places among the sentences
    meaning: Tensor  # (sentences,)


class Embedding:
    """What the loop asks of a task: batches, losses, validation."""

    goal: str | None = "rank1"

    def __init__(
        self,
        recipe: EmbedRecipe,
        train: GroupData,
        valid: GroupData,
        plain: Store | None,
        tokenizer: Tokenizer,
    ):
        self.recipe, self.train, self.valid, self.plain, self.tokenizer = (
            recipe,
            train,
            valid,
            plain,
            tokenizer,
        )
        assert tokenizer.pad_id is not None
        self.pad, self.frame = tokenizer.pad_id, encoder_template(tokenizer)
        self.room = self.spec.max_len - self.frame.size
        self.plan = GroupPlan(
            train.groups.members.lengths, recipe.batch_pairs, recipe.seed, recipe.views
        )
        if plain is not None:
            lengths = plain.lengths + self.frame.size
            self.masking = Masking(tokenizer, recipe.mask_share, recipe.whole_words)
            self.text_plan = BatchPlan(
                lengths, np.zeros_like(lengths), recipe.batch_tokens, recipe.seed, self.spec.max_len
            )

    @property
    def prelude(self) -> int:
        """Masked tokens teach the words; which sentences belong together is learned after them."""
        return self.recipe.masked_steps

    @cached_property
    def spec(self) -> Spec:
        """The encoder to train; only one that guesses tokens needs a head to name them."""
        return embedding_spec(
            self.recipe.model, self.tokenizer.vocab_size, self.recipe.masked_steps > 0
        )

    @property
    def tokenizers(self) -> dict[str, Tokenizer]:
        return {"tokenizer": self.tokenizer}

    @property
    def metadata(self) -> dict[str, Any]:
        return {"pooling": PoolingConfig(self.recipe.pooling, True, self.spec.max_len)}

    def begin(self) -> Transformer:
        return new_model(self)

    # ── batches ──────────────────────────────────────────────────────────────────────────────────────────────────
    def batch(self, micro_step: int, rank: int = 0, world: int = 1) -> Masked | MeaningBatch:
        """Masked tokens in the first steps, groups in the others, each counted from its own beginning."""
        masked = self.recipe.masked_steps * self.recipe.accumulate
        if micro_step < masked:
            return self._masked(micro_step, rank, world)
        rows, places = self.plan.batch(micro_step - masked, rank, world)
        return self._meanings(rows, places)

    def _masked(self, step: int, rank: int, world: int) -> Masked:
        assert self.plain is not None
        rows = self.text_plan.batch(step, rank, world)
        draws = torch.Generator().manual_seed(luck_at(self.recipe.seed, step, rank, world))
        return self.masking(self._collated(self.plain.take(rows)), draws)

    def _meanings(self, rows: np.ndarray, places: np.ndarray) -> MeaningBatch:
        """The batch of these groups; `places` (groups, views) says which sentences speak for each."""
        groups = self.train.groups
        chosen = [
            members[own[own >= 0]]
            for members, own in zip(groups.members.take(rows), places, strict=True)
        ]
        odd = np.concatenate(groups.negatives.take(rows))  # a meaning of its own each
        sentences = self._framed(self.train.ids.take(np.concatenate([*chosen, odd])))
        owners = [group for group, some in enumerate(chosen) for _ in some] + [
            len(rows) + place for place in range(len(odd))
        ]
        ends = np.cumsum([0, *map(len, chosen)]).tolist()
        pairs = [
            pair for start, end in pairwise(ends) for pair in combinations(range(start, end), 2)
        ]
        return MeaningBatch(
            cut_chunks(sentences, self.recipe.chunk, self.pad),
            torch.tensor(pairs),
            meanings(sentences, owners),
        )

    def _framed(self, rows: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Each sentence as the encoder reads it, cut to what it can read."""
        return [np.array(self.frame.around(row[: self.room])) for row in rows]

    def _collated(self, rows: Sequence[np.ndarray]) -> Tensor:
        return collate(self._framed(rows), self.pad)

    def sizes(self, batch: Masked | MeaningBatch) -> tuple[int, int]:
        """What is predicted: tokens, or which sentence belongs to which; and how many tokens are real."""
        if isinstance(batch, Masked):
            return int(batch.chosen.sum()), int(batch.ids.ne(self.pad).sum())
        return len(batch.pairs), sum(int(ids.ne(self.pad).sum()) for ids in batch.chunks.ids)

    # ── losses ───────────────────────────────────────────────────────────────────────────────────────────────────
    def loss(self, model: Transformer, batch: Masked | MeaningBatch) -> Tensor:
        """Summed over all that is predicted."""
        return (
            self._masked_loss(model, batch)
            if isinstance(batch, Masked)
            else self._contrast(model, batch)
        )

    def _masked_loss(self, model: Transformer, batch: Masked) -> Tensor:
        device = model.embed.weight.device
        ids, real = batch.ids.to(device), batch.targets.ne(self.pad).to(device)
        memory = model.encode(ids, None if bool(real.all()) else real)
        return model.loss(memory.states, batch.targets.to(device), batch.chosen.to(device))

    def _contrast(self, model: Transformer, batch: MeaningBatch) -> Tensor:
        device = model.embed.weight.device
        vectors = batch.chunks.vectors(
            self._encoder(model), device, self.recipe.recompute
        )  # (sentences, d_model)
        return contrastive_loss(vectors, batch.pairs, batch.meaning, self.recipe.temperature)

    def _encoder(self, model: Transformer) -> Callable[[Tensor, Tensor | None], Tensor]:
        """ids to vectors of length one."""

        def encode(ids: Tensor, real: Tensor | None) -> Tensor:
            return F.normalize(
                pool(model.encode(ids, real).states, real, self.recipe.pooling), dim=-1
            )

        return encode

    # ── validation ───────────────────────────────────────────────────────────────────────────────────────────────
    @torch.no_grad()
    def validate(self, model: Transformer) -> dict[str, Any]:
        """How often the first sentence of a held-out group finds the second among all, and the other way round."""
        vectors = self._held_out(model)  # (2 groups, d_model)
        there, back = found(*(side.cpu().numpy() for side in vectors.chunk(2)))
        n = len(vectors) // 2
        pairs = torch.arange(n)[:, None] + torch.tensor([0, n])  # (groups, 2)
        loss = contrastive_loss(vectors, pairs, torch.arange(n).repeat(2), self.recipe.temperature)
        figures = {
            "loss": float(loss) / n,
            "rank1": (there + back) / 2,
            "rank1_forth": there,
            "rank1_back": back,
        }
        return figures | self._held_out_tokens(model)

    def _held_out(self, model: Transformer) -> Tensor:
        """The vectors of all firsts, then of all seconds."""
        groups = self.valid.groups
        pairs = np.array([groups.members[row][:2] for row in range(len(groups))])  # (groups, 2)
        rows = self._framed(self.valid.ids.take([*pairs[:, 0], *pairs[:, 1]]))
        chunks = cut_chunks(rows, self.recipe.chunk, self.pad)
        return chunks.vectors(self._encoder(model), model.embed.weight.device, recompute=False)

    def _held_out_tokens(self, model: Transformer) -> dict[str, float]:
        """The loss of guessing tokens of held-out sentences, hidden in the same way each time."""
        if self.plain is None:
            return {}
        total = count = 0.0
        rows = np.array_split(
            np.arange(len(self.valid.ids)), max(1, len(self.valid.ids) // self.recipe.chunk)
        )
        for number, some in enumerate(rows[:VALID_MASKED]):
            batch = self.masking(
                self._collated(self.valid.ids.take(some)), torch.Generator().manual_seed(number)
            )
            total += float(self._masked_loss(model, batch))
            count += float(batch.chosen.sum())
        return {"masked_loss": total / max(1.0, count)}

    def final(self, use: Callable[..., Any]) -> Final:
        """Ask the published model, as people do, which held-out sentence belongs to which."""
        groups = self.valid.groups
        firsts, seconds = (
            groups.texts.take(groups.members[row][side] for row in range(len(groups)))
            for side in (0, 1)
        )
        first, second = use(firsts), use(seconds)
        there, back = found(first, second)
        told = _(
            "rank 1 among {n_groups:,}: {there:.1%} there, {back:.1%} back",
            n_groups=len(groups),
            there=there,
            back=back,
        )
        nearest = seconds[int((first[0] @ second.T).argmax())]
        shown = ", ".join(f"{number:.3f}" for number in first[0][:4])
        return Final(
            data={
                _("groups"): len(self.train.groups),
                _("sentences"): len(self.train.ids),
                _("held out"): len(groups),
                _("vocabulary"): self.spec.vocab_size,
            },
            scores={_("held out, nearest by cosine"): f"{told}\n{firsts[0]}\n-> {nearest}"},
            example=(firsts[0], f"[{shown}, ...]"),
        )


def found(first: np.ndarray, second: np.ndarray) -> tuple[float, float]:
    """The share of sentences nearest to their own partner among all, in both directions."""
    return retrieval(first, second).at[1], retrieval(second, first).at[1]
