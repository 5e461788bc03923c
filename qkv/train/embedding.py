"""Embedding task: masked language modeling (MLM) in the first steps, then contrastive learning.

Validation measures retrieval (recall@1) on held-out groups. See docs/guides/embeddings.md,
"Training".
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from typing import Any, NamedTuple

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
from qkv.model.transformer import Transformer
from qkv.text.special_tokens import encoder_template
from qkv.text.tokenizer import Tokenizer
from qkv.train.contrastive import MiniBatches, contrastive_loss, group_labels, mini_batches
from qkv.train.masking import MaskedBatch, Masking
from qkv.train.recipe import EmbedRecipe
from qkv.train.seeds import derive_seed
from qkv.train.task import FinalEvaluation, Pipeline, Task, with_mask
from qkv.train.task_specs import embedding_spec

VALID_MLM_BATCHES = 16  # MLM batches in a validation


class GroupData(NamedTuple):
    """Groups of sentences and the ids of all their sentences."""

    groups: GroupStore
    ids: Store


@dataclass(frozen=True)
class ContrastiveBatch:
    """Sentences to encode, the positive pairs among them, and the label of each."""

    mini_batches: MiniBatches
    pairs: Tensor  # (pairs, 2): row numbers of the sentences
    labels: Tensor  # (sentences,)


@dataclass(eq=False)
class EmbeddingTask(Task):
    """Training of a sentence encoder on groups of sentences, and by MLM on plain texts."""

    recipe: EmbedRecipe
    train: GroupData
    valid: GroupData  # held out
    plain: Store | None  # texts for MLM, None without MLM
    tokenizer: Tokenizer  # must have padding, [CLS] and [SEP]

    metric = "recall_at_1"

    def __post_init__(self) -> None:
        recipe, tokenizer = self.recipe, self.tokenizer
        self.tokenizers = {"tokenizer": tokenizer}
        self.pretraining_steps = recipe.mlm_steps  # they do not train retrieval
        self.spec = embedding_spec(recipe.model, tokenizer.vocab_size, recipe.mlm_steps > 0)
        self.metadata = {"pooling": PoolingConfig(recipe.pooling, True, self.spec.max_len)}
        assert tokenizer.pad_id is not None
        self.pad, self.template = tokenizer.pad_id, encoder_template(tokenizer)
        self.max_tokens = self.spec.max_len - self.template.size
        self.plan = GroupPlan(
            self.train.groups.members.lengths,
            recipe.batch_groups,
            recipe.seed,
            recipe.texts_per_group,
        )
        if self.plain is not None:
            lengths = self.plain.lengths + self.template.size
            self.masking = Masking(tokenizer, recipe.mlm_probability, recipe.whole_word_mask)
            self.text_plan = BatchPlan(
                lengths, np.zeros_like(lengths), recipe.batch_tokens, recipe.seed, self.spec.max_len
            )

    # ── batches ──────────────────────────────────────────────────────────────────────────────────
    def batch(self, micro_step: int) -> MaskedBatch | ContrastiveBatch:
        """An MLM batch in the first steps, a contrastive batch in the others."""
        mlm_batches = self.recipe.mlm_steps * self.recipe.gradient_accumulation_steps
        if micro_step < mlm_batches:
            assert self.plain is not None
            rows = self.text_plan.batch(micro_step)
            seed = derive_seed(self.recipe.seed, micro_step, 0, 1)  # process 0 of 1
            return self._masked(self.plain.take(rows), seed)
        return self._contrastive_batch(*self.plan.batch(micro_step - mlm_batches))

    def _masked(self, rows: Sequence[np.ndarray], seed: int) -> MaskedBatch:
        ids = collate(self._with_template(rows), self.pad)
        return self.masking(ids, torch.Generator().manual_seed(seed))

    def _contrastive_batch(self, rows: np.ndarray, members: np.ndarray) -> ContrastiveBatch:
        """The batch of these groups; `members` (groups, texts) index their sentences, -1: none."""
        groups = self.train.groups
        chosen = [
            sentences[own[own >= 0]]
            for sentences, own in zip(groups.members.take(rows), members, strict=True)
        ]
        negatives = np.concatenate(groups.negatives.take(rows))  # each is a group of its own
        sentences = self._with_template(self.train.ids.take(np.concatenate([*chosen, negatives])))
        owners = [group for group, own in enumerate(chosen) for _ in own]
        owners += range(len(rows), len(rows) + len(negatives))
        ends = np.cumsum([0, *map(len, chosen)]).tolist()
        pairs = [
            pair for start, end in pairwise(ends) for pair in combinations(range(start, end), 2)
        ]
        return ContrastiveBatch(
            mini_batches(sentences, self.recipe.mini_batch_size, self.pad),
            torch.tensor(pairs),
            group_labels(sentences, owners),
        )

    def _with_template(self, rows: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Each sentence truncated to the model's length, with special tokens."""
        return [np.array(self.template.around(row[: self.max_tokens])) for row in rows]

    def sizes(self, batch: MaskedBatch | ContrastiveBatch) -> tuple[int, int]:
        """The number of predicted tokens or positive pairs, and of tokens without padding."""
        if isinstance(batch, MaskedBatch):
            return int(batch.selected.sum()), int(batch.ids.ne(self.pad).sum())
        return len(batch.pairs), sum(int(ids.ne(self.pad).sum()) for ids in batch.mini_batches.ids)

    # ── losses ───────────────────────────────────────────────────────────────────────────────────
    def loss(self, model: Transformer, batch: MaskedBatch | ContrastiveBatch) -> Tensor:
        """MLM cross-entropy or contrastive loss, summed over the batch."""
        if isinstance(batch, MaskedBatch):
            loss = self._mlm_loss(model, batch)
            self.measured = {"mlm_loss": loss.detach()}
            return loss
        vectors = self._vectors(model, batch.mini_batches)
        loss = contrastive_loss(vectors, batch.pairs, batch.labels, self.recipe.temperature)
        self.measured = {"contrastive_loss": loss.detach()}
        return loss

    def _mlm_loss(self, model: Transformer, batch: MaskedBatch) -> Tensor:
        device = model.embed.weight.device
        memory = model.encode(*with_mask(batch.ids, self.pad, device))
        return model.loss(memory.states, batch.targets.to(device), batch.selected.to(device))

    def _vectors(self, model: Transformer, batches: MiniBatches) -> Tensor:
        """The unit vectors of all sentences, (sentences, d_model)."""

        def encode(ids: Tensor, attention_mask: Tensor | None) -> Tensor:
            states = model.encode(ids, attention_mask).states
            return F.normalize(pool(states, attention_mask, self.recipe.pooling), dim=-1)

        device = model.embed.weight.device
        return batches.vectors(encode, device, self.recipe.gradient_checkpointing)

    # ── validation ───────────────────────────────────────────────────────────────────────────────
    @torch.no_grad()
    def validate(self, model: Transformer) -> dict[str, Any]:
        """Recall@1 between first and second sentences of the held-out groups, and the losses."""
        vectors = self._held_out_vectors(model)  # (2 groups, d_model)
        if not bool(vectors.isfinite().all()):  # NaN has no nearest neighbor
            return {"loss": math.nan}
        forward, backward = recall_at_1(*(side.cpu().numpy() for side in vectors.chunk(2)))
        n = len(vectors) // 2
        pairs = torch.arange(n)[:, None] + torch.tensor([0, n])  # (groups, 2)
        loss = contrastive_loss(vectors, pairs, torch.arange(n).repeat(2), self.recipe.temperature)
        metrics = {
            "loss": float(loss) / n,
            "recall_at_1": (forward + backward) / 2,
            "recall_at_1_forward": forward,
            "recall_at_1_backward": backward,
        }
        return metrics | self._held_out_mlm_loss(model)

    def _held_out_vectors(self, model: Transformer) -> Tensor:
        """The vectors of all first sentences, then of all second ones."""
        rows = self._with_template(self.valid.ids.take(self._held_out_pairs().ravel()))
        return self._vectors(model, mini_batches(rows, self.recipe.mini_batch_size, self.pad))

    def _held_out_pairs(self) -> np.ndarray:
        """The indices of the first and of the second sentence of each group, (2, groups)."""
        members = self.valid.groups.members
        return np.array([members[row][:2] for row in range(len(members))]).T

    def _held_out_mlm_loss(self, model: Transformer) -> dict[str, float]:
        """The MLM loss of held-out sentences, with the same masks in every validation."""
        if self.plain is None:
            return {}
        total, count, n_texts = 0.0, 0.0, len(self.valid.ids)
        rows = np.array_split(np.arange(n_texts), max(1, n_texts // self.recipe.mini_batch_size))
        for number, chunk in enumerate(rows[:VALID_MLM_BATCHES]):
            batch = self._masked(self.valid.ids.take(chunk), seed=number)
            total += float(self._mlm_loss(model, batch))
            count += float(batch.selected.sum())
        return {"mlm_loss": total / max(1.0, count)}

    def evaluation_tokens(self) -> tuple[float, float]:
        """Vectors of the held-out sentences, and their MLM loss in a validation."""
        n_tokens = float((self.valid.ids.lengths + self.template.size).sum()) / 3
        return n_tokens * (1 if self.plain is None else 2), n_tokens

    def evaluate(self, pipeline: Pipeline) -> FinalEvaluation:
        """Retrieval between the sentences of the held-out groups, with the published model."""
        groups = self.valid.groups
        firsts, seconds = map(groups.texts.take, self._held_out_pairs())
        first, second = pipeline(firsts), pipeline(seconds)
        forward, backward = recall_at_1(first, second)
        recall = _(
            "recall@1 among {n_groups:,}: {forward:.1%} forward, {backward:.1%} backward",
            n_groups=len(groups),
            forward=forward,
            backward=backward,
        )
        nearest = seconds[int((first[0] @ second.T).argmax())]
        numbers = ", ".join(f"{number:.3f}" for number in first[0][:4])
        return FinalEvaluation(
            data={
                _("groups"): len(self.train.groups),
                _("sentences"): len(self.train.ids),
                _("held out"): len(groups),
                _("vocabulary"): self.spec.vocab_size,
            },
            scores={_("held out, nearest by cosine"): f"{recall}\n{firsts[0]}\n-> {nearest}"},
            example=(firsts[0], f"[{numbers}, ...]"),
            n_pairs=len(self.train.groups) + len(groups),
        )


def recall_at_1(first: np.ndarray, second: np.ndarray) -> tuple[float, float]:
    """The fraction of sentences whose nearest neighbor is their partner, in both directions."""
    return retrieval(first, second).recall_at[1], retrieval(second, first).recall_at[1]
