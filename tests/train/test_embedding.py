"""Embedding task: deterministic batches, both losses, validation, and a whole run."""

import json
import os
import signal
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from qkv.checkpoint.folder import load_model
from qkv.data.builtin import builtin_pairs
from qkv.errors import QkvError
from qkv.model.pooling import pool
from qkv.model.spec import LmHead
from qkv.model.transformer import Transformer
from qkv.textbook.pooling import mean_pooling
from qkv.train.embedding import ContrastiveBatch, EmbeddingTask
from qkv.train.loop import Trainer
from qkv.train.masking import MaskedBatch
from qkv.train.prepare_embed import prepare_embedding
from qkv.train.recipe import EmbedRecipe
from qkv.train.recipe_reader import read_recipe
from qkv.train.resume import state_to_resume
from qkv.train.signals import STOPPED
from qkv.train.task_specs import embedding_spec

SHAPE = {"layers": 1, "d_model": 16, "n_heads": 2, "d_ff": 32, "max_len": 128, "dropout": 0.0}
BATCH = {"batch_groups": 16, "mini_batch_size": 5, "batch_tokens": 400}
STEPS = {"steps": 8, "save_every": 2, "validate_every": 4, "warmup_steps": 2}
TINY = EmbedRecipe(model=SHAPE, tokenizer="byte_bpe", vocab_size=400, lr=5e-3, **BATCH, **STEPS)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """a.tsv: 120 groups of two or three sentences, zh and en; v.zh and v.en: 20 aligned ones."""
    folder = tmp_path_factory.mktemp("groups")
    pairs = builtin_pairs()[0]
    lines = [
        [pair.source, pair.target, *([pair.target.upper()] if number % 3 == 0 else [])]
        for number, pair in enumerate(pairs[:120])
    ]
    (folder / "a.tsv").write_text(
        "".join("\t".join(line) + "\n" for line in lines), encoding="utf-8"
    )
    (folder / "v.zh").write_text(
        "".join(f"{pair.source}\n" for pair in pairs[200:220]), encoding="utf-8"
    )
    (folder / "v.en").write_text(
        "".join(f"{pair.target}\n" for pair in pairs[200:220]), encoding="utf-8"
    )
    (folder / "long.txt").write_text(
        "an old man reads a very long story to his friends " * 20 + "\n\n我爱机器学习\n",
        encoding="utf-8",
    )
    return folder


@pytest.fixture
def make(files, tmp_path):
    """make(texts_per_group=3): the task of this recipe."""
    held = {
        "pairs": str(files / "a.tsv"),
        "valid_source": str(files / "v.zh"),
        "valid_target": str(files / "v.en"),
    }
    return lambda folder="data", **changes: prepare_embedding(
        replace(TINY, **{**held, **changes}), tmp_path / folder
    )


def built(task: EmbeddingTask, seed=0) -> Transformer:
    torch.manual_seed(seed)
    return task.initial_model()


def texts_of(task, batch):
    """All sentences of a batch, decoded from its ids."""
    rows = [row for ids in batch.mini_batches.ids for row in ids]
    return [
        task.tokenizer.decode(rows[int(row)].tolist()) for row in batch.mini_batches.inverse_order
    ]


def groups_in(task, batch):
    """The sentences of each group, from the pairs of the batch."""
    texts, groups = texts_of(task, batch), {}
    for first, second in batch.pairs.tolist():
        groups.setdefault(int(batch.labels[first]), set()).update((texts[first], texts[second]))
    return list(groups.values())


def vectors_one_by_one(task, model, texts):
    """Each sentence alone, with the pooling of the textbook."""
    found = []
    for text in texts:
        ids = torch.tensor(
            [[task.tokenizer.cls_id, *task.tokenizer.encode(text), task.tokenizer.sep_id]]
        )
        found.append(
            mean_pooling(model.encode(ids).states, torch.ones_like(ids, dtype=torch.bool))[0]
        )
    return F.normalize(torch.stack(found), dim=-1)


# ── batches ───────────────────────────────────────────────────────────────────────────────────────


