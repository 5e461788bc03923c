"""A corpus of 300 pairs, and trainers of the smallest model on it."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from qkv.data.builtin import builtin_pairs
from qkv.train.loop import Trainer
from qkv.train.prepare import prepare_translation
from qkv.train.recipe import TranslateRecipe
from qkv.train.resume import state_to_resume

sys.path.insert(0, str(Path(__file__).parent))  # so that tests import run_traces

MODEL = {"layers": 1, "d_model": 16, "n_heads": 2, "d_ff": 32, "max_len": 64}
STEPS = {"steps": 12, "save_every": 3, "validate_every": 6, "warmup_steps": 3}
TINY = TranslateRecipe(
    model=MODEL, vocab_size=400, batch_tokens=400, lr=5e-3, valid_bleu=False, **STEPS
)


@pytest.fixture(scope="session")
def corpus(tmp_path_factory):
    """a.zh and a.en, 300 pairs; v.zh and v.en, 12 others."""
    folder = tmp_path_factory.mktemp("corpus")
    pairs = builtin_pairs()[0]
    for name, part in (("a", pairs[:300]), ("v", pairs[300:312])):
        for language, side in (("zh", "source"), ("en", "target")):
            text = "".join(f"{getattr(pair, side)}\n" for pair in part)
            (folder / f"{name}.{language}").write_text(text, encoding="utf-8")
    return folder


@pytest.fixture(scope="session")
def tiny_recipe(corpus):
    """tiny_recipe(steps=5): a recipe for the corpus."""
    files = {
        side: str(corpus / name)
        for side, name in (
            ("source", "a.zh"),
            ("target", "a.en"),
            ("valid_source", "v.zh"),
            ("valid_target", "v.en"),
        )
    }
    return lambda **changes: replace(TINY, **{**files, **changes})


@pytest.fixture
def make_task(tiny_recipe, tmp_path):
    """make_task(seed=2): the task of such a recipe, its data in the test's own folder."""
    return lambda folder="data", **changes: prepare_translation(
        tiny_recipe(**changes), tmp_path / folder
    )


@pytest.fixture
def trainer(tiny_recipe, tmp_path):
    """trainer("run", steps=5): a trainer in that folder; with resume=True it continues the run."""

    def make(name="run", resume=False, **changes):
        recipe, folder = tiny_recipe(**changes), tmp_path / name
        task = prepare_translation(recipe, tmp_path / "data", resume)
        return Trainer(task, recipe, folder, state_to_resume(folder, resume))

    (tmp_path / "run").mkdir()
    (tmp_path / "other").mkdir()
    return make


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)
