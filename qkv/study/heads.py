"""Do several heads help, at equal parameters? And which heads of a trained model are needed?"""

from dataclasses import replace

import numpy as np

from qkv.explore.edits import edited, read_edit
from qkv.messages import N_, _
from qkv.model.presets import from_sizes
from qkv.model.spec import Attention, Spec, Stack
from qkv.model.transformer import Transformer
from qkv.study.language_model import (
    COLUMNS,
    CURVES,
    VOCAB_SIZE,
    loss_by_position,
    train_on_text,
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

D_MODEL, N_LAYERS = 128, 2
N_HEADS = (1, 4, 8, 16, 32)  # as in Vaswani et al. 2017, table 3, rows A
ABLATED = 8  # the heads of the model whose heads are ablated
NEGLIGIBLE = 0.01  # nats
LABEL = N_("{n_heads} x {d_head}")


def spec_of(n_heads: int, d_head: int) -> Spec:
    """A decoder with these heads; d_head need not be d_model / n_heads."""
    spec = from_sizes("decoder-only", VOCAB_SIZE, D_MODEL, N_LAYERS, 1, 4 * D_MODEL,
                      dropout=0.0, activation="gelu", bias=False)  # fmt: skip
    assert spec.decoder is not None
    layer = replace(spec.decoder.layers[0], mixer=Attention(n_heads, n_heads, d_head))
    return replace(spec, decoder=Stack((layer,), causal=True, final_norm=True))


def measure(trial: Trial) -> Measurement:
    """Train a language model; then ablate its heads, if the condition says so."""
    n_heads, d_head = trial.settings["n_heads"], trial.settings["d_head"]
    model, measured = train_on_text(spec_of(n_heads, d_head), trial)
    if trial.settings.get("ablate"):
        increases = ablation_increases(model, trial, n_heads)
        measured |= {
            "rank": list(range(1, len(increases) + 1)),
            "increases": sorted(increases, reverse=True),
            "largest": max(increases),
            "removable": float(np.mean([value < NEGLIGIBLE for value in increases])),
        }
    return measured


def ablation_increases(model: Transformer, trial: Trial, n_heads: int) -> list[float]:
    """How much the held-out loss rises without one head, for every head of every layer."""
    ids = valid_ids(trial)
    loss = float(np.mean(loss_by_position(model, ids)))
    increases = []
    for layer in range(N_LAYERS):
        for head in range(n_heads):
            with edited(model, [read_edit(model, f"head:decoder.{layer}.attn.{head}")]):
                increases.append(float(np.mean(loss_by_position(model, ids))) - loss)
    return increases


def conclude(results: Results) -> str:
    best = results.best("split", "loss", [f"h{n}" for n in N_HEADS if n > 1])
    compared = results.compare("split", "loss", "h1", best)
    wide = results.compare("wide", "loss", "h1", "h4")
    ablated = f"h{ABLATED}"
    return _(
        "With d_model split into several heads, {best} has the lowest held-out loss, "
        "{difference:+.3f} nats to one head ({test}). With wide heads, 4 heads have {wide:+.3f} "
        "nats to one head of 4 times the width ({wide_test}). Of the {n} heads of a trained model, "
        "{removable:.0%} can be removed alone at a cost below {negligible} nats; the most "
        "important one costs {largest:.3f}.",
        best=results.label("split", best),
        difference=compared.difference,
        test=compared.text,
        wide=wide.difference,
        wide_test=wide.text,
        n=ABLATED * N_LAYERS,
        removable=results.mean("split", ablated, "removable"),
        negligible=NEGLIGIBLE,
        largest=results.mean("split", ablated, "largest"),
    )


def condition(n_heads: int, d_head: int, ablate: bool = False) -> Condition:
    more = {"ablate": True} if ablate else {}
    return Condition(LABEL, {"n_heads": n_heads, "d_head": d_head, **more})


QUESTION = Question(
    experiments={
        "split": Experiment(
            title=N_("d_model split into heads (heads x width of a head)"),
            conditions={f"h{n}": condition(n, D_MODEL // n, n == ABLATED) for n in N_HEADS},
            measure=measure,
            equal=N_("parameters, tokens, FLOPs: heads x width is d_model"),
            columns=(
                *COLUMNS,
                Column("removable", N_("heads removable alone"), ".0%"),
                Column("largest", N_("most important head, nats")),
            ),
            panels=(
                Values("loss", N_("held-out loss, nats")),
                CURVES,
                Lines(
                    "rank", "increases", N_("head, by rank"), N_("loss increase without it, nats")
                ),
            ),
            trains=True,
        ),
        "wide": Experiment(
            title=N_("Wide heads: one head with the parameters of four"),
            conditions={"h1": condition(1, 4 * D_MODEL), "h4": condition(4, D_MODEL)},
            measure=measure,
            equal=N_("parameters, tokens, FLOPs: heads x width is 4 d_model"),
            columns=COLUMNS,
            panels=(Values("loss", N_("held-out loss, nats")), CURVES),
            trains=True,
        ),
    },
    conclude=conclude,
    published=N_(
        "Vaswani et al. 2017, table 3 (A), BLEU for 1, 4, 8, 16, 32 heads at equal parameters: "
        "24.9, 25.5, 25.8, 25.8, 25.4. Michel et al. 2019: most heads of a trained model can be "
        "removed alone without a significant change; a few cannot."
    ),
    data="text",
)
