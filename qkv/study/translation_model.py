"""Train small translation models on the sentence pairs of a study."""

import numpy as np
import torch
from torch import Tensor

from qkv.data.batches import PairBatch, pair_batch
from qkv.model.eval_mode import eval_mode
from qkv.model.transformer import Transformer
from qkv.pipeline.translator import Translator
from qkv.study.language_model import LossOf
from qkv.study.question import Trial
from qkv.text.tokenizer import Tokenizer
from qkv.train.seeds import derive_seed

BATCH_PAIRS = 32
VALID_PAIRS = 200
Pairs = list[tuple[str, str]]


def read_pairs(trial: Trial, name: str) -> Pairs:
    """The pairs of train.tsv or valid.tsv."""
    lines = (trial.data / f"{name}.tsv").read_text(encoding="utf-8").splitlines()
    return [(source, target) for source, _tab, target in (line.partition("\t") for line in lines)]


def read_tokenizer(trial: Trial) -> Tokenizer:
    """The tokenizer of both languages."""
    return Tokenizer.load(trial.data / "tokenizer.json")


def batch_of(pairs: Pairs, tokenizer: Tokenizer) -> PairBatch:
    assert tokenizer.pad_id is not None
    assert tokenizer.bos_id is not None and tokenizer.eos_id is not None
    sources, targets = (tokenizer.encode_batch(side) for side in zip(*pairs, strict=True))
    return pair_batch(sources, targets, tokenizer.pad_id, tokenizer.bos_id, tokenizer.eos_id)


def hidden_states(model: Transformer, batch: PairBatch, pad_id: int) -> Tensor:
    """The decoder's hidden states with teacher forcing, (batch, target, d_model)."""
    memory = model.encode(batch.source, batch.source != pad_id)
    return model.decode(batch.target_in, memory)


def translation_loss(model: Transformer, trial: Trial, label_smoothing: float) -> LossOf:
    """The mean loss of a step; all conditions of a seed get the same pairs."""
    pairs, tokenizer = read_pairs(trial, "train"), read_tokenizer(trial)
    pad_id = tokenizer.pad_id
    assert pad_id is not None

    def loss_of(step: int) -> Tensor:
        generator = np.random.default_rng(derive_seed(trial.seed, 4, step))
        rows = generator.integers(len(pairs), size=BATCH_PAIRS)
        batch = batch_of([pairs[row] for row in rows], tokenizer)
        mask = batch.target_out != pad_id
        stream = hidden_states(model, batch, pad_id)
        return model.loss(stream, batch.target_out, mask, label_smoothing) / mask.sum()

    return loss_of


def valid_pairs(trial: Trial) -> Pairs:
    """The same evenly spaced held-out pairs for all conditions and seeds."""
    pairs = read_pairs(trial, "valid")
    rows = np.linspace(0, len(pairs) - 1, min(VALID_PAIRS, len(pairs))).astype(int)
    return [pairs[row] for row in rows]


def valid_probabilities(model: Transformer, trial: Trial) -> tuple[Tensor, Tensor]:
    """Probabilities (tokens, vocab) and ids (tokens,) of the held-out targets."""
    tokenizer = read_tokenizer(trial)
    pad_id = tokenizer.pad_id
    assert pad_id is not None
    batch = batch_of(valid_pairs(trial), tokenizer)
    mask = batch.target_out != pad_id
    with eval_mode(model):
        stream = hidden_states(model, batch, pad_id)[mask]
        return model.logits(stream).softmax(dim=-1), batch.target_out[mask]


def translations(model: Transformer, trial: Trial, beam_size: int) -> list[str]:
    """Translations of the held-out sources."""
    tokenizer = read_tokenizer(trial)
    translator = Translator.from_model(model, tokenizer, tokenizer)
    sources = [source for source, _target in valid_pairs(trial)]
    with torch.inference_mode():
        return [str(text) for text in translator(sources, beam_size=beam_size)]
