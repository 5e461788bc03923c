"""Small models trained on the CPU for a few steps, and the fake device."""

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

sys.path.insert(0, str(Path(__file__).parent))  # so that tests import fake_device

PAIRS = builtin_pairs()[0][:400]
MODERN = {
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
    "placement": "post",
    "positions": "sinusoidal",
    "dropout": 0.0,
}
PREPARE = {
    TranslateRecipe: prepare_translation,
    GenerateRecipe: prepare_generation,
    EmbedRecipe: prepare_embedding,
}


@pytest.fixture(scope="session")
def recipes(tmp_path_factory):
    """Name -> recipe: every task, several architectures and optimizers, without dropout."""
    folder = tmp_path_factory.mktemp("texts")
    for side in ("source", "target"):
        (folder / side).write_text(
            "".join(f"{getattr(pair, side)}\n" for pair in PAIRS), encoding="utf-8"
        )
    common = {
        "steps": 4,
        "warmup_steps": 2,
        "batch_tokens": 600,
        "save_every": 2,
        "validate_every": 4,
        "vocab_size": 560,
        "tokenizer": "byte_bpe",
    }
    pairs = {"source": str(folder / "source"), "target": str(folder / "target"), **common}
    text = {"text": (str(folder / "target"),), "context_length": 32, **common}
    return {
        "translate": TranslateRecipe(model=MODERN, optimizer="muon", ema_decay=0.9, **pairs),
        "translate-paper": TranslateRecipe(
            model=PAPER, r_drop=2.0, gradient_accumulation_steps=2, **pairs
        ),
        "generate": GenerateRecipe(model=MODERN | {"convolution": 3}, **text),
        "generate-documents": GenerateRecipe(
            model=MODERN | {"gated": True, "activation": "silu"}, separate_documents=True, **text
        ),
        "embed": EmbedRecipe(model=MODERN, **pairs),
    }


@pytest.fixture(scope="session")
def train(recipes):
    """train("embed", "cpu", folder): a run of a few steps."""

    def run(name: str, device: str, folder: Path) -> None:
        recipe = replace(recipes[name], device=device)
        assert Trainer(PREPARE[type(recipe)](recipe, folder / "data"), recipe, folder).run() == 0

    return run


@pytest.fixture(scope="session")
def trained(train, tmp_path_factory):
    """trained("embed"): the folder of a model that is trained once, on the CPU."""
    folders: dict[str, Path] = {}

    def folder_of(name: str) -> Path:
        if name not in folders:
            folders[name] = tmp_path_factory.mktemp(name)
            torch.set_num_threads(1)
            train(name, "cpu", folders[name])
        return folders[name]

    return folder_of


@pytest.fixture
def fake_device(monkeypatch):
    """The fake device, without fused Adam, autocast and inference mode: `meta` has none."""
    from fake_device import FakeDevice

    for kind in ("Adam", "AdamW"):
        plain = getattr(torch.optim, kind)
        monkeypatch.setattr(
            torch.optim,
            kind,
            lambda groups, fused, plain=plain, **options: plain(groups, foreach=False, **options),
        )
    monkeypatch.setattr(Trainer, "autocast", lambda self: nullcontext())
    monkeypatch.setattr(torch, "inference_mode", torch.no_grad)
    return FakeDevice


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)
