"""Train small translators for the studies, and translate with them."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from qkv.data.batches import BatchPlan, PairBatch, pair_batch
from qkv.generate.beam import BeamSearchConfig, beam_search
from qkv.generate.decode import greedy
from qkv.messages import N_
from qkv.model.eval_mode import eval_mode
from qkv.model.presets import from_sizes
from qkv.model.spec import Spec
from qkv.model.transformer import Transformer
from qkv.plan.cost import parameters
from qkv.study.language_model import LossOf, new_model, recipe_of, train
from qkv.study.question import Column, Measurement, Trial
from qkv.text.normalization import TokenizerOptions
from qkv.text.tokenizer import Tokenizer
from qkv.text.train_tokenizer import train_tokenizer
from qkv.train.task import with_mask

MAX_LEN = 128
N_LAYERS, N_HEADS = 3, 4
DEVICE = torch.device("cpu")
COST_COLUMNS = (
    Column("parameters", N_("parameters"), ",.0f"),
    Column("tokens", N_("tokens"), ",.0f"),
)


class Sizes(NamedTuple):
    """The width of the model, and the tokens of a training step, padding included."""

    d_model: int
    batch_tokens: int


DEMO, SMALL = Sizes(128, 2_048), Sizes(64, 1_024)  # DEMO: as `qkv demo`


class TextPair(NamedTuple):
    """A sentence and its translation."""

    source: str
    target: str


class Translator(NamedTuple):
    """A model and the tokenizer of both languages."""

    model: Transformer
    tokenizer: Tokenizer

    def batch(self, pairs: Sequence[TextPair]) -> PairBatch:
        """The padded ids of the pairs."""
        tokenizer = self.tokenizer
        sources = tokenizer.encode_batch([pair.source for pair in pairs])
        targets = tokenizer.encode_batch([pair.target for pair in pairs])
        return pair_batch(sources, targets, *special_ids(tokenizer))

    def translate(self, sources: Sequence[str], beam: int = 1) -> list[str]:
        """Translations by greedy decoding, or by beam search."""
        pad, bos, eos = special_ids(self.tokenizer)
        config = BeamSearchConfig(bos, eos, pad, size=beam)
        ids = [[*encoded, eos] for encoded in self.tokenizer.encode_batch(sources)]
        limits = [min(MAX_LEN, 2 * len(source) + 10) for source in ids]
        with eval_mode(self.model):
            if beam == 1:
                found = greedy(self.model, ids, config, limits)
            else:
                found = [best[0].ids for best in beam_search(self.model, ids, config, limits)]
        return self.tokenizer.decode_batch(found)


def special_ids(tokenizer: Tokenizer) -> tuple[int, int, int]:
    """pad, bos, eos."""
    pad, bos, eos = tokenizer.pad_id, tokenizer.bos_id, tokenizer.eos_id
    assert pad is not None and bos is not None and eos is not None
    return pad, bos, eos


# ── Data ──────────────────────────────────────────────────────────────────────────────────────
def read_pairs(path: Path) -> list[TextPair]:
    """The pairs of train.tsv or valid.tsv."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return [TextPair(*line.split("\t")) for line in lines]


def word_tokenizer(pairs: Sequence[TextPair]) -> Tokenizer:
    """A token for each English word and for each Chinese character."""
    texts = [text for pair in pairs for text in pair]
    return train_tokenizer("word", texts, 8_000, TokenizerOptions(split_chinese=True))


# ── Training ──────────────────────────────────────────────────────────────────────────────────
def spec_of(vocab_size: int, d_model: int = DEMO.d_model) -> Spec:
    """The model of `qkv demo`, of any width."""
    return from_sizes("encoder-decoder", vocab_size, d_model, N_LAYERS, N_HEADS, 4 * d_model,
                      dropout=0.05, activation="relu2", bias=False, qk_norm=True,
                      max_len=MAX_LEN)  # fmt: skip


