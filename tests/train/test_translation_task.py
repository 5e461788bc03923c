"""Translation task: teacher forcing, loss, R-Drop, validation, deterministic order."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from qkv.data.batches import PairBatch
from qkv.errors import QkvError
from qkv.model.transformer import Transformer

SHAPE = {"layers": 1, "d_model": 16, "n_heads": 2, "d_ff": 32, "max_len": 64, "dropout": 0.0}


def built(task, seed=0):
    torch.manual_seed(seed)
    return Transformer(task.spec)


def plain_logits(model, task, batch):
    memory = model.encode(batch.source, batch.source != task.pad)
    return model.logits(model.decode(batch.target_in, memory))


def test_teacher_forcing_shifts_the_target_by_one_token(make_task):
    task = make_task()
    batch, rows = task.batch(0), task.rows(0)
    for row, source, inputs, targets in zip(
        rows, batch.source, batch.target_in, batch.target_out, strict=True
    ):
        sentence = [task.bos, *task.target.encode(task.train.target_texts[row]), task.eos]
        n = len(sentence) - 1
        assert inputs[:n].tolist() == sentence[:-1] and set(inputs[n:].tolist()) <= {task.pad}
        assert targets[:n].tolist() == sentence[1:] and set(targets[n:].tolist()) <= {task.pad}
        assert [id for id in source.tolist() if id != task.pad] == [
            *task.source.encode(task.train.source_texts[row]),
            task.eos,
        ]


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_loss_equals_torch_cross_entropy_on_the_logits(make_task, smoothing):
    task = make_task(label_smoothing=smoothing, model=SHAPE)
    model, batch = built(task).double(), task.batch(3)
    assert (batch.target_out == task.pad).any(), "this batch should have padding"
    expected = F.cross_entropy(
        plain_logits(model, task, batch).flatten(0, 1),
        batch.target_out.flatten(),
        ignore_index=task.pad,
        label_smoothing=smoothing,
        reduction="sum",
    )
    torch.testing.assert_close(task.loss(model, batch), expected, rtol=1e-12, atol=0)


def test_the_decoder_is_causal(make_task):
    task = make_task(model=SHAPE)
    model, batch = built(task), task.batch(0)
    changed = PairBatch(batch.source, batch.target_in.clone(), batch.target_out)
    changed.target_in[:, 3:] = task.eos
    same = (
        (plain_logits(model, task, batch) - plain_logits(model, task, changed))
        .abs()
        .amax(dim=(0, 2))
    )
    assert same[:3].max() < 1e-6 < same[3]


def test_padding_of_the_source_and_of_the_target_changes_nothing(make_task):
    task = make_task(model=SHAPE)
    model, batch = built(task).double(), task.batch(0)
    wider = PairBatch(
        *(
            F.pad(ids, (0, 5), value=task.pad)
            for ids in (batch.source, batch.target_in, batch.target_out)
        )
    )
    torch.testing.assert_close(task.loss(model, wider), task.loss(model, batch), rtol=1e-12, atol=0)
    assert task.sizes(wider) == task.sizes(batch)


def test_sizes_count_predictions_and_tokens_without_padding(make_task):
    task = make_task()
    batch, rows = task.batch(1), task.rows(1)
    targets = sum(len(task.target.encode(task.train.target_texts[row])) + 1 for row in rows)
    sources = sum(len(task.source.encode(task.train.source_texts[row])) + 1 for row in rows)
    assert task.sizes(batch) == (targets, targets + sources)


def test_the_order_is_a_pure_function_of_the_micro_step(make_task):
    task, again, other = make_task(), make_task("elsewhere"), make_task("third", seed=2)
    micro_steps = [7, 0, 3, 40, 3, 0, 7]
    orders = [
        np.concatenate([made.rows(n) for n in micro_steps]).tolist()
        for made in (task, again, other)
    ]
    assert orders[0] == orders[1] == np.concatenate([task.rows(n) for n in micro_steps]).tolist()
    assert orders[0] != orders[2]


def test_an_epoch_contains_every_pair_once(make_task):
    task = make_task()
    for epoch in (0, 3):
        first = epoch * len(task.plan)
        assert sorted(
            np.concatenate([task.rows(first + n) for n in range(len(task.plan))])
        ) == list(range(300))


def test_bpe_dropout_rotates_the_encodings_over_the_epochs(make_task):
    task = make_task(bpe_dropout=0.3, bpe_variants=3)
    assert len({tuple(map(tuple, store.take(range(300)))) for store in task.train.sources}) == 3
    assert len(task.valid.sources) == 1 and [
        row.tolist() for row in task.valid.targets[0].take(range(3))
    ] == [task.target.encode(task.valid.target_texts[row]) for row in range(3)]
    for epoch in range(5):
        rotation, variant = divmod(epoch, 3)
        first = rotation * len(task.plan) + [0, *task.plan.ends][variant]
        batch, rows = task.batch(first), task.rows(first)
        for row, targets in zip(rows, batch.target_out, strict=True):
            ids = task.train.targets[epoch % 3][row].tolist()
            assert targets[: len(ids) + 1].tolist() == [*ids, task.eos]
            assert task.target.decode(ids) == task.train.target_texts[row]


def test_the_stored_encodings_are_sampled_once(make_task):
    first, second = (make_task(bpe_dropout=0.3, bpe_variants=2) for _ in range(2))
    for store, other in zip(first.train.targets, second.train.targets, strict=True):
        assert store.ids.tolist() == other.ids.tolist()


def test_the_validation_loss_is_the_mean_over_all_held_out_tokens_without_label_smoothing(
    make_task,
):
    task = make_task(label_smoothing=0.5)
    model = built(task).eval()
    total = count = 0
    for source, target in zip(task.valid.source_texts, task.valid.target_texts, strict=True):
        source, target = (
            [*task.source.encode(source), task.eos],
            [task.bos, *task.target.encode(target), task.eos],
        )
        logits = model.logits(
            model.decode(torch.tensor([target[:-1]]), model.encode(torch.tensor([source])))
        )[0]
        total += F.cross_entropy(logits, torch.tensor(target[1:]), reduction="sum").item()
        count += len(target) - 1
    metrics = task.validate(model)
    assert metrics["loss"] == pytest.approx(total / count, rel=1e-5)
    assert metrics["perplexity"] == pytest.approx(np.exp(total / count), rel=1e-5)


def test_validation_computes_bleu_if_the_recipe_says_so(make_task):
    task = make_task(valid_bleu=True)
    metrics = task.validate(built(task).eval())
    assert 0 <= metrics["bleu"] <= 100 and 0 <= metrics["exact"] <= 1
    for i, sample in enumerate(metrics["samples"]):
        assert sample.startswith(f"{task.valid.source_texts[i]}\n-> ") and sample.endswith(
            f"({task.valid.target_texts[i]})"
        )
    assert len(metrics["samples"]) == 3


def test_a_validation_compares_each_translation_with_its_own_reference(make_task, monkeypatch):
    task = make_task(valid_bleu=True)
    pairs = zip(task.valid.source_texts, task.valid.target_texts, strict=True)
    right = {
        tuple(task.source.encode(source)): task.target.encode(target) for source, target in pairs
    }

    def perfect(model, sources, config, limits):
        return [right[tuple(source[:-1])] for source in sources]

    monkeypatch.setattr("qkv.train.translation.greedy", perfect)
    metrics = task.validate(built(task).eval())
    assert metrics["exact"] == 1.0 and metrics["bleu"] == pytest.approx(100)


def test_r_drop_adds_the_kl_divergence_of_two_passes(make_task):
    task = make_task(
        r_drop=5.0,
        model={"layers": 1, "d_model": 16, "n_heads": 2, "d_ff": 32, "max_len": 64, "dropout": 0.2},
    )
    model, batch = built(task).double().train(), task.batch(0)
    torch.manual_seed(7)
    found = task.loss(model, batch)
    twice = PairBatch(
        *(torch.cat([ids, ids]) for ids in (batch.source, batch.target_in, batch.target_out))
    )
    torch.manual_seed(7)
    logits, targets = plain_logits(model, task, twice).flatten(0, 1), twice.target_out.flatten()
    losses = F.cross_entropy(
        logits, targets, ignore_index=task.pad, label_smoothing=0.1, reduction="sum"
    )
    p, q = logits[targets != task.pad].softmax(dim=-1).chunk(2)
    apart = (p * (p / q).log()).sum() + (q * (q / p).log()).sum()
    assert apart > 0.01
    torch.testing.assert_close(found, (losses + 5.0 / 2 * apart) / 2, rtol=1e-9, atol=0)
    assert torch.equal(
        task.loss(model.eval(), batch), make_task(model=task.recipe.model).loss(model, batch)
    )


@pytest.mark.parametrize(
    ("settings", "metric"),
    [
        ({"valid_bleu": True}, "bleu"),
        ({"valid_bleu": True, "metric_for_best_model": "loss"}, None),
        ({"valid_bleu": False}, None),
    ],
)
def test_the_recipe_chooses_the_metric_for_the_best_model(make_task, settings, metric):
    assert make_task(**settings).metric == metric


def test_separate_vocabularies_are_trained_on_their_own_side(make_task):
    task = make_task(shared_vocab=False, tokenizer="char")
    assert task.spec.source_vocab_size == task.source.vocab_size and set(task.tokenizers) == {
        "source",
        "target",
    }
    assert "我" in task.source.core.get_vocab() and "我" not in task.target.core.get_vocab()
    assert torch.isfinite(task.loss(built(task), task.batch(0)))


@pytest.mark.parametrize("kind", ["word", "char", "bpe", "byte_bpe", "wordpiece"])
def test_every_tokenizer_type_can_be_used(make_task, kind):
    task = make_task(tokenizer=kind, vocab_size=1_200 if kind in ("bpe", "wordpiece") else 400)
    assert torch.isfinite(task.loss(built(task), task.batch(0)))
    assert len({task.pad, task.bos, task.eos}) == 3


def test_a_new_run_trains_its_tokenizer_and_a_resumed_run_keeps_it(
    make_task, tiny_recipe, corpus, tmp_path
):
    from qkv.train.prepare import prepare_translation

    first = make_task(vocab_size=400)
    assert make_task(vocab_size=400).target.fingerprint == first.target.fingerprint
    other = {"source": str(corpus / "v.zh"), "target": str(corpus / "v.en")}
    grown = prepare_translation(tiny_recipe(**other), tmp_path / "data", resume=True)
    assert grown.target.fingerprint == first.target.fingerprint
    with pytest.raises(QkvError) as error:
        prepare_translation(tiny_recipe(vocab_size=350), tmp_path / "data", resume=True)
    assert str(error.value) == (
        "tokenizer, vocab_size: the run uses another tokenizer; "
        "keep both options as they were, or choose another --out"
    )
    assert make_task(vocab_size=350).target.vocab_size == 350


def test_some_pairs_are_held_out_without_validation_files(make_task, corpus):
    task = make_task(valid_source=None, valid_target=None)
    held, rest = (
        set(zip(data.source_texts, data.target_texts, strict=True))
        for data in (task.valid, task.train)
    )
    lines = [(corpus / name).read_text(encoding="utf-8").splitlines() for name in ("a.zh", "a.en")]
    assert len(held) == 3 and not held & rest and held | rest == set(zip(*lines, strict=True))


def test_held_out_pairs_that_are_all_too_long_are_an_error(make_task, tmp_path):
    (tmp_path / "long.tsv").write_text(f"我{'们' * 70}\tthe {'dog ' * 70}\n", encoding="utf-8")
    with pytest.raises(QkvError, match="none of 1 pairs fits batch_tokens 8,192 and max_len 64"):
        make_task(valid_source=str(tmp_path / "long.tsv"), valid_target=None)