def test_the_sentences_of_a_positive_pair_belong_to_one_group(make, files):
    task = make(texts_per_group=3)
    groups = [
        set(line.split("\t")) for line in (files / "a.tsv").read_text(encoding="utf-8").splitlines()
    ]
    sizes = set()
    for step in range(5):
        found = groups_in(task, task.batch(step))
        assert len(found) == 16 and all(group in groups for group in found)
        sizes |= set(map(len, found))
    assert sizes == {2, 3}


def test_a_batch_is_a_pure_function_of_its_step(make):
    task, again, other = (
        make(mlm_steps=2),
        make("elsewhere", mlm_steps=2),
        make("third", mlm_steps=2, seed=5),
    )

    def contents(task, step):
        batch = task.batch(step)
        return (
            [batch.ids.tolist(), batch.selected.tolist()]
            if isinstance(batch, MaskedBatch)
            else [ids.tolist() for ids in batch.mini_batches.ids]
        )

    for step in (6, 0, 1, 3, 0):
        assert contents(task, step) == contents(again, step) != contents(other, step)


def test_the_first_steps_are_mlm_and_the_others_contrastive(make):
    task = make(mlm_steps=3, gradient_accumulation_steps=2)
    kinds = [type(task.batch(micro_step)) for micro_step in range(10)]
    assert kinds == [MaskedBatch] * 6 + [ContrastiveBatch] * 4
    assert task.spec.head == LmHead(tied=True) and make("plain").spec.head is None
    assert task.spec.decoder is None and task.spec.encoder is not None


