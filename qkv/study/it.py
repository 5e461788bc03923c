"""Does attention find what "it" refers to? 它太累了 names the animal, 它太宽了 the street."""

from itertools import product
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from qkv.data.batches import PairBatch, pair_batch
from qkv.explore.record import record
from qkv.messages import N_, _
from qkv.model.eval_mode import eval_mode
from qkv.model.presets import from_sizes
from qkv.model.transformer import Transformer
from qkv.study.language_model import CURVES, LossOf, new_model, recipe_of, train
from qkv.study.question import (
    Column,
    Condition,
    Experiment,
    Lines,
    Measurement,
    Question,
    Trial,
    Values,
)
from qkv.study.results import Results
from qkv.study.word_sentences import PRONOUN, PronounSentence, pronoun_sentences
from qkv.train.seeds import derive_seed

D_MODEL, N_HEADS = 64, 4
BATCH_PAIRS = 48
PAD, BOS, EOS = range(3)
NOUN_INDEX = 9  # of the noun that the translation names, in its words
MAX_TARGET = 16
LAYERS = (2, 3, 4)  # of each stack
FLIPPING = 0.9  # a head that moves in so many pairs follows the adjective


class Vocabulary(NamedTuple):
    """Ids of the characters of the sources and of the words of the targets."""

    source: dict[str, int]
    target: dict[str, int]

    def batch(self, sentences: list[PronounSentence]) -> PairBatch:
        sources = [[self.source[character] for character in s.source] for s in sentences]
        targets = [[self.target[word] for word in s.target.split()] for s in sentences]
        return pair_batch(sources, targets, PAD, BOS, EOS)


def vocabulary_of(sentences: list[PronounSentence]) -> Vocabulary:
    characters = sorted({character for s in sentences for character in s.source})
    words = sorted({word for s in sentences for word in s.target.split()})
    return Vocabulary(
        *({unit: id for id, unit in enumerate(u, EOS + 1)} for u in (characters, words))
    )


def measure(trial: Trial) -> Measurement:
    """Train a translator; then count right nouns, and heads that follow the adjective."""
    training, held_out = pronoun_sentences()
    vocabulary = vocabulary_of(training + held_out)
    n_source, n_target = (len(side) + EOS + 1 for side in vocabulary)
    spec = from_sizes("encoder-decoder", max(n_source, n_target), D_MODEL, trial.settings["layers"],
                      N_HEADS, 4 * D_MODEL, dropout=0.1)  # fmt: skip
    model = new_model(spec, trial)
    curve = train(model, loss_of(model, vocabulary, training, trial), recipe_of(trial), trial)
    flips = flip_fractions(model, vocabulary, held_out)
    best = max(flips, key=lambda head: flips[head])
    return {
        "accuracy": noun_accuracy(model, vocabulary, held_out),
        "best_flip": flips[best],
        "best_head": best,
        "n_flipping": sum(fraction >= FLIPPING for fraction in flips.values()),
        "rank": list(range(1, len(flips) + 1)),
        "flips": sorted(flips.values(), reverse=True),
        "parameters": sum(weight.numel() for weight in model.parameters()),
        **curve.as_measurement(),
    }


def loss_of(
    model: Transformer, vocabulary: Vocabulary, sentences: list[PronounSentence], trial: Trial
) -> LossOf:
    """The mean loss of a step on random sentences."""

    def loss(step: int) -> Tensor:
        generator = np.random.default_rng(derive_seed(trial.seed, 5, step))
        rows = generator.integers(len(sentences), size=BATCH_PAIRS)
        batch = vocabulary.batch([sentences[row] for row in rows])
        mask = batch.target_out != PAD
        stream = model.decode(batch.target_in, model.encode(batch.source, batch.source != PAD))
        return model.loss(stream, batch.target_out, mask) / mask.sum()

    return loss


# ── Translations ──────────────────────────────────────────────────────────────────────────────
def noun_accuracy(
    model: Transformer, vocabulary: Vocabulary, sentences: list[PronounSentence]
) -> float:
    """The fraction of greedy translations that name the right noun."""
    words = {id: word for word, id in vocabulary.target.items()}
    rows = greedy(model, vocabulary.batch(sentences).source)
    named = [words.get(row[NOUN_INDEX], "") for row in rows]
    return float(np.mean([noun == s.noun for noun, s in zip(named, sentences, strict=True)]))


def greedy(model: Transformer, source: Tensor) -> list[list[int]]:
    """The likeliest next word, again and again; MAX_TARGET words of every sentence."""
    ids = torch.full((len(source), 1), BOS)
    with eval_mode(model):
        memory = model.encode(source, source != PAD)
        for _word in range(MAX_TARGET):
            logits = model.logits(model.decode(ids, memory)[:, -1])
            ids = torch.cat([ids, logits.argmax(dim=-1, keepdim=True)], dim=1)
    return ids[:, 1:].tolist()


