"""What happens without the feed-forward? At equal depth, and at equal parameters."""

from torch import nn

from qkv.messages import N_, _
from qkv.model.presets import from_sizes
from qkv.model.transformer import Transformer
from qkv.plan.cost import flops, make_workload
from qkv.study.language_model import (
    BATCH,
    COLUMNS,
    CURVES,
    LENGTH,
    VOCAB_SIZE,
    loss_by_position,
    new_model,
    recipe_of,
    text_loss,
    train,
    valid_ids,
)
from qkv.study.question import Condition, Experiment, Measurement, Question, Trial, Values
from qkv.study.results import Results

D_MODEL, N_HEADS = 64, 4
DEPTH = 2
DEEPER = 3 * DEPTH  # 4 d² of attention against 12 d² with the feed-forward


class NoBranch(nn.Identity):
    """In place of the residual of the feed-forward: x, unchanged."""


def new_decoder(trial: Trial) -> Transformer:
    """A decoder; without feed-forward if the condition says so."""
    spec = from_sizes("decoder-only", VOCAB_SIZE, D_MODEL, trial.settings["layers"], N_HEADS,
                      4 * D_MODEL, dropout=0.0, activation="gelu", bias=False)  # fmt: skip
    model = new_model(spec, trial)
    if not trial.settings["feed_forward"]:
        assert model.decoder is not None
        for layer in model.decoder.layers:
            layer.ffn = NoBranch()
    return model


def measure(trial: Trial) -> Measurement:
    model = new_decoder(trial)
    curve = train(model, text_loss(model, trial), recipe_of(trial), trial)
    losses = loss_by_position(model, valid_ids(trial))
    return {
        "loss": sum(losses) / len(losses),
        **curve.as_measurement(),
        "parameters": sum(weight.numel() for weight in model.parameters()),
        "tokens": trial.steps * BATCH * LENGTH,
        "gflops": 3 * forward_flops(model, trial) * trial.steps / 1e9,
    }


def forward_flops(model: Transformer, trial: Trial) -> int:
    """FLOPs of a forward pass, by part, without those of a feed-forward that is missing."""
    counted = flops(model.spec, make_workload(model.spec, BATCH, LENGTH))
    if not trial.settings["feed_forward"]:
        del counted["feed_forward"]
    return sum(counted.values())


def conclude(results: Results) -> str:
    shallow = results.compare("feed-forward", "loss", "with", "without")
    deep = results.compare("feed-forward", "loss", "with", "without-deeper")
    return _(
        "Without the feed-forward the loss is {shallow:+.3f} nats at {depth} layers, which have "
        "fewer parameters ({shallow_test}), and {deep:+.3f} at {deeper} layers, which have as many "
        "({deep_test}).",
        shallow=shallow.difference,
        depth=DEPTH,
        shallow_test=shallow.text,
        deep=deep.difference,
        deeper=DEEPER,
        deep_test=deep.text,
    )


def condition(label: str, feed_forward: bool, layers: int) -> Condition:
    return Condition(label, {"feed_forward": feed_forward, "layers": layers})


WITHOUT = N_("attention only, {layers} layers")
QUESTION = Question(
    experiments={
        "feed-forward": Experiment(
            title=N_("With and without the feed-forward"),
            conditions={
                "with": condition(N_("attention and feed-forward, {layers} layers"), True, DEPTH),
                "without": condition(WITHOUT, False, DEPTH),
                "without-deeper": condition(WITHOUT, False, DEEPER),
            },
            measure=measure,
            equal=N_(
                "width, tokens, optimizer; parameters of the first and the last, but for the norms"
            ),
            columns=COLUMNS,
            panels=(Values("loss", N_("held-out loss, nats")), CURVES),
            trains=True,
        )
    },
    conclude=conclude,
    published=N_(
        "Dong et al. 2021: residual connections and feed-forwards keep attention from losing "
        "rank. Geva et al. 2021: feed-forward layers act as key-value memories; they hold two "
        "thirds of the parameters of the layers."
    ),
    data="text",
)
