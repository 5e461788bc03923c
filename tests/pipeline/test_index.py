"""The vector index: exact nearest neighbors, rebuilding, old metadata, vector files."""

import json

import numpy as np
import pytest
import torch

from qkv.errors import QkvError
from qkv.model.presets import encoder_only
from qkv.model.transformer import Transformer
from qkv.pipeline.embed_options import EmbedOptions
from qkv.pipeline.embedder import Embedder
from qkv.pipeline.index import Hit, Index
from qkv.pipeline.vectors import VectorWriter
from qkv.text.train_tokenizer import train_tokenizer

SENTENCES = [
    f"the {animal} {verb} {place}"
    for animal in ("cat", "dog", "cow")
    for verb in ("sat", "ran", "ate")
    for place in ("here", "there", "in the house")
]


def embedder(seed: int = 0) -> Embedder:
    torch.manual_seed(seed)
    tokenizer = train_tokenizer("wordpiece", SENTENCES, 80)
    return Embedder(Transformer(encoder_only(tokenizer.vocab_size, 16, 1, 2, 24)), tokenizer)


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "sentences.txt"
    path.write_text("\n".join(SENTENCES) + "\n", encoding="utf-8")
    return path


def test_hits_equal_those_of_a_full_comparison(file):
    model, queries = embedder(), ["the cow ate", "dog"]
    hits = Index.open(model, file).search(queries, k=4)
    a, b = (
        model(queries, normalize=True).astype(np.float64),
        model(SENTENCES, normalize=True).astype(np.float64),
    )
    for found, scores in zip(hits, a @ b.T, strict=True):
        order = np.argsort(-scores)[:4]
        assert [hit.line - 1 for hit in found] == order.tolist()
        assert [hit.score for hit in found] == pytest.approx(scores[order], abs=1e-6)
        assert [hit.text for hit in found] == [SENTENCES[row] for row in order]


def test_a_sentence_finds_itself_and_k_may_exceed_the_number_of_lines(file):
    index = Index.open(embedder(), file)
    for line, found in enumerate(index.search(SENTENCES, k=1), start=1):
        assert found == [Hit(line, pytest.approx(1.0, abs=1e-6), SENTENCES[line - 1])]
    assert len(index.search(["cat"], k=1_000)[0]) == len(SENTENCES)


def test_the_index_is_rebuilt_only_when_the_file_or_options_change(file):
    progress, model = [], embedder()
    Index.open(model, file, progress=progress.append)
    assert progress.pop() == 27 and (file.parent / "sentences.txt.index" / "vectors.npy").exists()
    progress.clear()
    assert Index.open(model, file, progress=progress.append).search(["cat"], 1) and not progress
    file.write_text("the pig\nthe cat sat here\n", encoding="utf-8")
    assert (
        Index.open(model, file, progress=progress.append).search(["the pig"], 1)[0][0].text
        == "the pig"
    )
    assert progress[-1] == 2
    progress.clear()
    options = EmbedOptions(pooling="max", dimensions=8)
    Index.open(model, file, options=options, progress=progress.append)
    assert progress[-1] == 2
    assert Index.open(model, file, options=options).vectors.shape == (2, 8)


@pytest.mark.parametrize(("old", "new"), [("cut", "truncate"), ("split", "chunk")])
def test_an_index_with_the_old_field_long_is_not_rebuilt(file, old, new):
    model, options, progress = embedder(), EmbedOptions(truncation=new), []
    Index.open(model, file, options=options)
    metadata = file.parent / "sentences.txt.index" / "index.json"
    stored = json.loads(metadata.read_text())
    del stored["truncation"]
    metadata.write_text(json.dumps({**stored, "long": old}))
    Index.open(model, file, options=options, progress=progress.append)
    assert not progress


def test_an_index_of_another_model_is_rejected_unless_rebuilt(file, tmp_path):
    Index.open(embedder(), file)
    with pytest.raises(QkvError) as error:
        Index.open(embedder(seed=1), file)
    assert str(error.value) == (
        f"{file}.index: holds vectors of another model; "
        "use --rebuild, or --index with another folder"
    )
    assert Index.open(embedder(seed=1), file, tmp_path / "elsewhere").search(["cat"])
    assert Index.open(embedder(seed=1), file, rebuild=True).search(["cat"])


def test_an_incomplete_index_is_rebuilt(file):
    model = embedder()
    Index.open(model, file)
    (file.parent / "sentences.txt.index" / "index.json").write_text("{", encoding="utf-8")
    progress = []
    Index.open(model, file, progress=progress.append)
    assert progress[-1] == 27


def test_a_damaged_index_is_reported(file):
    model = embedder()
    Index.open(model, file)
    (file.parent / "sentences.txt.index" / "vectors.npy").write_bytes(b"no vectors")
    with pytest.raises(QkvError) as error:
        Index.open(model, file)
    assert str(error.value) == f"{file}.index/vectors.npy: damaged; use --rebuild"


@pytest.mark.parametrize(
    "content, line",
    [
        (
            "the cat\n\nthe dog\n",
            "{file}, line 2: empty text; an empty text has no embedding; remove the line",
        ),
        ("", "{file}: empty file; give a text file with at least one line"),
    ],
)
def test_a_file_that_cannot_be_read_leaves_no_index(file, content, line):
    file.write_text(content, encoding="utf-8")
    with pytest.raises(QkvError) as error:
        Index.open(embedder(), file)
    assert str(error.value) == line.format(file=file)
    assert not list((file.parent / "sentences.txt.index").glob("*"))


def test_a_missing_file_and_k_0_are_rejected(file, tmp_path):
    with pytest.raises(QkvError, match=r"none.txt: no such file; check the path"):
        Index.open(embedder(), tmp_path / "none.txt")
    with pytest.raises(QkvError, match="k: 0 is out of range; use 1 to 1,000,000"):
        Index.open(embedder(), file).search(["cat"], k=0)


# ── Vectors on disk ───────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize("blocks", [[], [0], [3, 1, 4]])
def test_an_incrementally_written_matrix_is_read_by_numpy(blocks, tmp_path):
    rows = np.random.default_rng(0).normal(size=(sum(blocks), 5)).astype(np.float32)
    with VectorWriter(tmp_path / "a.npy", 5) as out:
        for size in blocks:
            out.add(["text"] * size, rows[out.count : out.count + size])
    assert np.array_equal(np.load(tmp_path / "a.npy"), rows) and out.count == sum(blocks)


def test_a_vector_file_is_written_atomically(tmp_path):
    with pytest.raises(RuntimeError), VectorWriter(tmp_path / "a.npy", 2) as out:
        out.add(["text"], np.zeros((1, 2)))
        raise RuntimeError("interrupted")
    assert not list(tmp_path.iterdir())
    with pytest.raises(QkvError, match=r"a.txt: unknown file type '.txt'; use .npy, .jsonl"):
        VectorWriter(tmp_path / "a.txt", 2)
