"""Translation task: teacher forcing on sentence pairs; validation measures the loss and BLEU.

See docs/explanation/training.md, "Teacher forcing".
"""

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from qkv.data.alignments import gold_weights
from qkv.data.batches import BatchPlan, Lengths, PairBatch, RoundRobinPlan, pair_batch
from qkv.data.store import Store
from qkv.evaluate.scores import Scores, score
from qkv.generate.beam import BeamSearchConfig
from qkv.generate.decode import greedy
from qkv.messages import _
from qkv.model.guided import AlignmentHead, GuidedCore, core_path, guide, guided_loss
from qkv.model.transformer import Transformer
from qkv.text.tokenizer import Tokenizer
from qkv.train.recipe import TranslateRecipe
from qkv.train.task import FinalEvaluation, Pipeline, Task, with_mask
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


@dataclass(eq=False)
class TranslationTask(Task):
    """Training of an encoder-decoder on sentence pairs."""

    recipe: TranslateRecipe
    train: PairData
    valid: PairData  # held out
    source: Tokenizer
    target: Tokenizer  # it may be that of the source

    def __post_init__(self) -> None:
        recipe, train, source, target = self.recipe, self.train, self.source, self.target
        shared = source.fingerprint == target.fingerprint
        self.tokenizers = {"tokenizer": target} if shared else {"source": source, "target": target}
        self.spec = translation_spec(
            recipe.model, target.vocab_size, None if shared else source.vocab_size
        )
        self.metadata = {"alignment": self.alignment_head}
        by_bleu = recipe.valid_bleu and recipe.metric_for_best_model == "bleu"
        self.metric = "bleu" if by_bleu else None
        assert target.pad_id is not None and target.bos_id is not None and target.eos_id is not None
        self.pad, self.bos, self.eos = target.pad_id, target.bos_id, target.eos_id
        assert (source.pad_id, source.eos_id) == (self.pad, self.eos), (
            "both vocabularies have the same special tokens"
        )
        self.plan = RoundRobinPlan(
            train.lengths, len(train.sources), recipe.batch_tokens, recipe.seed, self.spec.max_len
        )
        self.valid_plan = BatchPlan(
            *self.valid.lengths(0), VALID_BATCH_TOKENS, seed=0, max_len=self.spec.max_len
        )

    @property
    def alignment_head(self) -> AlignmentHead | None:
        """The head of guided alignment: head 0 of the last but one decoder layer."""
        if not self.train.token_links:
            return None
        assert self.spec.decoder is not None
        return AlignmentHead(max(0, len(self.spec.decoder.each_layer()) - 2), 0)

    def initial_model(self) -> Transformer:
        model = super().initial_model()
        if self.alignment_head:
            guide(model, self.alignment_head)
        return model

    def rows(self, micro_step: int) -> np.ndarray:
        """The row numbers of the pairs of this micro-batch."""
        return self.plan.batch(micro_step)

    def batch(self, micro_step: int) -> PairBatch:
        """A micro-batch; with BPE-dropout each epoch uses another encoding of the sentences."""
        return self._pairs(self.train, self.plan.variant(micro_step), self.rows(micro_step))

    def _pairs(self, data: PairData, variant: int, rows: np.ndarray) -> PairBatch:
        sources, targets = data.sources[variant].take(rows), data.targets[variant].take(rows)
        batch = pair_batch(sources, targets, self.pad, self.bos, self.eos)
        if not data.token_links:
            return batch
        widths = batch.target_in.shape[1], batch.source.shape[1]
        return replace(batch, gold=gold_weights(data.token_links[variant].take(rows), *widths))

    def sizes(self, batch: PairBatch) -> tuple[int, int]:
        """The number of target tokens, and the number of tokens of both sides, without padding."""
        predicted = int(batch.target_out.ne(self.pad).sum())
        return predicted, predicted + int(batch.source.ne(self.pad).sum())

    def loss(
        self, model: Transformer, batch: PairBatch, label_smoothing: float | None = None
    ) -> Tensor:
        """The summed cross-entropy of all target tokens (teacher forcing).

        With R-Drop: half of (CE + CE + weight / 2 (KL + KL)) of two passes with different dropout.
        """
        smoothing = self.recipe.label_smoothing if label_smoothing is None else label_smoothing
        r_drop = self.recipe.r_drop if model.training else 0.0
        batch, device = batch.twice() if r_drop else batch, model.embed.weight.device
        memory = model.encode(*with_mask(batch.source, self.pad, device))
        # Padding is on the right, where the causal mask hides it; it is excluded from the loss.
        stream = model.decode(batch.target_in.to(device), memory)
        targets = with_mask(batch.target_out, self.pad, device)
        loss, cross_entropy = model.losses(stream, *targets, smoothing, r_drop)
        self.measured = {"cross_entropy": cross_entropy / 2 if r_drop else cross_entropy}
        loss = loss + self._alignment_loss(model, batch.gold)
        return loss / 2 if r_drop else loss

    def _alignment_loss(self, model: Transformer, gold: Tensor | None) -> Tensor | float:
        """Guided alignment: weighted cross-entropy of the head's weights."""
        if gold is None or not model.training or self.alignment_head is None:
            return 0.0
        core = model.get_submodule(core_path(self.alignment_head.layer))
        assert isinstance(core, GuidedCore)
        return self.recipe.guided_alignment_weight * guided_loss(
            core.take_log_weights(), gold.to(model.embed.weight.device)
        )

    @torch.no_grad()
    def validate(self, model: Transformer) -> dict[str, Any]:
        """Loss and perplexity of the held-out pairs; with `valid_bleu` also BLEU and samples."""
        total = count = 0.0
        for rows in self.valid_plan.epoch(0):
            batch = self._pairs(self.valid, 0, rows)
            total += float(self.loss(model, batch, label_smoothing=0.0))
            count += self.sizes(batch)[0]
        metrics = {"loss": total / count, "perplexity": math.exp(min(total / count, 50.0))}
        decodes = self.recipe.valid_bleu and math.isfinite(total)  # NaN logits have no argmax
        return metrics | self._bleu(model) if decodes else metrics

    def _bleu(self, model: Transformer) -> dict[str, Any]:
        outputs: dict[int, str] = {}
        for rows in self.valid_plan.epoch(0):
            sources = [[*ids.tolist(), self.eos] for ids in self.valid.sources[0].take(rows)]
            limits = [2 * max(map(len, sources)) + 10] * len(sources)
            config = BeamSearchConfig(self.bos, self.eos, self.pad)
            hypotheses = greedy(model, sources, config, limits)
            outputs.update(zip(rows.tolist(), self.target.decode_batch(hypotheses), strict=True))
        order, texts, references = sorted(outputs), self.valid.source_texts, self.valid.target_texts
        scores = self._score([outputs[i] for i in order], [references[i] for i in order])
        samples = [f"{texts[i]}\n-> {outputs[i]}   ({references[i]})" for i in order[:3]]
        return {"bleu": scores.bleu, "exact": scores.exact, "samples": samples}

    def _score(self, outputs: list[str], references: list[str]) -> Scores:
        language, tokenize = self.recipe.target_language or "", self.recipe.bleu_tokenize or ""
        return score(outputs, references, language, tokenize)

    def evaluation_tokens(self) -> tuple[float, float]:
        """Greedy decoding in a validation, beam search in the final evaluation."""
        n_tokens = float(sum(map(np.sum, self.valid.lengths(0))))
        decoded = n_tokens if self.recipe.valid_bleu else 0.0
        return n_tokens / 3 + decoded, self.recipe.beam_size * n_tokens

    def evaluate(self, pipeline: Pipeline) -> FinalEvaluation:
        """BLEU and chrF of the published model on the held-out sentences, with beam search."""
        recipe, sources = self.recipe, list(self.valid.source_texts)
        outputs = pipeline(
            sources, beam_size=recipe.beam_size, length_penalty=recipe.length_penalty
        )
        scores = self._score(outputs, list(self.valid.target_texts))
        return FinalEvaluation(
            data={
                _("pairs"): len(self.train.source_texts),
                _("held out"): len(sources),
                _("vocabulary"): self.spec.vocab_size,
            },
            scores={_("held out, beam {beam_size}", beam_size=recipe.beam_size): str(scores)},
            example=(sources[0], pipeline(sources[:1])[0]),  # with the options of the card
            n_pairs=len(self.train.source_texts) + len(sources),
        )
