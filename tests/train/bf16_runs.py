"""Losses of the first steps of several small trainings, in float32 and in bf16, as JSON.

python bf16_runs.py FOLDER: a separate process, in which the test limits oneDNN's instructions.
"""

import json
import sys
from dataclasses import replace
from pathlib import Path

import torch

from qkv.data.builtin import builtin_pairs
from qkv.model.presets import preset
from qkv.model.spec import Gated, MixtureOfExperts, Spec, Stack
from qkv.model.spec_io import to_json
from qkv.train.loop import Trainer
from qkv.train.prepare import prepare_translation
from qkv.train.recipe import TranslateRecipe
from qkv.train.report import Reporter

STEPS = 4
SMALL = {"layers": 1, "d_model": 32, "n_heads": 2, "d_ff": 64, "dropout": 0.2}
MODERN = SMALL | {"norm": "rms", "activation": "relu2", "bias": False, "qk_norm": True}
PAPER = SMALL | {"placement": "post", "positions": "sinusoidal"}
RUNS = {
    "modern": {"model": MODERN, "optimizer": "muon"},
    "paper": {"model": PAPER},
    "gated": {"model": MODERN | {"gated": True, "activation": "silu"}, "ema_decay": 0.9},
    "r-drop": {"model": MODERN, "r_drop": 5.0},
    "characters": {"model": MODERN, "tokenizer": "char"},
}


def with_experts() -> Spec:
    """A mixture of experts: two of four experts and a shared expert for each token."""
    spec, part = (
        preset("seq2seq", vocab_size=560, **MODERN),
        MixtureOfExperts(4, 2, Gated(32), shared_expert=Gated(32)),
    )

    def with_part(stack: Stack | None) -> Stack | None:
        return stack and replace(
            stack, layers=tuple(replace(layer, feed_forward=part) for layer in stack.layers)
        )

    return replace(spec, encoder=with_part(spec.encoder), decoder=with_part(spec.decoder))


def losses(folder: Path, recipe: TranslateRecipe) -> list[float]:
    task = prepare_translation(recipe, folder / "data")
    trainer, found = Trainer(task, recipe, folder), []
    plain = trainer.gradients
    trainer.gradients = lambda *given: found.append(plain(*given)) or found[-1]  # type: ignore[method-assign]
    with Reporter(folder, STEPS) as trainer.reporter:
        for _ in range(STEPS):
            trainer.step()
    return found


if __name__ == "__main__":
    root = Path(sys.argv[1])
    pairs = builtin_pairs()[0][:400]
    for side in ("source", "target"):
        (root / side).write_text(
            "".join(f"{getattr(pair, side)}\n" for pair in pairs), encoding="utf-8"
        )
    (root / "experts.json").write_text(to_json(with_experts()), encoding="utf-8")
    rows: dict[str, list[list[float]]] = {}
    for name, settings in (RUNS | {"experts": {"model": str(root / "experts.json")}}).items():
        for dtype in ("float32", "bf16"):
            folder = root / f"{name}-{dtype}"
            folder.mkdir()
            common = {
                "source": str(root / "source"),
                "target": str(root / "target"),
                "tokenizer": "byte_bpe",
                "vocab_size": 560,
            }
            recipe = TranslateRecipe(
                **{
                    **common,
                    "steps": STEPS,
                    "warmup_steps": 2,
                    "batch_tokens": 600,
                    "dtype": dtype,
                    **settings,
                }
            )
            rows.setdefault(name, []).append(losses(folder, recipe))
    assert torch.get_autocast_dtype("cpu") == torch.bfloat16
    print(json.dumps(rows))