# ── Heads ─────────────────────────────────────────────────────────────────────────────────────
def flip_fractions(
    model: Transformer, vocabulary: Vocabulary, sentences: list[PronounSentence]
) -> dict[str, float]:
    """For each head, the fraction of pairs of adjectives between which its weight moves.

    The pronoun (encoder) or the step that predicts the noun (cross-attention) weighs the animal
    more than the place with an adjective of animals, and less with one of places.
    """
    batch = vocabulary.batch(sentences)
    paths = (
        "encoder.layers.*.attn.branch.core.weights",
        "decoder.layers.*.cross.branch.core.weights",
    )
    with eval_mode(model), record(model, *paths) as steps:
        model.decode(batch.target_in, model.encode(batch.source, batch.source != PAD))
    fractions = {}
    for path in steps:
        for head in range(N_HEADS):
            gaps = [
                noun_gap(steps[path][row, head], sentence, is_encoder=path.startswith("encoder"))
                for row, sentence in enumerate(sentences)
            ]
            stack, _layers, layer = path.split(".")[:3]
            fractions[f"{stack}.{layer}.{head}"] = flip_fraction(gaps, sentences)
    return fractions


def noun_gap(weights: Tensor, sentence: PronounSentence, is_encoder: bool) -> float:
    """The weight of the animal minus that of the place; weights (query, key)."""
    source = sentence.source
    query = source.index(PRONOUN) if is_encoder else NOUN_INDEX
    of_animal, of_place = (
        weights[query, source.index(noun) : source.index(noun) + len(noun)].sum().item()
        for noun in (sentence.animal, sentence.location)
    )
    return of_animal - of_place


def flip_fraction(gaps: list[float], sentences: list[PronounSentence]) -> float:
    """The fraction of (animal adjective, place adjective) pairs with the same nouns that flip."""
    by_nouns: dict[tuple[str, str], tuple[list[float], list[float]]] = {}
    for gap, s in zip(gaps, sentences, strict=True):
        by_nouns.setdefault((s.animal, s.location), ([], []))[not s.is_animal].append(gap)
    flips = [a > 0 > b for animal, place in by_nouns.values() for a, b in product(animal, place)]
    return float(np.mean(flips))


# ── Study ─────────────────────────────────────────────────────────────────────────────────────
def conclude(results: Results) -> str:
    best = max(LAYERS, key=lambda n: results.mean("layers", f"l{n}", "best_flip"))
    condition = f"l{best}"
    found = results.mean("layers", condition, "best_flip")
    heads = [str(row["best_head"]) for row in results.measurements["layers"][condition]]
    answer = _(
        "With {layers} layers, {accuracy:.1%} of the held-out translations name the right noun.",
        layers=best,
        accuracy=results.mean("layers", condition, "accuracy"),
    )
    if found < FLIPPING:
        none = _(
            "No head moves from the animal to the place in {limit:.0%} of the pairs; the best does "
            "in {found:.0%}.",
            limit=FLIPPING,
            found=found,
        )
        return f"{answer} {none}"
    heads_text = _(
        "A head moves from the animal to the place with the adjective in {found:.0%} of the pairs "
        "(head of each seed: {heads}).",
        found=found,
        heads=", ".join(heads),
    )
    return f"{answer} {heads_text}"


QUESTION = Question(
    experiments={
        "layers": Experiment(
            title=N_("Translators of 它太累了 / 它太宽了, by layers of each stack"),
            conditions={f"l{n}": Condition(N_("{layers} layers"), {"layers": n}) for n in LAYERS},
            measure=measure,
            equal=N_("sentences, width, heads, optimizer; not parameters"),
            columns=(
                Column("accuracy", N_("right nouns, held out"), ".1%"),
                Column("best_flip", N_("pairs in which the best head moves"), ".1%"),
                Column("n_flipping", N_("heads that move in 90 % of the pairs"), ".1f"),
                Column("parameters", N_("parameters"), ",.0f"),
            ),
            panels=(
                Values("accuracy", N_("right nouns, held out")),
                Lines("rank", "flips", N_("head, by rank"), N_("pairs in which it moves")),
                CURVES,
            ),
            trains=True,
        )
    },
    conclude=conclude,
    published=N_(
        'Uszkoreit 2017 (Google AI blog, "Transformer: A Novel Neural Network Architecture"): one '
        'of 8 heads of layer 5 moves from the animal to the street when "tired" becomes "wide". '
        "The picture shows one sentence pair, no count."
    ),
)
