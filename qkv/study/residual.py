"""What happens without residual connections? Gradients by depth, and the loss."""

from typing import Any

from torch import Tensor, nn

from qkv.messages import N_, _
from qkv.model.block import PreNorm
from qkv.model.presets import from_sizes
from qkv.model.transformer import Transformer
from qkv.study.language_model import (
    COLUMNS,
    CURVES,
    VOCAB_SIZE,
    cost_of,
    gradient_norms,
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
    Question,
    Trial,
    Values,
)
from qkv.study.results import Results

D_MODEL, N_HEADS = 64, 4
DEPTHS = (2, 6, 12)


class NoResidual(nn.Module):
    """branch(norm(x)): PreNorm without the residual connection."""

    def __init__(self, residual: Any):
        super().__init__()
        assert isinstance(residual, PreNorm)
        self.norm, self.branch = residual.norm, residual.branch

    def forward(self, x: Tensor, *context: object) -> Tensor:
        return self.branch(self.norm(x), *context)


def new_decoder(trial: Trial) -> Transformer:
    """A pre-norm decoder; without residual connections if the condition says so."""
    spec = from_sizes("decoder-only", VOCAB_SIZE, D_MODEL, trial.settings["layers"], N_HEADS,
                      4 * D_MODEL, dropout=0.0, activation="gelu")  # fmt: skip
    model = new_model(spec, trial)
    if not trial.settings["residual"]:
        assert model.decoder is not None
        for layer in model.decoder.layers:
            layer.attn, layer.ffn = NoResidual(layer.attn), NoResidual(layer.ffn)
    return model


def measure(trial: Trial) -> Measurement:
    """Gradient norms of the new model by layer; then the loss after training."""
    model = new_decoder(trial)
    loss_of = text_loss(model, trial)
    norms = gradient_norms(model, loss_of(1))
    curve = train(model, loss_of, recipe_of(trial), trial)
    losses = loss_by_position(model, valid_ids(trial))
    return {
        "loss": sum(losses) / len(losses),
        "layers": list(range(1, len(norms) + 1)),
        "gradients": norms,
        "gradient_ratio": norms[0] / norms[-1],
        **curve.as_measurement(),
        **cost_of(model.spec, trial.steps),
    }


def name_of(residual: bool, layers: int) -> str:
    return f"{'with' if residual else 'without'}-{layers}"


def conclude(results: Results) -> str:
    costs = {
        n: results.compare("depth", "loss", name_of(True, n), name_of(False, n)) for n in DEPTHS
    }
    shallow, deep = DEPTHS[0], DEPTHS[-1]
    return _(
        "Without residual connections the loss is {first:+.3f} nats at {shallow} layers "
        "({first_test}) and {last:+.3f} at {deep} ({last_test}). At the start, the gradient of the "
        "first of {deep} layers is {without:.2g} times that of the last without them, and "
        "{with_them:.2g} times with them.",
        first=costs[shallow].difference,
        shallow=shallow,
        first_test=costs[shallow].text,
        last=costs[deep].difference,
        deep=deep,
        last_test=costs[deep].text,
        without=results.mean("depth", name_of(False, deep), "gradient_ratio"),
        with_them=results.mean("depth", name_of(True, deep), "gradient_ratio"),
    )


def conditions() -> dict[str, Condition]:
    labels = {True: N_("with residuals, {layers} layers"), False: N_("without, {layers} layers")}
    return {
        name_of(residual, n): Condition(label, {"residual": residual, "layers": n})
        for n in DEPTHS
        for residual, label in labels.items()
    }


QUESTION = Question(
    experiments={
        "depth": Experiment(
            title=N_("With and without residual connections, by depth"),
            conditions=conditions(),
            measure=measure,
            equal=N_("initial weights, parameters and FLOPs at the same depth, tokens, norms"),
            columns=(
                *COLUMNS,
                Column("gradient_ratio", N_("gradient at the start, first / last layer"), ".2g"),
            ),
            panels=(
                Values("loss", N_("held-out loss, nats")),
                CURVES,
                Lines(
                    "layers", "gradients", N_("layer"), N_("gradient norm at the start"), log_y=True
                ),
            ),
            trains=True,
        )
    },
    conclude=conclude,
    published=N_(
        "He et al. 2016: deeper networks without residual connections train worse than shallower "
        "ones. Dong et al. 2021: without residuals, the output of pure attention loses rank doubly "
        "exponentially with depth."
    ),
    data="text",
)
