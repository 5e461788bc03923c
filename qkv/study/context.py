"""One word, two meanings: where do its vectors separate? Layer by layer."""

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

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
from qkv.study.word_sentences import MEANINGS, meaning_sentences
from qkv.train.seeds import derive_seed

D_MODEL, N_LAYERS, N_HEADS = 64, 4, 4
BATCH_SENTENCES = 32
MASK = 0  # the id of a masked word
MASKED_FRACTION = 0.25
HELD_OUT_EVERY = 5


def measure(trial: Trial) -> Measurement:
    """Train a masked language model; then compare the vectors of the word in held-out sentences."""
    word = trial.settings["word"]
    meanings, ids_of = encode(word)
    held_out = [sentences[::HELD_OUT_EVERY] for sentences in meanings]
    training = torch.cat([
        sentences[torch.arange(len(sentences)) % HELD_OUT_EVERY != 0] for sentences in meanings
    ])  # fmt: skip
    spec = from_sizes("encoder-only", len(ids_of) + 1, D_MODEL, N_LAYERS, N_HEADS, 4 * D_MODEL,
                      dropout=0.1)  # fmt: skip
    model = new_model(spec, trial)
    curve = train(model, masked_loss(model, training, trial), recipe_of(trial), trial)
    first, second = (word_vectors(model, ids, ids_of[word]) for ids in held_out)
    between = [mean_distance(a, b) for a, b in zip(first, second, strict=True)]
    within = [
        (mean_distance(a, a) + mean_distance(b, b)) / 2 for a, b in zip(first, second, strict=True)
    ]
    return {
        "separation": between[-1] - within[-1],
        "between": between[-1],
        "within": within[-1],
        "static": abs(between[0]),
        "layers": list(range(len(between))),
        "distances": between,
        "same_meaning": within,
        **curve.as_measurement(),
    }


def encode(word: str) -> tuple[list[Tensor], dict[str, int]]:
    """The sentences of both meanings as ids, (sentences, length), and the id of each word."""
    both = meaning_sentences(word)
    words = sorted({part for sentences in both for sentence in sentences for part in sentence})
    ids_of = {part: id for id, part in enumerate(words, MASK + 1)}
    encoded = [
        torch.tensor([[ids_of[part] for part in sentence] for sentence in sentences])
        for sentences in both
    ]
    return encoded, ids_of


def masked_loss(model: Transformer, sentences: Tensor, trial: Trial) -> LossOf:
    """The mean loss of the masked words of a step."""

    def loss_of(step: int) -> Tensor:
        generator = np.random.default_rng(derive_seed(trial.seed, 6, step))
        ids = sentences[torch.from_numpy(generator.integers(len(sentences), size=BATCH_SENTENCES))]
        masked = torch.from_numpy(generator.random(ids.shape) < MASKED_FRACTION)
        masked[0, 0] = True  # at least one word
        states = model.encode(ids.masked_fill(masked, MASK)).states
        return model.loss(states, ids, masked) / masked.sum()

    return loss_of


def word_vectors(model: Transformer, ids: Tensor, id: int) -> list[Tensor]:
    """The word's vectors, (sentences, d_model) each: embedding, hidden state of each layer."""
    at_word = ids == id
    with eval_mode(model), record(model, "encoder.layers.*") as steps:
        model.encode(ids)
        embedded = model.embed(ids)
    blocks = [steps[f"encoder.layers.{layer}"] for layer in range(N_LAYERS)]
    return [states[at_word] for states in (embedded, *blocks)]


def mean_distance(first: Tensor, second: Tensor) -> float:
    """The mean cosine distance of the rows of both, without that of a row to itself."""
    a, b = (F.normalize(rows.double(), dim=1) for rows in (first, second))
    distances = 1 - a @ b.T  # (first, second)
    if first is second:
        n = len(first)
        return ((distances.sum() - distances.trace()) / (n * (n - 1))).item()
    return distances.mean().item()


def conclude(results: Results) -> str:
    separations = {word: results.mean("words", key, "separation") for word, key in KEYS.items()}
    layers = {word: first_layer(results, key) for word, key in KEYS.items()}
    return _(
        "In the embedding the vectors of a word are equal in both meanings (distance "
        "{static:.0e}). In the last of {n} layers, vectors of two meanings are farther apart than "
        "those of one by {separations} (cosine distance). Half of it is reached in layer {layers}.",
        static=max(results.mean("words", key, "static") for key in KEYS.values()),
        n=N_LAYERS,
        separations=", ".join(f"{word} {value:.2f}" for word, value in separations.items()),
        layers=", ".join(f"{layer} ({word})" for word, layer in layers.items()),
    )


def first_layer(results: Results, condition: str) -> int:
    """The first layer with half of the largest separation, in the mean over seeds."""
    rows = results.measurements["words"][condition]
    gaps = np.mean([np.subtract(row["distances"], row["same_meaning"]) for row in rows], axis=0)
    return int(np.argmax(gaps >= gaps.max() / 2))


KEYS = {word: f"word-{index}" for index, word in enumerate(MEANINGS, 1)}
LABEL = "{word}"
QUESTION = Question(
    experiments={
        "words": Experiment(
            title=N_("Vectors of a word with two meanings, in a masked language model"),
            conditions={key: Condition(LABEL, {"word": word}) for word, key in KEYS.items()},
            measure=measure,
            equal=N_("layers, width, optimizer, steps; each word has its own sentences"),
            columns=(
                Column("separation", N_("separation in the last layer")),
                Column("between", N_("distance, two meanings")),
                Column("within", N_("distance, one meaning")),
                Column("static", N_("distance of embeddings, two meanings"), ".0e"),
            ),
            panels=(
                Lines("layers", "distances", N_("layer"), N_("distance, two meanings")),
                Lines("layers", "same_meaning", N_("layer"), N_("distance, one meaning")),
                Values("separation", N_("separation in the last layer")),
                CURVES,
            ),
            trains=True,
            compares=False,
        )
    },
    conclude=conclude,
    published=N_(
        "Peters et al. 2018 (ELMo) and Devlin et al. 2019 (BERT): a word's vector depends on its "
        "sentence. Ethayarajh 2019: vectors are more context-specific in upper layers; in BERT, "
        "less than 5 percent of the variance is explained by a static embedding."
    ),
)
