"""Translator: batches, lines, long texts, alignment, settings, errors."""

import runpy
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import qkv
from qkv.checkpoint.folder import save_model
from qkv.errors import QkvError
from qkv.generate.alignment import cross_weights
from qkv.model.guided import AlignmentHead
from qkv.model.presets import encoder_decoder, encoder_only
from qkv.model.spec import Learned, LmHead
from qkv.model.transformer import Transformer
from qkv.pipeline import Translator
from qkv.text.train_tokenizer import train_tokenizer

TOY = runpy.run_path(str(Path(__file__).with_name("toy_translator.py")))


@pytest.fixture(scope="module")
def digits(tmp_path_factory) -> Translator:
    return qkv.load(TOY["make"](tmp_path_factory.mktemp("digits") / "model"))


@pytest.mark.parametrize("beam_size", [1, 4])
def test_a_translation_of_maximum_length_is_aligned(beam_size):
    tokenizer = train_tokenizer("char", ["一二三四"], 12)
    spec = encoder_decoder(tokenizer.vocab_size, 16, layers=2, n_heads=2, d_ff=16)
    torch.manual_seed(0)
    model = Transformer(replace(spec, max_len=7, positions=Learned(), head=LmHead(bias=True)))
    with torch.no_grad():
        model.lm_head.bias[tokenizer.encode("一二三四")] = 50.0  # <eos> is never generated
    (best,) = Translator.from_model(model, tokenizer, tokenizer).translate(
        ["一二"], alignment=True, beam_size=beam_size
    )[0]
    assert len(best.tokens) == 7 and [link.target for link in best.alignment] == list(best.text)
    ids = tokenizer.encode(best.text)
    source_ids = [*tokenizer.encode("一二"), tokenizer.eos_id]
    weights = cross_weights(model, source_ids, [tokenizer.bos_id, *ids[:-1]])  # row i: token i
    assert [link.weight for link in best.alignment] == [
        round(float(row[:2].max()), 4) for row in weights
    ]


