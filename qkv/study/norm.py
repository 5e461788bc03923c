"""Pre-norm or post-norm, with or without warmup, at which depth, and which norm?"""

from qkv.messages import N_, _
from qkv.model.presets import from_sizes
from qkv.model.spec import Spec
from qkv.study.language_model import (
    COLUMNS,
    CURVES,
    VOCAB_SIZE,
    gradient_norms,
    new_model,
    text_loss,
    train_on_text,
)
from qkv.study.question import (
    Column,
    Condition,
    Experiment,
    Lines,
    Measurement,
    Question,
    Settings,
    Trial,
    Values,
)
from qkv.study.results import Results

D_MODEL, N_HEADS = 64, 4
DEPTHS = (2, 6, 12)
LR = 3e-3  # high enough that the norm matters
KINDS = ("layer", "rms", "batch")
KIND_DEPTH = 6  # layers of the models that compare kinds of norm


def spec_of(settings: Settings) -> Spec:
    return from_sizes(
        "decoder-only", VOCAB_SIZE, D_MODEL, settings["layers"], N_HEADS, 4 * D_MODEL, dropout=0.0,
        norm=settings["norm"], placement=settings["placement"], activation="gelu",
    )  # fmt: skip


def measure(trial: Trial) -> Measurement:
    """Gradient norms of the new model by layer; then the loss after training."""
    settings, spec = trial.settings, spec_of(trial.settings)
    model = new_model(spec, trial)
    norms = gradient_norms(model, text_loss(model, trial)(1))
    warmup_steps = max(1, trial.steps // 10) if settings["warm_up"] else 0
    _model, measured = train_on_text(
        spec,
        trial,
        optimizer="adam",
        lr=LR,
        schedule="constant",
        warmup_steps=warmup_steps,
        max_grad_norm=0.0,
    )
    layers = list(range(1, len(norms) + 1))
    return measured | {"layers": layers, "gradients": norms, "gradient_ratio": norms[-1] / norms[0]}


def name_of(placement: str, warm_up: bool, layers: int) -> str:
    return f"{placement}-{'warmup' if warm_up else 'none'}-{layers}"


def conclude(results: Results) -> str:
    deepest = DEPTHS[-1]
    pre, post = (name_of(placement, True, deepest) for placement in ("pre", "post"))
    compared = results.compare("placement", "loss", pre, post)
    costs = {
        placement: results.compare(
            "placement",
            "loss",
            name_of(placement, True, deepest),
            name_of(placement, False, deepest),
        )
        for placement in ("pre", "post")
    }
    return _(
        "At the start, the gradient of the last of {layers} layers is {pre:.1f} times that of the "
        "first with pre-norm and {post:.1f} times with post-norm. With warmup, post-norm has "
        "{difference:+.3f} nats to pre-norm ({test}). Without warmup, pre-norm has "
        "{pre_cost:+.3f} nats ({pre_test}), post-norm {post_cost:+.3f} ({post_test}). At "
        "{kind_depth} layers the best norm is {best}.",
        layers=deepest,
        pre=results.mean("placement", pre, "gradient_ratio"),
        post=results.mean("placement", post, "gradient_ratio"),
        difference=compared.difference,
        test=compared.text,
        pre_cost=costs["pre"].difference,
        pre_test=costs["pre"].text,
        post_cost=costs["post"].difference,
        post_test=costs["post"].text,
        kind_depth=KIND_DEPTH,
        best=results.label("kind", results.best("kind", "loss")),
    )


def settings_of(placement: str, warm_up: bool, layers: int, norm: str = "layer") -> Settings:
    return {"placement": placement, "warm_up": warm_up, "layers": layers, "norm": norm}


def conditions() -> dict[str, Condition]:
    """Pre or post, with and without warmup, at every depth."""
    labels = {
        ("pre", True): N_("pre-norm, warmup, {layers} layers"),
        ("pre", False): N_("pre-norm, no warmup, {layers} layers"),
        ("post", True): N_("post-norm, warmup, {layers} layers"),
        ("post", False): N_("post-norm, no warmup, {layers} layers"),
    }
    return {
        name_of(placement, warm_up, layers): Condition(
            label, settings_of(placement, warm_up, layers)
        )
        for layers in DEPTHS
        for (placement, warm_up), label in labels.items()
    }


GRADIENT = Column("gradient_ratio", N_("gradient at the start, last / first layer"), ".2f")
PANELS = (
    Values("loss", N_("held-out loss, nats")),
    CURVES,
    Lines("layers", "gradients", N_("layer"), N_("gradient norm at the start"), log_y=True),
)
QUESTION = Question(
    experiments={
        "placement": Experiment(
            title=N_("Placement, warmup and depth (LayerNorm)"),
            conditions=conditions(),
            measure=measure,
            equal=N_(
                "parameters and FLOPs at the same depth, tokens, Adam with the same learning rate "
                "and no gradient clipping"
            ),
            columns=(*COLUMNS, GRADIENT),
            panels=PANELS,
            trains=True,
        ),
        "kind": Experiment(
            title=N_("Kind of norm (pre-norm, warmup, 6 layers)"),
            conditions={
                kind: Condition(label, settings_of("pre", True, KIND_DEPTH, kind))
                for kind, label in zip(KINDS, ("LayerNorm", "RMSNorm", "BatchNorm"), strict=True)
            },
            measure=measure,
            equal=N_("tokens, FLOPs; parameters, but RMSNorm has no bias"),
            columns=(*COLUMNS, GRADIENT),
            panels=PANELS,
            trains=True,
        ),
    },
    conclude=conclude,
    published=N_(
        "Xiong et al. 2020: at the start, gradients near the output of a post-norm model are "
        "large, so that it needs warmup; those of a pre-norm model are well-behaved, and it "
        "trains without. Takase et al. 2022: deep post-norm models have vanishing gradients, but "
        "where they train, post-norm is better than pre-norm."
    ),
    data="text",
    minutes=30.0,
)
