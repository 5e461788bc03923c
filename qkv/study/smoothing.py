"""Label smoothing: higher perplexity, better BLEU?"""

import math
from functools import cache
from pathlib import Path

import numpy as np

from qkv.messages import N_, _
from qkv.study.language_model import CURVES
from qkv.study.question import Column, Condition, Experiment, Measurement, Question, Trial, Values
from qkv.study.results import Results
from qkv.study.translation import (
    COST_COLUMNS,
    TextPair,
    bleu,
    predict,
    read_pairs,
    train_translator,
    word_tokenizer,
)
from qkv.text.tokenizer import Tokenizer

AMOUNTS = (0.0, 0.1, 0.2)
BINS = 15  # of the calibration error, of equal width, as in Guo et al. 2017
TEST_PAIRS = 250
BEAM = 4


@cache
def load_pairs(folder: Path) -> tuple[list[TextPair], list[TextPair], Tokenizer]:
    """Training pairs, evenly spaced held-out pairs, and the tokenizer, once in a process."""
    train, valid = (read_pairs(folder / f"{name}.tsv") for name in ("train", "valid"))
    chosen = np.linspace(0, len(valid) - 1, min(TEST_PAIRS, len(valid))).astype(int)
    return train, [valid[row] for row in chosen], word_tokenizer(train)


def measure(trial: Trial) -> Measurement:
    """Train with label smoothing; measure without."""
    pairs, test, tokenizer = load_pairs(trial.data)
    smoothing = trial.settings["smoothing"]
    translator, measured = train_translator(pairs, tokenizer, trial, smoothing=smoothing)
    predictions, sources = predict(translator, test), [pair.source for pair in test]
    loss = float(predictions.losses.mean())
    return measured | {
        "loss": loss,
        "perplexity": math.exp(min(loss, 50.0)),
        "accuracy": float(predictions.right.mean()),
        "confidence": float(predictions.confidences.mean()),
        "ece": calibration_error(predictions.confidences, predictions.right),
        "greedy": bleu(translator.translate(sources), test),
        "beam": bleu(translator.translate(sources, BEAM), test),
    }


def calibration_error(confidences: np.ndarray, right: np.ndarray) -> float:
    """ECE: the mean of |accuracy - confidence| over bins of confidence, weighted by their size.

    >>> round(calibration_error(np.array([0.9, 0.9, 0.3]), np.array([True, False, False])), 4)
    0.3667
    """
    bins = np.minimum((confidences * BINS).astype(int), BINS - 1)  # (tokens,)
    gaps = np.bincount(bins, right.astype(float) - confidences.astype(float), BINS)  # (BINS,)
    return float(np.abs(gaps).sum() / len(bins))


def conclude(results: Results) -> str:
    none, smoothed = name_of(0.0), name_of(0.1)
    compared = {
        key: results.compare("smoothing", key, none, smoothed)
        for key in ("loss", "ece", "greedy", "beam")
    }
    return _(
        "Label smoothing of 0.1 changes the held-out loss by {loss:+.3f} nats ({loss_test}), the "
        "calibration error by {ece:+.3f} ({ece_test}), BLEU by {greedy:+.1f} with greedy decoding "
        "({greedy_test}) and by {beam:+.1f} with beam search ({beam_test}). The mean probability "
        "of the likeliest token is {confidence:.3f} instead of {confidence_none:.3f}, at an "
        "accuracy of {accuracy:.3f} instead of {accuracy_none:.3f}.",
        **{key: found.difference for key, found in compared.items()},
        **{f"{key}_test": found.text for key, found in compared.items()},
        confidence=results.mean("smoothing", smoothed, "confidence"),
        confidence_none=results.mean("smoothing", none, "confidence"),
        accuracy=results.mean("smoothing", smoothed, "accuracy"),
        accuracy_none=results.mean("smoothing", none, "accuracy"),
    )


def name_of(amount: float) -> str:
    return f"s{amount:g}"


QUESTION = Question(
    experiments={
        "smoothing": Experiment(
            title=N_("Label smoothing of a translator"),
            conditions={
                name_of(amount): Condition(N_("smoothing {smoothing:g}"), {"smoothing": amount})
                for amount in AMOUNTS
            },
            measure=measure,
            equal=N_("initial weights, parameters, tokens, FLOPs, optimizer; all losses without"),
            columns=(
                Column("loss", N_("held-out loss, nats")),
                Column("perplexity", N_("perplexity"), ".2f"),
                Column("accuracy", N_("accuracy of the next token")),
                Column("confidence", N_("its mean probability")),
                Column("ece", N_("calibration error (ECE)")),
                Column("greedy", N_("BLEU, greedy"), ".1f"),
                Column("beam", N_("BLEU, beam 4"), ".1f"),
                *COST_COLUMNS,
            ),
            panels=(
                Values("loss", N_("held-out loss, nats")),
                Values("ece", N_("calibration error (ECE)")),
                Values("beam", N_("BLEU, beam 4")),
                CURVES,
            ),
            trains=True,
        )
    },
    conclude=conclude,
    published=N_(
        "Vaswani et al. 2017, table 3 (D), without and with smoothing of 0.2: perplexity 4.67 and "
        "5.47, BLEU 25.3 and 25.7; the base model with 0.1 has 4.92 and 25.8. Müller et al. 2019: "
        "with label smoothing, translation is better calibrated and BLEU higher, at a higher loss."
    ),
    data="pairs",
)
