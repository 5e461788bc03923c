"""The metric that selects the best model, and early stopping."""

import pytest
from run_traces import fake_bleu, published_steps

from qkv.data.builtin import builtin_pairs
from qkv.train import resume
from qkv.train.loop import Trainer
from qkv.train.prepare_embed import prepare_embedding
from qkv.train.recipe import EmbedRecipe
from qkv.train.resume import state_to_resume


@pytest.mark.parametrize("changes", [{"metric_for_best_model": "loss"}, {"valid_bleu": False}])
def test_a_run_resumed_with_another_metric_resets_the_best_score(trainer, changes):
    first = trainer(steps=6, validate_every=3, valid_bleu=True, schedule="constant")
    fake_bleu(first, [25.0, 24.0])
    assert first.run() == 0 and first.progress.best_step == 3
    resumed = trainer(
        resume=True,
        steps=12,
        validate_every=3,
        patience=2,
        schedule="constant",
        **{"valid_bleu": True, **changes},
    )
    assert (
        resumed.task.metric is None
        and resumed.progress.best is None
        and resumed.progress.bad_validations == 0
    )
    figures = iter([3.0, 2.0, 2.5])
    resumed.task.validate = lambda model: {"loss": next(figures), "perplexity": 1.0, "bleu": 0.0}
    steps = published_steps(resumed)
    assert resumed.run() == 0
    assert steps == [6, 9] and resumed.progress.best == -2.0


def test_a_checkpoint_without_a_metric_continues_with_that_of_the_recipe(trainer, monkeypatch):
    resumed = trainer(steps=6, validate_every=3, valid_bleu=True)
    fake_bleu(resumed, [25.0, 24.0])
    assert resumed.run() == 0
    state = state_to_resume(resumed.folder, resume=True)
    assert state.metadata["progress"].pop("metric") == "bleu"
    monkeypatch.setattr(resume, "newest_state", lambda *given: state)
    progress = trainer(resume=True, steps=12, valid_bleu=True).progress
    assert (progress.metric, progress.best, progress.best_step) == ("bleu", 25.0, 3)


def test_early_stopping_starts_after_the_mlm_steps(tmp_path):
    pairs = tmp_path / "a.tsv"
    pairs.write_text(
        "".join(f"{pair.source}\t{pair.target}\n" for pair in builtin_pairs()[0][:40]),
        encoding="utf-8",
    )
    recipe = EmbedRecipe(
        pairs=str(pairs),
        tokenizer="char",
        model={"layers": 1, "d_model": 16, "n_heads": 2, "d_ff": 32},
        steps=20,
        mlm_steps=6,
        patience=2,
        validate_every=2,
        save_every=20,
        batch_tokens=400,
        batch_groups=8,
    )
    resumed = Trainer(prepare_embedding(recipe, tmp_path / "data"), recipe, tmp_path / "run")
    found = iter([0.5, 0.1, 0.1, 0.1, 0.6, 0.1, 0.1])  # steps 2, 4 and 6 are MLM steps
    resumed.task.validate = lambda model: {"loss": 1.0, "recall_at_1": next(found)}
    assert resumed.run() == 0
    assert (resumed.progress.step, resumed.progress.best_step) == (14, 10)