def test_sizes_count_predictions_and_tokens_without_padding(make):
    task = make(texts_per_group=3, mlm_steps=1)
    masked, batch = task.batch(0), task.batch(1)
    assert task.sizes(masked) == (
        int(masked.selected.sum()),
        int((masked.targets != task.pad).sum()),
    )
    groups = groups_in(task, batch)
    pairs = sum(len(group) * (len(group) - 1) // 2 for group in groups)
    assert task.sizes(batch) == (
        pairs,
        sum(len(task.tokenizer.encode(text)) + 2 for group in groups for text in group),
    )


def test_long_lines_of_plain_text_are_split_without_loss(make, files):
    task = make(text=(str(files / "long.txt"),), mlm_steps=2, model=SHAPE | {"max_len": 32})
    assert (
        task.plain is not None
        and int(task.plain.lengths.max()) == 30
        and len(task.text_plan.dropped) == 0
    )
    text = "".join((files / "long.txt").read_text(encoding="utf-8").split())
    assert "".join(task.tokenizer.decode(task.plain.ids.tolist()).split()) == text


def test_masked_language_modeling_is_not_trained_on_held_out_sentences(make, files):
    held_out = sorted(set(make(mlm_steps=2).valid.groups.texts))
    lines = [f"{text}\n" for text in (*held_out, "another line", f"{held_out[0]} and more")]
    (files / "plain.txt").write_text("".join(lines), encoding="utf-8")
    task = make("plain", text=(str(files / "plain.txt"),), mlm_steps=2)
    assert len(task.plain) == 2


# ── losses ────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("gradient_checkpointing", [False, True])
@pytest.mark.parametrize("texts_per_group", [2, 3])
def test_the_loss_equals_cross_entropy_on_sentences_encoded_one_by_one(
    make, gradient_checkpointing, texts_per_group
):
    task = make(texts_per_group=texts_per_group, gradient_checkpointing=gradient_checkpointing)
    model, batch = built(task).double(), task.batch(1)
    assert any((ids == task.pad).any() for ids in batch.mini_batches.ids), (
        "this batch should have padding"
    )
    texts, expected = texts_of(task, batch), torch.zeros((), dtype=torch.float64)
    vectors = vectors_one_by_one(task, model, texts)
    scores = vectors @ vectors.T / task.recipe.temperature
    for pair in batch.pairs.tolist():
        for anchor, positive in (pair, pair[::-1]):
            negatives = [
                row for row in range(len(texts)) if batch.labels[row] != batch.labels[anchor]
            ]
            expected = (
                expected
                + F.cross_entropy(scores[anchor, [positive, *negatives]][None], torch.tensor([0]))
                / 2
            )
    torch.testing.assert_close(task.loss(model, batch), expected, rtol=1e-9, atol=0)


def test_the_mlm_loss_is_torch_cross_entropy_at_the_selected_positions(make):
    task = make(mlm_steps=2)
    model, batch = built(task).double(), task.batch(0)
    logits = model.logits(model.encode(batch.ids, batch.targets != task.pad).states)
    expected = F.cross_entropy(
        logits[batch.selected], batch.targets[batch.selected], reduction="sum"
    )
    torch.testing.assert_close(task.loss(model, batch), expected, rtol=1e-12, atol=0)


def test_hard_negatives_are_negatives_of_all_sentences(files, tmp_path):
    path = tmp_path / "hard.tsv"
    lines = (files / "a.tsv").read_text(encoding="utf-8").splitlines()
    path.write_text(
        "".join(
            "\t".join([*line.split("\t")[:2], f"not {line.split(chr(9))[1]}"]) + "\n"
            for line in lines
        ),
        encoding="utf-8",
    )
    task = prepare_embedding(replace(TINY, pairs=str(path), hard_negatives=True), tmp_path / "data")
    model, batch = built(task).double(), task.batch(0)
    texts, n = texts_of(task, batch), len(batch.pairs)
    assert [texts[2 * n + i] for i in range(n)] == [
        f"not {texts[second]}" for _, second in batch.pairs.tolist()
    ]
    assert batch.labels[2 * n :].tolist() == list(range(n, 2 * n)), "each has a label of its own"
    vectors = vectors_one_by_one(task, model, texts)
    scores = vectors @ vectors.T / 0.05
    expected = torch.zeros((), dtype=torch.float64)
    for pair in batch.pairs.tolist():
        for anchor, positive in (pair, pair[::-1]):
            others = [row for row in range(3 * n) if row not in pair]
            expected = (
                expected
                + F.cross_entropy(scores[anchor, [positive, *others]][None], torch.tensor([0])) / 2
            )
    torch.testing.assert_close(task.loss(model, batch), expected, rtol=1e-9, atol=0)


# ── validation and a whole run ────────────────────────────────────────────────────────────────────


def test_validation_measures_recall_at_1(make, files):
    task = make(mlm_steps=2)
    model = built(task).eval()
    zh, en = ((files / name).read_text(encoding="utf-8").splitlines() for name in ("v.zh", "v.en"))
    a, b = (vectors_one_by_one(task, model, texts).detach().numpy() for texts in (zh, en))
    forward, backward = (
        np.mean([int(np.argmax(keys @ vector)) == i for i, vector in enumerate(queries)])
        for queries, keys in ((a, b), (b, a))
    )
    metrics = task.validate(model)
    assert metrics["recall_at_1"] == pytest.approx((forward + backward) / 2)
    both = torch.from_numpy(np.concatenate([a, b]))
    scores = (both @ both.T / 0.05).fill_diagonal_(-torch.inf)  # all sentences but the query itself
    assert metrics["loss"] == pytest.approx(
        float(F.cross_entropy(scores, torch.arange(40).roll(20))), rel=1e-4
    )
    assert (
        metrics["mlm_loss"]
        == task.validate(model)["mlm_loss"]
        == pytest.approx(np.log(400), rel=0.2)
    )


def test_a_run_learns_and_publishes_encoder_pooling_and_tokenizer(make, files, tmp_path):
    held = {
        "valid_pairs": str(files / "a.tsv"),
        "valid_source": None,
        "valid_target": None,
    }  # evaluated on the training groups
    task = make(
        mlm_steps=4,
        steps=30,
        validate_every=30,
        save_every=30,
        lr=2e-2,
        pooling="max",
        mini_batch_size=16,
        **held,
    )
    before = task.validate(built(task).eval())
    (tmp_path / "run").mkdir()
    trainer = Trainer(task, task.recipe, tmp_path / "run")
    assert trainer.run() == 0
    loaded = load_model(tmp_path / "run")
    after = task.validate(loaded.model)
    assert (
        after["loss"] < 0.9 * before["loss"] and after["recall_at_1"] > before["recall_at_1"] + 0.1
    )
    assert after["mlm_loss"] < before["mlm_loss"]
    kept = json.loads((tmp_path / "run" / "pooling.json").read_text())
    assert kept == {"pooling": "max", "normalised": True, "max_len": 128}
    ids = torch.tensor([[2, 7, 9]])
    torch.testing.assert_close(
        pool(loaded.model.encode(ids).states, None, "max"),
        pool(trainer.model.eval().encode(ids).states, None, "max"),
    )


@pytest.mark.parametrize("stopped", [2, 5])
def test_a_resumed_run_equals_an_uninterrupted_one(make, tmp_path, monkeypatch, stopped):
    task = make(
        mlm_steps=3,
        model=SHAPE | {"dropout": 0.2},
        texts_per_group=3,
        gradient_checkpointing=True,
        optimizer="muon",
    )
    whole, broken = (Trainer(task, task.recipe, tmp_path / name) for name in ("whole", "broken"))
    assert whole.run() == 0
    step = broken.step

    def stopped_after(number=stopped):
        step()
        if broken.progress.step == number:
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(broken, "step", stopped_after)
    assert broken.run() == STOPPED and broken.progress.step == stopped
    resumed = Trainer(
        task, task.recipe, tmp_path / "broken", state_to_resume(tmp_path / "broken", resume=True)
    )
    assert resumed.run() == 0
    for name, weight in whole.model.state_dict().items():
        assert torch.equal(weight, resumed.model.state_dict()[name]), name


def test_trained_tokenizers_have_the_special_tokens_of_an_encoder(make):
    for kind, size in (("wordpiece", 900), ("byte_bpe", 400), ("word", 300)):
        task = make(kind, tokenizer=kind, vocab_size=size, mlm_steps=1, lowercase=True)
        tokenizer = task.tokenizer
        assert None not in (tokenizer.cls_id, tokenizer.sep_id, tokenizer.mask_id, tokenizer.pad_id)
        assert tokenizer.encode("HELLO") == tokenizer.encode("hello")
        assert task.template.before == (tokenizer.cls_id,) and task.template.after == (
            tokenizer.sep_id,
        )


# ── errors ────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"pairs": None}, "pairs: no training pairs; give --pairs, or --source and --target"),
        ({"source": "a.zh"}, "pairs: given together with source or target; give one or the other"),
        ({"pairs": None, "source": "a.zh"}, "source: given without target; give both files"),
        ({"valid_source": None}, "valid_target: given without valid_source; give both files"),
        (
            {"hard_negatives": True},
            "hard_negatives: valid_source and valid_target have no third column; give valid_pairs",
        ),
        (
            {"mlm_steps": 8},
            "mlm_steps: 8 of 8 steps leave none for contrastive learning; "
            "use a smaller number, or more steps",
        ),
        (
            {"text": ("a.txt",)},
            "text: plain text is used for MLM only, and mlm_steps is 0; "
            "set mlm_steps, or leave out text",
        ),
        (
            {"model": "tiny"},
            "model: 'tiny' is not encoder-only; use an encoder-only model, such as 'minilm'",
        ),
    ],
)
def test_an_invalid_recipe_gives_one_line(make, changes, message):
    with pytest.raises(QkvError) as error:
        make(**changes)
    assert str(error.value) == message


def test_too_few_groups_to_hold_some_out_are_an_error(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "few.tsv").write_text("a b\tb a\n" * 4, encoding="utf-8")
    with pytest.raises(QkvError) as error:
        prepare_embedding(replace(TINY, pairs="few.tsv"), tmp_path / "data")
    assert (
        str(error.value) == "few.tsv: only 4 pairs, too few to hold some out for validation; "
        "give at least 10, or --valid-pairs"
    )


@pytest.mark.parametrize("name", ["captions-embed", "tatoeba-embed"])
def test_a_shipped_recipe_builds_an_encoder(name):
    recipe = read_recipe(
        EmbedRecipe, Path(__file__).resolve().parents[2] / "recipes" / f"{name}.yaml"
    )
    with torch.device("meta"):
        model = Transformer(embedding_spec(recipe.model, recipe.vocab_size, recipe.mlm_steps > 0))
    assert (
        model.decoder is None and sum(weight.numel() for weight in model.parameters()) > 1_000_000
    )
