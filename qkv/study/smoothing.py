"""Does label smoothing make perplexity worse and BLEU better? And calibration?"""

import math

import torch
from torch import Tensor

from qkv.evaluate.scores import score
from qkv.messages import N_, _
from qkv.model.presets import from_sizes
from qkv.study.language_model import CURVES, new_model, recipe_of, train
from qkv.study.question import Column, Condition, Experiment, Measurement, Question, Trial, Values
from qkv.study.results import Results
from qkv.study.translation_model import (
    read_tokenizer,
    translation_loss,
    translations,
    valid_pairs,
    valid_probabilities,
)

D_MODEL, N_LAYERS, N_HEADS = 96, 2, 4
SMOOTHING = (0.0, 0.1, 0.2)
N_BINS = 15  # of the calibration error
BEAM_SIZE = 4


def measure(trial: Trial) -> Measurement:
    """Train a translation model; the loss is measured without smoothing."""
    tokenizer, smoothing = read_tokenizer(trial), trial.settings["smoothing"]
    spec = from_sizes("encoder-decoder", tokenizer.vocab_size, D_MODEL, N_LAYERS, N_HEADS,
                      4 * D_MODEL, dropout=0.1)  # fmt: skip
    model = new_model(spec, trial)
    recipe = recipe_of(trial)
    curve = train(model, translation_loss(model, trial, smoothing), recipe, trial)
    probabilities, ids = valid_probabilities(model, trial)
    loss = -probabilities.gather(1, ids[:, None]).log().mean().item()
    references = [target for _source, target in valid_pairs(trial)]
    return {
        "loss": loss,
        "perplexity": math.exp(min(loss, 50.0)),
        "ece": calibration_error(probabilities, ids),
        "bleu_greedy": score(translations(model, trial, 1), references).bleu,
        "bleu_beam": score(translations(model, trial, BEAM_SIZE), references).bleu,
        "parameters": sum(weight.numel() for weight in model.parameters()),
        **curve.as_measurement(),
    }


def calibration_error(probabilities: Tensor, ids: Tensor) -> float:
    """ECE: the mean over bins of |accuracy - confidence|, weighted by their tokens.

    Args:
        probabilities: (tokens, vocab).
        ids: (tokens,) the right tokens.
    """
    confidence, best = probabilities.double().max(dim=1)  # (tokens,)
    correct = (best == ids).double()
    bins = (confidence * N_BINS).ceil().long().clamp(1, N_BINS) - 1
    gaps = torch.zeros(N_BINS, dtype=torch.float64).index_add(0, bins, correct - confidence)
    return (gaps.abs().sum() / len(ids)).item()


def conclude(results: Results) -> str:
    key = "s0.1"
    perplexity = results.compare("smoothing", "perplexity", "s0", key)
    greedy, beam = (
        results.compare("smoothing", name, "s0", key) for name in ("bleu_greedy", "bleu_beam")
    )
    return _(
        "Label smoothing of 0.1 changes the perplexity by {perplexity:+.2f} ({perplexity_test}), "
        "BLEU with greedy search by {greedy:+.1f} ({greedy_test}) and with beam search by "
        "{beam:+.1f} ({beam_test}); the calibration error is {ece_without:.3f} without and "
        "{ece:.3f} with it.",
        perplexity=perplexity.difference,
        perplexity_test=perplexity.text,
        greedy=greedy.difference,
        greedy_test=greedy.text,
        beam=beam.difference,
        beam_test=beam.text,
        ece_without=results.mean("smoothing", "s0", "ece"),
        ece=results.mean("smoothing", key, "ece"),
    )


QUESTION = Question(
    experiments={
        "smoothing": Experiment(
            title=N_("Translation models trained with label smoothing"),
            conditions={
                f"s{value:g}": Condition(N_("smoothing {smoothing:g}"), {"smoothing": value})
                for value in SMOOTHING
            },
            measure=measure,
            equal=N_("initial weights, parameters, sentence pairs, optimizer"),
            columns=(
                Column("loss", N_("held-out loss, nats")),
                Column("perplexity", N_("perplexity"), ".2f"),
                Column("ece", N_("calibration error (ECE)")),
                Column("bleu_greedy", N_("BLEU, greedy"), ".1f"),
                Column("bleu_beam", N_("BLEU, beam 4"), ".1f"),
                Column("parameters", N_("parameters"), ",.0f"),
            ),
            panels=(
                Values("perplexity", N_("perplexity")),
                Values("bleu_beam", N_("BLEU, beam 4")),
                Values("ece", N_("calibration error (ECE)")),
                CURVES,
            ),
            trains=True,
        )
    },
    conclude=conclude,
    published=N_(
        "Vaswani et al. 2017, table 3 (D), smoothing 0 and 0.2 against 0.1: perplexity 4.67 and "
        "5.47 against 4.92, BLEU 25.3 and 25.7 against 25.8. Müller et al. 2019: label smoothing "
        "improves calibration; with it, beam search gains less."
    ),
    data="pairs",
)