def test_importing_qkv_does_not_import_torch():
    code = (
        "import sys, qkv; qkv.load, qkv.Translator; assert 'torch' not in sys.modules; "
        "qkv.Embedder; assert 'torch' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_a_trained_translator_translates(digits):
    pairs = TOY["pairs"](100, seed=77)
    outputs = digits([source for source, _ in pairs])
    assert sum(output == target for output, (_, target) in zip(outputs, pairs, strict=True)) >= 80


@pytest.mark.parametrize("head", [None, AlignmentHead(0, 1)])
def test_span_links_equal_the_word_links(digits, head):
    aligner = Translator.from_model(digits.model, digits.source, digits.target, alignment=head)
    source, target = "三一三。", "three one three."
    ids = digits.target.encode(target)
    spans, links = aligner.span_links(source, target), aligner.links(source, ids)
    assert [
        (source[start:end], ["three", "one", "three", "."][word]) for start, end, word in spans
    ] == [link[:2] for link in links]
    assert len(links) == 4 if head is None else len(links) <= 4


def test_a_text_gives_a_text_and_an_empty_text_stays_empty(digits):
    assert digits("三一。") == "three one."
    assert digits(["三一。", "", "  ", "四。"]) == ["three one.", "", "", "four."]
    assert digits([]) == [] and digits("") == ""


@pytest.mark.parametrize("beam_size", [1, 4])
def test_translations_are_batch_invariant(digits, beam_size):
    texts = [source for source, _ in TOY["pairs"](40, seed=78)]
    alone = [digits(text, beam_size=beam_size) for text in texts]
    for batch_size in (1, 7, 64):
        assert digits(texts, beam_size=beam_size, batch_size=batch_size) == alone


def test_line_breaks_are_kept(digits):
    assert digits("三一。\n\n四。") == "three one.\n\nfour."
    best, second = digits.translate(["三一。\n\n四。"], n_best=2)[0]
    assert (
        best.text == "three one.\n\nfour."
        and second.text.count("\n") == 2
        and second.score < best.score
    )


def test_n_best_translations_are_sorted_by_score(digits):
    best = digits.translate(["三一二。"], beam_size=5, n_best=3)[0]
    assert best[0].text == "three one two." and best[0].tokens == ["three", "one", "two", "."]
    assert [translation.score for translation in best] == sorted(
        (translation.score for translation in best), reverse=True
    )
    assert len({translation.text for translation in best}) == 3


def test_greedy_scores_equal_those_of_the_same_hypotheses_in_a_beam(digits):
    texts = [source for source, _ in TOY["pairs"](10, seed=79)]
    reported = []
    found = digits.translate(
        texts,
        beam_size=1,
        batch_size=4,
        progress=lambda done, total: reported.append((done, total)),
    )
    assert reported == [(4, 10), (8, 10), (10, 10)]
    wide = digits.translate(texts, beam_size=6, n_best=6)
    for (greedy,), others in zip(found, wide, strict=True):
        same = [other.score for other in others if other.tokens == greedy.tokens]
        assert same and same[0] == pytest.approx(greedy.score, abs=1e-5)


def test_a_long_text_is_translated_sentence_by_sentence(digits, caplog):
    assert digits("三一二四。" * 30) == " ".join(["three one two four."] * 30)
    assert not caplog.records


def test_a_too_long_sentence_is_split_into_parts_with_a_warning(digits, caplog):
    (parts,) = digits.segment(["三一二四，" * 30 + "五。"])
    assert "".join(part.text for part in parts) == "三一二四，" * 30 + "五。" and len(parts) == 5
    assert all(
        part.ids == digits.source.encode(part.text) and len(part.ids) <= 39 for part in parts
    )
    assert [record.getMessage() for record in caplog.records] == [
        "'三一二四，三一二四，三一二四，三一二四，三一二四，三一二四，…': "
        "152 tokens, the maximum is 39; translated in 5 parts"
    ]


def test_max_target_len_limits_the_translation(digits):
    assert digits("三一二四五。", max_target_len=2) == "three one"
    assert digits("三一二四五。", max_target_len=10_000) == "three one two four five."


def test_alignment_links_target_words_to_source_words(digits):
    links = digits.translate(["三一四。"], alignment=True)[0][0].alignment
    assert [(link.source, link.target) for link in links] == [
        ("三", "three"),
        ("一", "one"),
        ("四", "four"),
        ("。", "."),
    ]
    assert all(1 / 5 < link.weight <= 1 for link in links)  # above uniform over 5 source tokens
    assert digits.translate(["三一四。", ""], alignment=False)[0][0].alignment is None
    assert digits.translate([""], alignment=True)[0][0].alignment == []


def test_a_saved_translator_gives_the_same_translations(digits, tmp_path):
    digits.save(tmp_path / "copy")
    copy, texts = qkv.load(tmp_path / "copy"), ["三一二。", "九八七六。"]
    assert copy.translate(texts, n_best=4) == digits.translate(texts, n_best=4)


def test_a_shared_vocabulary_is_saved_once(tmp_path):
    tokenizer = train_tokenizer("byte_bpe", ["我爱 you"], 300)
    model = Transformer(encoder_decoder(tokenizer.vocab_size, 16, layers=2, n_heads=2, d_ff=16))
    Translator.from_model(model, tokenizer, tokenizer).save(tmp_path)
    assert {path.name for path in tmp_path.glob("*.json")} >= {"model.json", "tokenizer.json"}
    (best,) = qkv.load(tmp_path).translate(["我爱 you"], alignment=True)[0]
    assert isinstance(best.text, str) and best.alignment is not None


def test_learned_positions_are_never_exceeded():
    tokenizer = train_tokenizer("char", ["abcdefg"], 20)
    spec = replace(
        encoder_decoder(tokenizer.vocab_size, 16, layers=1, n_heads=2, d_ff=16),
        max_len=9,
        positions=Learned(),
    )
    untrained = Translator.from_model(Transformer(spec), tokenizer, tokenizer)
    for beam_size in (1, 3):
        assert isinstance(untrained("abcdefg" * 5, beam_size=beam_size), str)


@pytest.mark.parametrize(
    "settings, line",
    [
        ({"beam_size": 0}, "beam_size: 0 is out of range; use 1 to 1,024"),
        ({"n_best": 5}, "n_best: 5 is larger than beam_size 4; raise beam_size or lower n_best"),
        (
            {"length_penalty": -0.1},
            "length_penalty: -0.1 is out of range; use 0 to 20; the 2017 paper uses 0.6",
        ),
        (
            {"length_penalty": 400.0},
            "length_penalty: 400 is out of range; use 0 to 20; the 2017 paper uses 0.6",
        ),
        (
            {"length_penalty": float("nan")},
            "length_penalty: nan is out of range; use 0 to 20; the 2017 paper uses 0.6",
        ),
        ({"max_target_len": 0}, "max_target_len: 0 is out of range; use 1 to 1,048,576"),
    ],
)
def test_invalid_settings_are_rejected(digits, settings, line):
    with pytest.raises(QkvError) as error:
        digits("三", **settings)
    assert str(error.value) == line


def test_a_folder_of_another_model_is_rejected(tmp_path):
    save_model(
        tmp_path,
        Transformer(encoder_only(20, 16, 1, 2, 16)),
        {"tokenizer": train_tokenizer("char", ["abc"], 20)},
    )
    assert isinstance(qkv.load(tmp_path), qkv.Embedder)
    with pytest.raises(QkvError) as error:
        Translator.load(tmp_path)
    assert str(error.value) == (
        f"{tmp_path}: not a translation model; use an encoder-decoder model with a causal decoder"
    )


def test_an_unavailable_device_is_rejected(tmp_path):
    with pytest.raises(QkvError) as error:
        qkv.load(tmp_path, device="abacus")
    assert str(error.value) == "device: 'abacus' is not available; use cpu"


def test_a_model_without_a_tokenizer_is_rejected(tmp_path):
    save_model(tmp_path, Transformer(encoder_decoder(20, 16, 1, 2, 16)), {})
    with pytest.raises(QkvError) as error:
        qkv.load(tmp_path)
    assert str(error.value) == f"{tmp_path}: no tokenizer.json; is the copy complete?"


def test_a_float64_model_translates(digits):
    try:
        digits.model.double()
        assert digits("三一。") == "three one."
    finally:
        digits.model.to(torch.float32)
