"""Guided alignment: the loss of the textbook, exact resume, a head that learns to align."""

import json
import os
import signal

import pytest
import torch

from qkv.checkpoint.loaded_model import alignment_head
from qkv.data.builtin import builtin_pairs
from qkv.data.builtin.links import pharaoh
from qkv.errors import QkvError
from qkv.evaluate.alignment_error import alignment_error_rate
from qkv.generate.alignment import cross_weights
from qkv.model.guided import AlignmentHead, GuidedCore, core_path, guide, guided_loss
from qkv.model.presets import encoder_decoder
from qkv.model.transformer import Transformer
from qkv.pipeline import Translator
from qkv.text.word_boundaries import word_spans
from qkv.textbook.alignment import guided_alignment_loss
from qkv.train.signals import STOPPED

HEAD = AlignmentHead(layer=1, head=1)


@pytest.fixture
def alignment(corpus, tmp_path):
    """The gold alignments of the corpus, as a file."""
    file = tmp_path / "a.align"
    file.write_text(
        "".join(f"{pharaoh(pair.links)}\n" for pair in builtin_pairs()[0][:300]), encoding="utf-8"
    )
    return str(file)


def small_model(**changes):
    torch.manual_seed(1)
    return Transformer(encoder_decoder(20, 16, 3, n_heads=2, d_ff=16, **changes)).double()


SOURCE, TARGET = torch.tensor([[5, 6, 7, 2], [8, 2, 0, 0]]), torch.tensor([[1, 9, 8], [1, 4, 0]])


def test_the_guided_weights_are_those_of_the_head_and_the_loss_is_the_textbooks():
    model = small_model(dropout=0.0).train()
    core = guide(model, HEAD)
    attention_mask = SOURCE.ne(0)
    model.decode(TARGET, model.encode(SOURCE, attention_mask))
    log_weights = core.take_log_weights()  # (batch, target, source)
    for row, length in enumerate(attention_mask.sum(dim=1).tolist()):
        expected = cross_weights(
            model.eval(), SOURCE[row, :length].tolist(), TARGET[row].tolist(), HEAD
        )
        torch.testing.assert_close(log_weights[row, :, :length].exp(), expected, rtol=0, atol=1e-12)
    gold = torch.zeros(2, 3, 4, dtype=torch.float64)
    gold[0, 0, 1], gold[0, 1, 2], gold[0, 1, 3], gold[1, 0, 0] = 1, 0.5, 0.5, 1
    textbook = sum(guided_alignment_loss(log_weights[row].exp(), gold[row]) for row in (0, 1))
    torch.testing.assert_close(guided_loss(log_weights, gold), textbook, rtol=0, atol=1e-10)


def test_the_gradient_reaches_the_queries_and_keys_of_the_guided_head_only():
    model = small_model(dropout=0.0).train()
    core = guide(model, HEAD)
    model.decode(TARGET, model.encode(SOURCE, SOURCE.ne(0)))
    gold = torch.zeros(2, 3, 4, dtype=torch.float64)
    gold[:, 0, 0] = 1
    guided_loss(core.take_log_weights(), gold).backward()
    cross = model.decoder.layers[1].cross.branch
    for proj in (cross.q_proj, cross.k_proj):
        first, second = proj.weight.grad.split(8)  # rows of head 0 and of head 1
        assert not first.any() and second.any()
    assert model.decoder.layers[2].cross.branch.q_proj.weight.grad is None


def test_guiding_a_head_does_not_change_the_outputs():
    plain, guided = small_model().eval(), small_model().eval()
    guide(guided, HEAD)
    memory = plain.encode(SOURCE)
    assert torch.equal(plain.decode(TARGET, memory), guided.decode(TARGET, memory))
    core = guided.get_submodule(core_path(1))
    assert (
        isinstance(core, GuidedCore)
        and core.log_weights is None
        and plain.state_dict().keys() == guided.state_dict().keys()
    )


@pytest.mark.parametrize("changes", [{}, {"r_drop": 1.0}, {"bpe_dropout": 0.1, "bpe_variants": 2}])
def test_the_loss_of_a_batch_includes_the_alignments_of_its_pairs(make_task, alignment, changes):
    changes = {"label_smoothing": 0.0, **changes}
    guided = make_task(alignment=alignment, guided_alignment_weight=2.0, **changes)
    plain = make_task(**changes)
    last = len(guided.plan) - 1  # with BPE-dropout, a batch of the last encoding
    batch, rows, model = guided.batch(last), guided.rows(last), guided.initial_model().train()
    assert batch.gold.shape == (*batch.target_in.shape, batch.source.shape[1])
    torch.testing.assert_close(batch.gold.sum(dim=2), batch.target_out.ne(guided.pad).float())
    for row, index in enumerate(rows.tolist()):
        assert linked_texts(guided, batch, row, builtin_pairs()[0][index]) == linked_words(
            builtin_pairs()[0][index]
        )
    losses = []
    for task in (guided, plain):
        torch.manual_seed(1)
        losses.append(task.loss(model, batch))
    log_weights = model.get_submodule(
        core_path(0)
    ).take_log_weights()  # those of the second pass, with equal dropout
    twice = torch.cat([batch.gold, batch.gold]) / 2 if guided.recipe.r_drop else batch.gold
    torch.testing.assert_close(losses[0], losses[1] + 2.0 * guided_loss(log_weights, twice))


