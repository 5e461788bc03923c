"""The task of translation: its data, its loss, its validation.

In: a recipe with two aligned files. Out: for each step a batch and its loss (teacher forcing: all positions at once,
thanks to the mask); for each validation the loss and BLEU. Told in docs/training.md, "Translation".
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
from qkv.data.batches import BatchPlan, Lengths, PairBatch, TurnPlan, collate, pair_batch
from qkv.data.store import Store
from qkv.evaluate.scores import score
from qkv.generate.decode import greedy
from qkv.messages import _
from qkv.model.guided import AlignmentHead, GuidedCore, core_path, guide, guided_loss
from qkv.model.spec import Spec
from qkv.model.transformer import Transformer
from qkv.text.tokenizer import Tokenizer
from qkv.train.recipe import TranslateRecipe
from qkv.train.task import Final, new_model
from qkv.train.task_specs import translation_spec

VALID_TOKENS = 8_192  # a validation batch needs no gradients, so it may be larger


@dataclass(frozen=True)
class PairData:
    """One side-by-side corpus as ids (one or more encodings of it), and its texts for the score."""

    sources: tuple[Store, ...]
    targets: tuple[Store, ...]
    source_texts: Any
    target_texts: Any
    token_links: tuple[Store, ...] = ()  # of each encoding, where there are word alignments

    def lengths(self, variant: int) -> Lengths:
        """Of both sides in a batch, where each has a special token more."""
        return self.sources[variant].lengths + 1, self.targets[variant].lengths + 1


class Translation:
    """What the loop asks of a task: batches, losses, validation."""

    prelude = 0

    def __init__(
        self,
        recipe: TranslateRecipe,
        train: PairData,
        valid: PairData,
        source: Tokenizer,
        target: Tokenizer,
    ):
        self.recipe, self.train, self.valid, self.source, self.target = (
            recipe,
            train,
            valid,
            source,
            target,
        )
        self.goal = "bleu" if recipe.valid_bleu and recipe.best_by == "bleu" else None
        assert target.pad_id is not None and target.bos_id is not None and target.eos_id is not None
        self.pad, self.bos, self.eos = target.pad_id, target.bos_id, target.eos_id
        assert (source.pad_id, source.eos_id) == (self.pad, self.eos), (
            "both vocabularies begin alike"
        )
        self.plan = TurnPlan(
            train.lengths, len(train.sources), recipe.batch_tokens, recipe.seed, self.spec.max_len
        )
        self.valid_plan = BatchPlan(
            *valid.lengths(0), VALID_TOKENS, seed=0, max_len=self.spec.max_len
        )

    @cached_property
    def spec(self) -> Spec:
        """The model to train; its vocabularies are those that were learned."""
        shared = self.source.fingerprint == self.target.fingerprint
        sizes = self.target.vocab_size, None if shared else self.source.vocab_size
        return translation_spec(self.recipe.model, *sizes)

    @property
    def tokenizers(self) -> dict[str, Tokenizer]:
        """As they are saved beside the weights."""
        if self.source.fingerprint == self.target.fingerprint:
            return {"tokenizer": self.target}
        return {"source": self.source, "target": self.target}

    @property
    def alignment_head(self) -> AlignmentHead | None:
        """The head that learns the alignments: the first of the last decoder layer but one, if there are alignments."""
        assert self.spec.decoder is not None
        return (
            AlignmentHead(max(0, len(self.spec.decoder.each_layer()) - 2), 0)
            if self.train.token_links
            else None
        )

    @property
    def metadata(self) -> dict[str, Any]:
        return {"alignment": self.alignment_head}

    def begin(self) -> Transformer:
        model = new_model(self)
        if self.alignment_head:
            guide(model, self.alignment_head)
        return model

    def rows(self, micro_step: int, rank: int = 0, world: int = 1) -> np.ndarray:
        """Which pairs make this micro-batch: the order of training."""
        return self.plan.batch(micro_step, rank, world)

    def batch(self, micro_step: int, rank: int = 0, world: int = 1) -> PairBatch:
        """A micro-batch; with BPE-dropout each epoch reads another encoding of the same sentences."""
        return self._pairs(
            self.train,
            self.plan.variant(micro_step, rank, world),
            self.rows(micro_step, rank, world),
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
        """How many tokens are to be predicted, and how many tokens of both sides are real."""
        predicted = int(batch.target_out.ne(self.pad).sum())
        return predicted, predicted + int(batch.source.ne(self.pad).sum())

    def loss(
        self, model: Transformer, batch: PairBatch, label_smoothing: float | None = None
    ) -> Tensor:
        """The summed cross-entropy of all target tokens, each predicted from the true ones before it."""
        smoothing = self.recipe.label_smoothing if label_smoothing is None else label_smoothing
        device = model.embed.weight.device
        if self.recipe.r_drop and model.training:
            return self._agreeing_loss(model, batch, smoothing)
        memory = model.encode(*_moved(batch.source, self.pad, device))
        # Padding stands on the right, so the causal mask hides it already; its own rows are left out of the loss.
        stream = model.decode(batch.target_in.to(device), memory)
        return model.loss(
            stream, *_moved(batch.target_out, self.pad, device), smoothing
        ) + self._alignment_loss(model, batch.gold)

    def _alignment_loss(self, model: Transformer, gold: Tensor | None) -> Tensor | float:
        """Guided alignment: the weighted cross-entropy between the alignments and the weights of the guided head."""
        if gold is None or not model.training or self.alignment_head is None:
            return 0.0
        core = model.get_submodule(core_path(self.alignment_head.layer))
        assert isinstance(core, GuidedCore)
        return self.recipe.guided_alignment_weight * guided_loss(
            core.take_log_weights(), gold.to(model.embed.weight.device)
        )

    def _agreeing_loss(self, model: Transformer, batch: PairBatch, smoothing: float) -> Tensor:
        """R-Drop: two passes with other dropout should agree; half of (CE + CE + weight / 2 (KL + KL)), as published."""
        device = model.embed.weight.device
        source, target_in, target_out = (
            torch.cat([one, one]).to(device)
            for one in (batch.source, batch.target_in, batch.target_out)
        )
        memory = model.encode(*_moved(source, self.pad, device))
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
        """Loss and perplexity on the held-out pairs; BLEU and a few translations if the recipe wants them."""
        total = count = 0.0
        for rows in self.valid_plan.epoch(0):
            batch = self._pairs(self.valid, 0, rows)
            total += float(self.loss(model, batch, label_smoothing=0.0))
            count += self.sizes(batch)[0]
        figures = {"loss": total / count, "perplexity": math.exp(min(total / count, 50.0))}
        return figures | self._bleu(model) if self.recipe.valid_bleu else figures

    def _bleu(self, model: Transformer) -> dict[str, Any]:
        outputs: dict[int, str] = {}
        for rows in self.valid_plan.epoch(0):
            sources = collate(self.valid.sources[0].take(rows), self.pad, last=self.eos)
            ids, real = _moved(sources, self.pad, model.embed.weight.device)
            found = greedy(
                model,
                ids,
                real,
                bos_id=self.bos,
                eos_id=self.eos,
                pad_id=self.pad,
                max_len=2 * ids.shape[1] + 10,
            )
            outputs.update(zip(rows.tolist(), self.target.decode_batch(found), strict=True))
        order = sorted(outputs)
        references = [self.valid.target_texts[i] for i in order]
        language, tokenize = self.recipe.target_language or "", self.recipe.bleu_tokenize or ""
        scores = score([outputs[i] for i in order], references, language, tokenize)
        samples = [
            f"{self.valid.source_texts[i]}\n-> {outputs[i]}   ({self.valid.target_texts[i]})"
            for i in order[:3]
        ]
        return {"bleu": scores.bleu, "exact": scores.exact, "samples": samples}

    def final(self, use: Callable[..., Any]) -> Final:
        """Translate the held-out sentences with the published model, by beam search."""
        recipe, sources, references = (
            self.recipe,
            list(self.valid.source_texts),
            list(self.valid.target_texts),
        )
        outputs = use(sources, beam_size=recipe.beam_size, length_penalty=recipe.length_penalty)
        scores = score(
            outputs, references, recipe.target_language or "", recipe.bleu_tokenize or ""
        )
        return Final(
            data={
                _("pairs"): len(self.train.source_texts),
                _("held out"): len(sources),
                _("vocabulary"): self.spec.vocab_size,
            },
            scores={_("held out, beam {beam_size}", beam_size=recipe.beam_size): str(scores)},
            example=(sources[0], use(sources[:1])[0]),  # as the card's own lines translate it
        )


def _moved(ids: Tensor, pad: int, device: torch.device) -> tuple[Tensor, Tensor | None]:
    """The ids on their device, and what is real among them; None if all is, for then no mask is needed."""
    real = ids.ne(pad)
    return ids.to(device), None if bool(real.all()) else real.to(device)
