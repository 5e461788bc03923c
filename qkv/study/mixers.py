"""Is attention better than an RNN, a convolution, an MLP or pooling, at equal parameters?"""

import time
from dataclasses import replace

import torch

from qkv.messages import N_, _
from qkv.model.eval_mode import eval_mode
from qkv.model.presets import from_sizes
from qkv.model.spec import (
    Attention,
    Convolution,
    Dense,
    Layer,
    Mixer,
    NoPositions,
    Norm,
    Pooling,
    Recurrent,
    Rotary,
    Spec,
    Stack,
    TokenMlp,
)
from qkv.model.transformer import Transformer
from qkv.plan.cost import parameters
from qkv.study.language_model import (
    COLUMNS,
    CURVES,
    LENGTH,
    VOCAB_SIZE,
    cost_of,
    loss_by_position,
    new_model,
    recipe_of,
    text_loss,
    train,
    valid_ids,
)
from qkv.study.question import (
    Column,
    Condition,
    Experiment,
    Lines,
    Measurement,
    Points,
    Question,
    Trial,
    Values,
)
from qkv.study.results import Results
from qkv.study.tasks import TASK_VOCAB_SIZE, TASKS, accuracy, task_loss

D_MODEL, N_LAYERS, N_HEADS = 64, 2, 4
DISTANCES = (8, 16, 32)  # of recall
SPEED_LENGTHS = (32, 128, 512, 1024)
SEGMENT = 8  # positions whose losses are averaged
BUDGET = 12 * D_MODEL**2  # parameters of a layer: 4 d² of attention and 8 d² of a feed-forward
MIXERS: dict[str, Mixer] = {
    "attention": Attention(N_HEADS, N_HEADS, D_MODEL // N_HEADS),
    "lstm": Recurrent("lstm"),
    "gru": Recurrent("gru"),
    "convolution": Convolution(4),
    "token-mlp": TokenMlp(),
    "pooling": Pooling(4),
}
LABELS = {
    "attention": N_("attention"),
    "lstm": "LSTM",
    "gru": "GRU",
    "convolution": N_("convolution of width 4"),
    "token-mlp": N_("token MLP"),
    "pooling": N_("pooling of width 4"),
}


def spec_of(name: str, vocab_size: int, max_len: int) -> Spec:
    """A decoder whose feed-forward has the parameters that the mixer leaves of BUDGET."""
    spec = from_sizes("decoder-only", vocab_size, D_MODEL, N_LAYERS, N_HEADS,
                      dropout=0.0, max_len=max_len)  # fmt: skip
    positions = Rotary() if name == "attention" else NoPositions()  # the others know the order
    decoder = stack_of(MIXERS[name], feed_forward_width(name, spec))
    return replace(spec, decoder=decoder, positions=positions)


def stack_of(mixer: Mixer, d_ff: int) -> Stack:
    layer = Layer(mixer, Dense(d_ff, "gelu"), Norm("layer", "pre"), repeat=N_LAYERS)
    return Stack((layer,), causal=True, final_norm=True)


def feed_forward_width(name: str, spec: Spec) -> int:
    """The width that gives the layer BUDGET parameters; at least d_model / 4."""
    counted = [
        sum(parameters(replace(spec, decoder=stack_of(MIXERS[name], width))).values())
        for width in (1, 2)
    ]
    per_width = counted[1] - counted[0]
    fixed = spec.vocab_size * D_MODEL + (4 * N_LAYERS + 2) * D_MODEL  # table and norms
    mixers = counted[0] - per_width - fixed
    return max(D_MODEL // 4, (N_LAYERS * BUDGET - mixers) // per_width)


# ── Measurements ──────────────────────────────────────────────────────────────────────────────
def measure_text(trial: Trial) -> Measurement:
    """Held-out loss on text, by position, and the speed of a pass."""
    is_table = trial.settings["mixer"] == "token-mlp"  # of max_len² weights
    longest = LENGTH if is_table else max(SPEED_LENGTHS)
    spec = spec_of(trial.settings["mixer"], VOCAB_SIZE, longest)
    model = new_model(spec, trial)
    curve = train(model, text_loss(model, trial), recipe_of(trial), trial)
    losses = torch.tensor(loss_by_position(model, valid_ids(trial)))
    segments = losses.unflatten(0, (-1, SEGMENT)).mean(dim=1)
    lengths = [length for length in SPEED_LENGTHS if length <= spec.max_len]
    return {
        "loss": losses.mean().item(),
        "positions": [SEGMENT * (index + 1) for index in range(len(segments))],
        "losses": segments.tolist(),
        "lengths": lengths,
        "tokens_per_second": [tokens_per_second(model, length) for length in lengths],
        **curve.as_measurement(),
        **cost_of(spec, trial.steps),
    }


def tokens_per_second(model: Transformer, length: int) -> float:
    """The speed of a forward pass over one sequence; the faster of two."""
    ids = torch.zeros(1, length, dtype=torch.long)
    times = []
    with eval_mode(model):
        for _repeat in range(2):
            start = time.perf_counter()
            model.decode(ids)
            times.append(time.perf_counter() - start)
    return length / min(times)


def measure_recall(trial: Trial) -> Measurement:
    """The accuracy of repeating the symbol of `distance` tokens back."""
    distance, task = trial.settings["distance"], TASKS["recall"]
    spec = spec_of(trial.settings["mixer"], TASK_VOCAB_SIZE, 2 * distance)
    model = new_model(spec, trial)
    curve = train(model, task_loss(model, task, distance, trial), recipe_of(trial), trial)
    return {
        "accuracy": accuracy(model, task, distance),
        **curve.as_measurement(),
        **cost_of(spec, trial.steps, 2 * distance),
    }


# ── Study ─────────────────────────────────────────────────────────────────────────────────────
def conclude(results: Results) -> str:
    others = [name for name in MIXERS if name != "attention"]
    best, farthest = results.best("text", "loss", others), DISTANCES[-1]
    compared = results.compare("text", "loss", "attention", best)
    recalls = {name: results.mean("recall", f"{name}-{farthest}", "accuracy") for name in MIXERS}
    best_recall = max(others, key=lambda name: recalls[name])
    return _(
        "On text, the best other mixer is {best}, {difference:+.3f} nats to attention ({test}). "
        "The symbol of {distance} tokens back is recalled by attention with an accuracy of "
        "{attention:.0%}, by the best other, {best_recall}, with {other:.0%}; chance is "
        "{chance:.0%}.",
        best=results.label("text", best),
        difference=compared.difference,
        test=compared.text,
        distance=farthest,
        attention=recalls["attention"],
        best_recall=results.label("text", best_recall),
        other=recalls[best_recall],
        chance=1 / (TASK_VOCAB_SIZE - 1),
    )


def recall_conditions() -> dict[str, Condition]:
    labels = {
        "attention": N_("attention, {distance} tokens"),
        "lstm": N_("LSTM, {distance} tokens"),
        "gru": N_("GRU, {distance} tokens"),
        "convolution": N_("convolution, {distance} tokens"),
        "token-mlp": N_("token MLP, {distance} tokens"),
        "pooling": N_("pooling, {distance} tokens"),
    }
    return {
        f"{name}-{distance}": Condition(label, {"mixer": name, "distance": distance})
        for name, label in labels.items()
        for distance in DISTANCES
    }


QUESTION = Question(
    experiments={
        "text": Experiment(
            title=N_("Language models with different mixers"),
            conditions={name: Condition(label, {"mixer": name}) for name, label in LABELS.items()},
            measure=measure_text,
            equal=N_(
                "parameters of the layers within 1 percent (the feed-forward has what the mixer "
                "leaves), tokens; attention has rotary positions, the others need none"
            ),
            columns=COLUMNS,
            panels=(
                Values("loss", N_("held-out loss, nats")),
                Lines("positions", "losses", N_("position"), N_("held-out loss, nats")),
                Lines("lengths", "tokens_per_second", N_("length"), N_("tokens/s"), True, True),
            ),
            trains=True,
        ),
        "recall": Experiment(
            title=N_("Recall of the symbol of so many tokens back"),
            conditions=recall_conditions(),
            measure=measure_recall,
            equal=N_("parameters of the layers within 1 percent, steps, sequences"),
            columns=(Column("accuracy", N_("accuracy"), ".1%"), *COLUMNS[1:]),
            panels=(
                Points("distance", "accuracy", N_("tokens back"), N_("accuracy"), "mixer", True),
                CURVES,
            ),
            trains=True,
            compares=False,  # of different tasks
        ),
    },
    conclude=conclude,
    published=N_(
        "Kaplan et al. 2020, figure 7: LSTMs are as good as Transformers for the first tokens of "
        "the context, but do not improve beyond about 100 tokens; Transformers do. Yu et al. 2022 "
        "(MetaFormer): pooling instead of attention works for images."
    ),
    data="text",
)
