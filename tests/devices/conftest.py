"""A folder of helpers, and small models trained on the CPU for a few steps."""

import sys
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from qkv.data.builtin import builtin_pairs
from qkv.train.loop import Trainer
from qkv.train.prepare import prepare_translation
from qkv.train.prepare_embed import prepare_embedding
from qkv.train.prepare_text import prepare_generation
from qkv.train.recipe import EmbedRecipe, GenerateRecipe, TranslateRecipe

sys.path.insert(0, str(Path(__file__).parent))  # so that tests import pretended

PAIRS = builtin_pairs()[0][:400]
TODAY = {
    "layers": 1,
    "d_model": 32,
    "n_heads": 2,
    "d_ff": 64,
    "norm": "rms",
    "activation": "relu2",
    "bias": False,
    "qk_norm": True,
    "dropout": 0.0,
}
PAPER = {
    "layers": 1,
    "d_model": 32,
    "n_heads": 2,
    "d_ff": 64,
    "place": "post",
    "positions": "sinusoidal",
    "dropout": 0.0,
}
MAKE = {
    TranslateRecipe: prepare_translation,
    GenerateRecipe: prepare_generation,
    EmbedRecipe: prepare_embedding,
}


@pytest.fixture(scope="session")
def recipes(tmp_path_factory):
    """Name -> recipe: every task, several shapes and optimisers, without luck."""
    folder = tmp_path_factory.mktemp("texts")
    for side in ("source", "target"):
        (folder / side).write_text(
            "".join(f"{getattr(pair, side)}\n" for pair in PAIRS), encoding="utf-8"
        )
    common = {
        "steps": 4,
        "warmup": 2,
        "batch_tokens": 600,
        "save_every": 2,
        "validate_every": 4,
        "vocab_size": 560,
        "tokenizer": "bytes",
    }
    pairs = {"source": str(folder / "source"), "target": str(folder / "target"), **common}
    text = {"text": (str(folder / "target"),), "context": 32, **common}
    return {
        "translate": TranslateRecipe(model=TODAY, optimizer="muon", ema=0.9, **pairs),
        "translate-paper": TranslateRecipe(model=PAPER, r_drop=2.0, accumulate=2, **pairs),
        "generate": GenerateRecipe(model=TODAY | {"convolution": 3}, **text),
        "generate-documents": GenerateRecipe(
            model=TODAY | {"gated": True, "activation": "silu"}, separate_documents=True, **text
        ),
        "embed": EmbedRecipe(model=TODAY, **pairs),
    }


@pytest.fixture(scope="session")
def train(recipes):
    """train("embed", "cpu", folder): a run of so few steps that it only has to work."""

    def run(name: str, device: str, folder: Path) -> None:
        recipe = replace(recipes[name], device=device)
        assert Trainer(MAKE[type(recipe)](recipe, folder / "data"), recipe, folder).run() == 0

    return run


@pytest.fixture(scope="session")
def trained(train, tmp_path_factory):
    """trained("embed"): the folder of a model, trained on the CPU once."""
    folders: dict[str, Path] = {}

    def folder_of(name: str) -> Path:
        if name not in folders:
            folders[name] = tmp_path_factory.mktemp(name)
            torch.set_num_threads(1)
            train(name, "cpu", folders[name])
        return folders[name]

    return folder_of


@pytest.fixture
def elsewhere(monkeypatch):
    """The other device; what a device called meta cannot do is done without: fused Adam, autocast, inference mode."""
    from pretended import Elsewhere

    for kind in ("Adam", "AdamW"):
        plain = getattr(torch.optim, kind)
        monkeypatch.setattr(
            torch.optim,
            kind,
            lambda groups, fused, plain=plain, **given: plain(groups, foreach=False, **given),
        )
    monkeypatch.setattr(Trainer, "autocast", lambda self: nullcontext())
    monkeypatch.setattr(torch, "inference_mode", torch.no_grad)
    return Elsewhere


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)
