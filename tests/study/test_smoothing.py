"""The study of label smoothing: calibration against exact fractions, losses without smoothing."""

from fractions import Fraction

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from qkv.study.config import StudyConfig
from qkv.study.question import Trial
from qkv.study.smoothing import BINS, QUESTION, calibration_error, load_pairs
from qkv.study.texts import write_data
from qkv.study.translation import TextPair, Translator, bleu, predict, spec_of, translation_loss


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    """The first 400 built-in pairs, the held-out pairs and a tokenizer."""
    folder = tmp_path_factory.mktemp("data")
    write_data(QUESTION, StudyConfig(), folder)
    lines = (folder / "train.tsv").read_text(encoding="utf-8").splitlines(keepends=True)
    (folder / "train.tsv").write_text("".join(lines[:400]), encoding="utf-8")
    return load_pairs(folder)


@pytest.fixture(scope="module")
def translator(pairs):
    from qkv.model.transformer import Transformer

    torch.manual_seed(0)
    return Translator(Transformer(spec_of(pairs[2].vocab_size)), pairs[2])


def exact_calibration_error(confidences, right):
    """The definition of Guo et al. 2017, bin by bin, in exact fractions."""
    total = Fraction(0)
    for index in range(BINS):
        last = index == BINS - 1
        members = [
            (Fraction(float(p)), int(correct))
            for p, correct in zip(confidences, right, strict=True)
            if index <= Fraction(float(p)) * BINS < index + 1 or (last and p == 1)
        ]
        if members:
            accuracy = Fraction(sum(correct for _, correct in members), len(members))
            confidence = sum(p for p, _ in members) / len(members)
            total += Fraction(len(members), len(confidences)) * abs(accuracy - confidence)
    return float(total)


@pytest.mark.parametrize("seed", range(5))
def test_the_calibration_error_is_that_of_the_definition(seed):
    generator = np.random.default_rng(seed)
    confidences = np.append(generator.random(300), [0.0, 1.0, 1.0])
    right = generator.random(303) < confidences**2
    expected = exact_calibration_error(confidences, right)
    assert calibration_error(confidences, right) == pytest.approx(expected, abs=1e-12)
    assert expected > 0.05


def test_predictions_are_those_of_each_sentence_alone(pairs, translator):
    """Without padding, and the loss by another formula."""
    test = pairs[1][:5]
    found = predict(translator, test)
    losses, confidences, right = [], [], []
    model, tokenizer = translator
    model.eval()
    for pair in test:
        source = torch.tensor([[*tokenizer.encode(pair.source), tokenizer.eos_id]])
        target = tokenizer.encode(pair.target)
        with torch.no_grad():
            stream = model.decode(torch.tensor([[tokenizer.bos_id, *target]]), model.encode(source))
            probs = model.logits(stream)[0].double().softmax(dim=-1)  # (target, vocab)
        out = torch.tensor([*target, tokenizer.eos_id])
        losses += (-probs[range(len(out)), out].log()).tolist()
        confidences += probs.amax(dim=-1).tolist()
        right += (probs.argmax(dim=-1) == out).tolist()
    assert found.losses == pytest.approx(losses, abs=1e-4)
    assert found.confidences == pytest.approx(confidences, abs=1e-5)
    assert found.right.tolist() == right


def test_the_training_loss_is_torchs_with_smoothing(pairs, translator):
    trial = Trial({}, 0, 1, None, lambda step: None)
    model, tokenizer = translator
    model.eval()
    pair = pairs[0][0]
    loss_of, n_tokens = translation_loss(translator, [pair], trial, 64, 0.1)
    source = torch.tensor([[*tokenizer.encode(pair.source), tokenizer.eos_id]])
    target = tokenizer.encode(pair.target)
    logits = model.logits(
        model.decode(torch.tensor([[tokenizer.bos_id, *target]]), model.encode(source))
    )[0]
    expected = F.cross_entropy(
        logits, torch.tensor([*target, tokenizer.eos_id]), label_smoothing=0.1
    )
    assert loss_of(1).item() == pytest.approx(expected.item(), abs=1e-4)
    assert n_tokens == [len(target) + 1]


def test_bleu_of_the_references_is_100(pairs):
    test = pairs[1][:50]
    assert bleu([pair.target for pair in test], test) == pytest.approx(100)
    assert bleu(["no"] * 2, [TextPair("", "a b c d e")] * 2) == 0
