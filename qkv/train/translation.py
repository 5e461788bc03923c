"""Translation task: teacher forcing on sentence pairs; validation measures the loss and BLEU.

See docs/training.md, "Translation".
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from qkv.data.alignments import gold_weights
from qkv.data.batches import BatchPlan, Lengths, PairBatch, RoundRobinPlan, collate, pair_batch
from qkv.data.store import Store
from qkv.evaluate.scores import score
from qkv.generate.decode import greedy
from qkv.messages import _
from qkv.model.guided import AlignmentHead, GuidedCore, core_path, guide, guided_loss
from qkv.model.spec import Spec
from qkv.model.transformer import Transformer
from qkv.text.tokenizer import Tokenizer
from qkv.train.recipe import TranslateRecipe
from qkv.train.task import FinalEvaluation, new_model
from qkv.train.task_specs import translation_spec

VALID_BATCH_TOKENS = 8_192  # larger than in training: a validation needs no gradients


@dataclass(frozen=True)
class PairData:
    """A parallel corpus: ids (one or more encodings) and texts."""

    sources: tuple[Store, ...]
    targets: tuple[Store, ...]
    source_texts: Any
    target_texts: Any
    token_links: tuple[Store, ...] = ()  # of each encoding, if there are word alignments

    def lengths(self, variant: int) -> Lengths:
        """Lengths of both sides with their special token."""
        return self.sources[variant].lengths + 1, self.targets[variant].lengths + 1


class TranslationTask:
    """Training of an encoder-decoder.

    Args:
        recipe: The options.
        train: The pairs to train on.
        valid: The held-out pairs.
        source: The tokenizer of the source.
        target: The tokenizer of the target; it may be the same.
    """

    pretraining_steps = 0

    def __init__(
        self,
        recipe: TranslateRecipe,
        train: PairData,
        valid: PairData,
        source: Tokenizer,
        target: Tokenizer,
    ):
        self.recipe, self.train, self.valid = recipe, train, valid
        self.source, self.target = source, target
        by_bleu = recipe.valid_bleu and recipe.metric_for_best_model == "bleu"
        self.metric: str | None = "bleu" if by_bleu else None
        assert target.pad_id is not None and target.bos_id is not None and target.eos_id is not None
        self.pad, self.bos, self.eos = target.pad_id, target.bos_id, target.eos_id
        assert (source.pad_id, source.eos_id) == (self.pad, self.eos), (
            "both vocabularies have the same special tokens"
        )
        self.plan = RoundRobinPlan(
            train.lengths, len(train.sources), recipe.batch_tokens, recipe.seed, self.spec.max_len
        )
        self.valid_plan = BatchPlan(
            *valid.lengths(0), VALID_BATCH_TOKENS, seed=0, max_len=self.spec.max_len
        )

    @cached_property
    def spec(self) -> Spec:
        """The model to train, with the vocabularies of the tokenizers."""
        shared = self.source.fingerprint == self.target.fingerprint
        sizes = self.target.vocab_size, None if shared else self.source.vocab_size
        return translation_spec(self.recipe.model, *sizes)

    @property
    def tokenizers(self) -> dict[str, Tokenizer]:
        """The tokenizers saved with the weights, by file name."""
        if self.source.fingerprint == self.target.fingerprint:
            return {"tokenizer": self.target}
        return {"source": self.source, "target": self.target}

    @property
    def alignment_head(self) -> AlignmentHead | None:
        """The head of guided alignment: head 0 of the last but one decoder layer."""
        assert self.spec.decoder is not None
        return (
            AlignmentHead(max(0, len(self.spec.decoder.each_layer()) - 2), 0)
            if self.train.token_links
            else None
        )

    @property
    def metadata(self) -> dict[str, Any]:
        return {"alignment": self.alignment_head}

    def initial_model(self) -> Transformer:
        model = new_model(self)
        if self.alignment_head:
            guide(model, self.alignment_head)
        return model

    def rows(self, micro_step: int, rank: int = 0, world_size: int = 1) -> np.ndarray:
        """The row numbers of the pairs of this micro-batch."""
        return self.plan.batch(micro_step, rank, world_size)

    def batch(self, micro_step: int, rank: int = 0, world_size: int = 1) -> PairBatch:
        """A micro-batch; with BPE-dropout each epoch uses another encoding of the sentences."""
        return self._pairs(
            self.train,
            self.plan.variant(micro_step, rank, world_size),
            self.rows(micro_step, rank, world_size),
        )

    def _pairs(self, data: PairData, variant: int, rows: np.ndarray) -> PairBatch:
        sources, targets = data.sources[variant].take(rows), data.targets[variant].take(rows)
        batch = pair_batch(sources, targets, self.pad, self.bos, self.eos)
        if not data.token_links:
            return batch
        return replace(
            batch,
            gold=gold_weights(
                data.token_links[variant].take(rows),
                batch.target_in.shape[1],
                batch.source.shape[1],
            ),
        )

    def sizes(self, batch: PairBatch) -> tuple[int, int]:
        """The number of target tokens, and the number of tokens of both sides, without padding."""
        predicted = int(batch.target_out.ne(self.pad).sum())
        return predicted, predicted + int(batch.source.ne(self.pad).sum())

    def loss(
        self, model: Transformer, batch: PairBatch, label_smoothing: float | None = None
    ) -> Tensor:
        """The summed cross-entropy of all target tokens (teacher forcing)."""
        smoothing = self.recipe.label_smoothing if label_smoothing is None else label_smoothing
        device = model.embed.weight.device
        if self.recipe.r_drop and model.training:
            return self._r_drop_loss(model, batch, smoothing)
        memory = model.encode(*_with_mask(batch.source, self.pad, device))
        # Padding is on the right, where the causal mask hides it; it is excluded from the loss.
        stream = model.decode(batch.target_in.to(device), memory)
        return model.loss(
            stream, *_with_mask(batch.target_out, self.pad, device), smoothing
        ) + self._alignment_loss(model, batch.gold)

    def _alignment_loss(self, model: Transformer, gold: Tensor | None) -> Tensor | float:
        """Guided alignment: weighted cross-entropy of the head's weights."""
        if gold is None or not model.training or self.alignment_head is None:
            return 0.0
        core = model.get_submodule(core_path(self.alignment_head.layer))
        assert isinstance(core, GuidedCore)
        return self.recipe.guided_alignment_weight * guided_loss(
            core.take_log_weights(), gold.to(model.embed.weight.device)
        )

    def _r_drop_loss(self, model: Transformer, batch: PairBatch, smoothing: float) -> Tensor:
        """R-Drop: half of (CE + CE + weight / 2 (KL + KL)) of two passes with different dropout."""
        device = model.embed.weight.device
        source, target_in, target_out = (
            torch.cat([ids, ids]).to(device)
            for ids in (batch.source, batch.target_in, batch.target_out)
        )
        memory = model.encode(*_with_mask(source, self.pad, device))
        stream = model.decode(target_in, memory)
        loss = model.loss(
            stream, target_out, target_out.ne(self.pad), smoothing, r_drop=self.recipe.r_drop
        )
        return (
            loss
            + self._alignment_loss(
                model, None if batch.gold is None else torch.cat([batch.gold, batch.gold])
            )
        ) / 2

    @torch.no_grad()
    def validate(self, model: Transformer) -> dict[str, Any]:
        """Loss and perplexity of the held-out pairs; with `valid_bleu` also BLEU and samples."""
        total = count = 0.0
        for rows in self.valid_plan.epoch(0):
            batch = self._pairs(self.valid, 0, rows)
            total += float(self.loss(model, batch, label_smoothing=0.0))
            count += self.sizes(batch)[0]
        metrics = {"loss": total / count, "perplexity": math.exp(min(total / count, 50.0))}
        return metrics | self._bleu(model) if self.recipe.valid_bleu else metrics

    def _bleu(self, model: Transformer) -> dict[str, Any]:
        outputs: dict[int, str] = {}
        for rows in self.valid_plan.epoch(0):
            sources = collate(self.valid.sources[0].take(rows), self.pad, last=self.eos)
            ids, attention_mask = _with_mask(sources, self.pad, model.embed.weight.device)
            hypotheses = greedy(
                model,
                ids,
                attention_mask,
                bos_id=self.bos,
                eos_id=self.eos,
                pad_id=self.pad,
                max_target_len=2 * ids.shape[1] + 10,
            )
            outputs.update(zip(rows.tolist(), self.target.decode_batch(hypotheses), strict=True))
        order = sorted(outputs)
        references = [self.valid.target_texts[i] for i in order]
        language, tokenize = self.recipe.target_language or "", self.recipe.bleu_tokenize or ""
        scores = score([outputs[i] for i in order], references, language, tokenize)
        samples = [
            f"{self.valid.source_texts[i]}\n-> {outputs[i]}   ({self.valid.target_texts[i]})"
            for i in order[:3]
        ]
        return {"bleu": scores.bleu, "exact": scores.exact, "samples": samples}

    def evaluate(self, pipeline: Callable[..., Any]) -> FinalEvaluation:
        """BLEU and chrF of the published model on the held-out sentences, with beam search."""
        recipe, sources, references = (
            self.recipe,
            list(self.valid.source_texts),
            list(self.valid.target_texts),
        )
        outputs = pipeline(
            sources, beam_size=recipe.beam_size, length_penalty=recipe.length_penalty
        )
        scores = score(
            outputs, references, recipe.target_language or "", recipe.bleu_tokenize or ""
        )
        return FinalEvaluation(
            data={
                _("pairs"): len(self.train.source_texts),
                _("held out"): len(sources),
                _("vocabulary"): self.spec.vocab_size,
            },
            scores={_("held out, beam {beam_size}", beam_size=recipe.beam_size): str(scores)},
            example=(sources[0], pipeline(sources[:1])[0]),  # with the options of the card
        )


def _with_mask(ids: Tensor, pad: int, device: torch.device) -> tuple[Tensor, Tensor | None]:
    """The ids on the device and their attention mask, None without padding."""
    attention_mask = ids.ne(pad)
    return ids.to(device), None if bool(attention_mask.all()) else attention_mask.to(device)