def train_translator(
    pairs: Sequence[TextPair],
    tokenizer: Tokenizer,
    trial: Trial,
    sizes: Sizes = DEMO,
    smoothing: float = 0.0,
) -> tuple[Translator, Measurement]:
    """Train on the pairs; measures the curve and the size."""
    spec = spec_of(tokenizer.vocab_size, sizes.d_model)
    model, recipe = new_model(spec, trial), recipe_of(trial, **demo_options())
    translator = Translator(model, tokenizer)
    loss_of, n_tokens = translation_loss(translator, pairs, trial, sizes.batch_tokens, smoothing)
    curve = train(model, loss_of, recipe, trial)
    return translator, {
        **curve.as_measurement(),
        "parameters": sum(parameters(spec).values()),
        "tokens": sum(n_tokens),
    }


def demo_options() -> dict[str, Any]:
    """The optimizer of `qkv demo`."""
    return {"optimizer": "muon", "muon_lr": 0.02, "lr": 4e-3, "decay_fraction": 0.7}


def translation_loss(
    translator: Translator,
    pairs: Sequence[TextPair],
    trial: Trial,
    batch_tokens: int,
    smoothing: float,
) -> tuple[LossOf, list[int]]:
    """The mean loss of a step, and the list that gets the target tokens of each step."""
    model, tokenizer = translator
    sources = tokenizer.encode_batch([pair.source for pair in pairs])
    targets = tokenizer.encode_batch([pair.target for pair in pairs])
    source_lengths, target_lengths = (
        np.array([len(ids) + 1 for ids in side]) for side in (sources, targets)
    )
    plan = BatchPlan(source_lengths, target_lengths, batch_tokens, trial.seed, MAX_LEN)
    n_tokens: list[int] = []

    def loss_of(step: int) -> Tensor:
        rows = plan.batch(step - 1)
        batch = pair_batch([sources[row] for row in rows], [targets[row] for row in rows],
                           *special_ids(tokenizer))  # fmt: skip
        out, mask = with_mask(batch.target_out, special_ids(tokenizer)[0], DEVICE)
        n_tokens.append(out.numel() if mask is None else int(mask.sum()))
        stream = decode(translator, batch)  # (batch, target, d_model)
        return model.loss(stream, out, mask, smoothing) / n_tokens[-1]

    return loss_of, n_tokens


def decode(translator: Translator, batch: PairBatch) -> Tensor:
    """The hidden states of the decoder with teacher forcing, (batch, target, d_model)."""
    model, pad = translator.model, special_ids(translator.tokenizer)[0]
    return model.decode(batch.target_in, model.encode(*with_mask(batch.source, pad, DEVICE)))


# ── Measurements ──────────────────────────────────────────────────────────────────────────────
class Predictions(NamedTuple):
    """Of each held-out target token: its loss, the likeliest token's probability, if it is right.

    Each is (tokens,).
    """

    losses: np.ndarray
    confidences: np.ndarray
    right: np.ndarray


def predict(translator: Translator, pairs: Sequence[TextPair]) -> Predictions:
    """Next-token predictions with teacher forcing."""
    batch = translator.batch(pairs)
    known = batch.target_out.ne(special_ids(translator.tokenizer)[0])  # (batch, target)
    with eval_mode(translator.model):
        logits = translator.model.logits(decode(translator, batch))[known]  # (tokens, vocab)
        targets = batch.target_out[known]  # (tokens,)
        losses = F.cross_entropy(logits, targets, reduction="none")
        confidences, best = logits.softmax(dim=-1).max(dim=-1)
    return Predictions(losses.numpy(), confidences.numpy(), best.eq(targets).numpy())


def bleu(outputs: Sequence[str], pairs: Sequence[TextPair]) -> float:
    """BLEU by sacrebleu, which is imported late because it is slow."""
    from qkv.evaluate.scores import score

    found = score(outputs, [pair.target for pair in pairs]).bleu
    return found if math.isfinite(found) else 0.0
