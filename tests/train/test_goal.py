"""What makes a model the best, and how long a run waits for a better one."""

import pytest
from run_traces import published_steps, say_worth

from qkv.data.builtin import builtin_pairs
from qkv.train import loop
from qkv.train.loop import Trainer, state_to_resume
from qkv.train.prepare_embed import prepare_embedding
from qkv.train.recipe import EmbedRecipe


@pytest.mark.parametrize("changes", [{"best_by": "loss"}, {"valid_bleu": False}])
def test_a_run_resumed_with_another_goal_looks_for_its_best_anew(trainer, changes):
    first = trainer(steps=6, validate_every=3, valid_bleu=True, schedule="constant")
    say_worth(first, [25.0, 24.0])
    assert first.run() == 0 and first.progress.best_step == 3
    one = trainer(
        resume=True,
        steps=12,
        validate_every=3,
        patience=2,
        schedule="constant",
        **{"valid_bleu": True, **changes},
    )
    assert one.task.goal is None and one.progress.best is None and one.progress.stale == 0
    figures = iter([3.0, 2.0, 2.5])
    one.task.validate = lambda model: {"loss": next(figures), "perplexity": 1.0, "bleu": 0.0}
    steps = published_steps(one)
    assert one.run() == 0
    assert steps == [6, 9] and one.progress.best == -2.0


def test_a_checkpoint_that_does_not_tell_its_goal_goes_on_with_the_recipe_s(trainer, monkeypatch):
    one = trainer(steps=6, validate_every=3, valid_bleu=True)
    say_worth(one, [25.0, 24.0])
    assert one.run() == 0
    state = state_to_resume(one.folder, resume=True)
    assert state.facts["progress"].pop("goal") == "bleu"
    monkeypatch.setattr(loop, "newest_state", lambda *given: state)
    progress = trainer(resume=True, steps=12, valid_bleu=True).progress
    assert (progress.goal, progress.best, progress.best_step) == ("bleu", 25.0, 3)


def test_patience_begins_after_the_masked_steps(tmp_path):
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
        masked_steps=6,
        patience=2,
        validate_every=2,
        save_every=20,
        batch_tokens=400,
        batch_pairs=8,
    )
    one = Trainer(prepare_embedding(recipe, tmp_path / "data"), recipe, tmp_path / "run")
    found = iter(
        [0.5, 0.1, 0.1, 0.1, 0.6, 0.1, 0.1]
    )  # at steps 2, 4, 6 only masked tokens were learned
    one.task.validate = lambda model: {"loss": 1.0, "rank1": next(found)}
    assert one.run() == 0
    assert (one.progress.step, one.progress.best_step) == (14, 10)