def linked_words(pair):
    """For each character of the target's words, the characters it is linked with in the file."""
    spans, links = (
        word_spans(pair.target),
        [link.split("-") for link in pharaoh(pair.links).split()],
    )
    return {
        place: {pair.source[int(source)] for source, word in links if int(word) == number}
        for number, (start, end) in enumerate(spans)
        for place in range(start, end)
    }


def linked_texts(task, batch, row, pair):
    """The same by the tokens of a batch; a source token may be longer than the word."""
    found, end = {}, 0
    source, target = batch.source[row].tolist(), batch.target_out[row].tolist()
    for place, id in enumerate(target[: target.index(task.eos)]):
        start, end = (
            end,
            len(task.target.decode(target[: place + 1]).lstrip(" ")),
        )  # a prefix space alone is no character
        tokens = [
            source[s]
            for s in batch.gold[row, place].nonzero().flatten().tolist()
            if source[s] != task.eos
        ]
        for at in range(start, end):
            if pair.target[at] != " ":
                allowed = linked_words(pair)[at]
                assert bool(tokens) == bool(allowed), (pair, id)
                assert allowed <= set(task.source.decode(tokens)) or "\ufffd" in task.source.decode(
                    tokens
                )
                found[at] = allowed
    return found


def test_a_resumed_run_equals_an_uninterrupted_one(trainer, alignment):
    changes = {"alignment": alignment, "bpe_dropout": 0.1, "bpe_variants": 2, "steps": 6}
    whole, broken = trainer("run", **changes), trainer("other", **changes)
    assert whole.run() == 0
    batch = broken.task.batch

    def stopped(micro_step):
        if micro_step == 3:
            os.kill(os.getpid(), signal.SIGTERM)
        return batch(micro_step)

    broken.task.batch = stopped
    assert broken.run() == STOPPED
    resumed = trainer("other", resume=True, **changes)
    assert resumed.progress.step == 4 and resumed.run() == 0
    for name, weight in whole.model.state_dict().items():
        assert torch.equal(weight, resumed.model.state_dict()[name]), name


def test_a_run_learns_to_align_and_stores_the_head(trainer, alignment, tmp_path):
    changes = {"batch_tokens": 2_000, "lr": 2e-2, "vocab_size": 600, "guided_alignment_weight": 2.0}
    changes |= dict.fromkeys(("steps", "save_every", "validate_every"), 150)
    pairs, errors = builtin_pairs()[0][:60], {}
    for name, file in (("run", None), ("other", alignment)):
        assert trainer(name, alignment=file, **changes).run() == 0
        errors[name] = alignment_error_rate(Translator.load(tmp_path / name), pairs)
    assert json.loads((tmp_path / "other" / "alignment.json").read_text("utf-8")) == {
        "layer": 0,
        "head": 0,
    }
    assert not (tmp_path / "run" / "alignment.json").exists()
    assert (
        Translator.load(tmp_path / "other").alignment == AlignmentHead(0, 0)
        and Translator.load(tmp_path / "run").alignment is None
    )
    assert errors["other"] < 0.7 * errors["run"]
    # 0.05 is the limit of the demo (tests/explore/test_page_demo.py): it needs guided alignment.
    assert errors["run"] > 0.05


def test_an_invalid_alignment_file_is_an_error_before_training(make_task, tmp_path):
    with pytest.raises(QkvError, match="no such file"):
        make_task(alignment=str(tmp_path / "missing.align"))
    (tmp_path / "short.align").write_text("0-0\n", encoding="utf-8")
    with pytest.raises(QkvError, match="ends after line 1"):
        make_task(alignment=str(tmp_path / "short.align"))


@pytest.mark.parametrize(
    "stored",
    [
        {"layer": 3, "head": 0},
        {"layer": 0, "head": 2},
        {"layer": -1, "head": 0},
        {"layer": 0},
        [0, 0],
        "0",
    ],
)
def test_an_alignment_head_that_does_not_exist_is_an_error(stored):
    with pytest.raises(QkvError) as error:
        alignment_head(stored, small_model().spec, "alignment.json")
    wrong = (
        f"alignment.json: names no cross-attention head of this model: {stored}; "
        "write a layer and a head, both from 0"
    )
    assert str(error.value) == wrong


def test_a_saved_translator_keeps_its_alignment_head(trainer, alignment, tmp_path):
    assert trainer("run", alignment=alignment, steps=3).run() == 0
    Translator.load(tmp_path / "run").save(tmp_path / "copy")
    assert Translator.load(tmp_path / "copy").alignment == AlignmentHead(0, 0)
