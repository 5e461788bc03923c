"""`qkv evaluate` of an embedding model: correlations and retrieval."""

import json

import numpy as np
import pytest
import torch
from scipy import stats as scipy_stats

from qkv.cli.app import run
from qkv.data.scored import read_scored
from qkv.errors import QkvError
from qkv.model.presets import encoder_only
from qkv.model.transformer import Transformer
from qkv.pipeline.embedder import Embedder
from qkv.text.train_tokenizer import train_tokenizer

PAIRS = [
    ("the cat sat", "a cat is sitting", 4.5),
    ("the cat sat", "stocks fell", 0.2),
    ("dogs run", "a dog runs", 5.0),
    ("rain today", "it is raining", 4.0),
    ("rain today", "dogs run", 0.5),
    ("rain today", "the cat sat", 0.5),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    torch.manual_seed(0)
    tokenizer = train_tokenizer("wordpiece", [text for a, b, _ in PAIRS for text in (a, b)], 90)
    path = tmp_path_factory.mktemp("pairs") / "model"
    Embedder(Transformer(encoder_only(tokenizer.vocab_size, 16, 1, 2, 24)), tokenizer).save(path)
    return path


def as_tsv(path):
    path.write_text("".join(f"{a}\t{b}\t{score}\n" for a, b, score in PAIRS), encoding="utf-8")
    return path


def as_jsonl(path):
    keys = ("sentence1", "sentence2", "score")
    path.write_text(
        "".join(json.dumps(dict(zip(keys, pair, strict=True))) + "\n\n" for pair in PAIRS),
        encoding="utf-8",
    )
    return path


@pytest.mark.parametrize("write, name", [(as_tsv, "pairs.tsv"), (as_jsonl, "pairs.jsonl")])
def test_correlations_of_the_cosines_equal_scipys(folder, tmp_path, capsys, write, name):
    run(["evaluate", str(folder), "--pairs", str(write(tmp_path / name)), "--json"])
    report, embedder = json.loads(capsys.readouterr().out), Embedder.load(folder)
    a, b = (embedder([pair[n] for pair in PAIRS], normalize=True) for n in (0, 1))
    scores, cosines = [pair[2] for pair in PAIRS], (a * b).sum(axis=1)
    assert report["pairs"] == 6
    assert report["spearman"] == pytest.approx(
        scipy_stats.spearmanr(cosines, scores).statistic, abs=1e-6
    )
    assert report["pearson"] == pytest.approx(
        scipy_stats.pearsonr(cosines, scores).statistic, abs=1e-5
    )
    positives = [0, 2]  # 4.5 and 5.0: the top fifth of the range 0.2 to 5.0 starts at 4.04
    assert report["alignment_pairs"] == 2
    assert report["alignment"] == pytest.approx(
        float((np.linalg.norm(a[positives] - b[positives], axis=1) ** 2).mean()), abs=1e-5
    )
    distinct = embedder(
        sorted({text for one, two, _ in PAIRS for text in (one, two)}), normalize=True
    )
    kernel = [
        np.exp(-2 * np.sum((x - y) ** 2)) for n, x in enumerate(distinct) for y in distinct[:n]
    ]
    assert report["uniformity"] == pytest.approx(float(np.log(np.mean(kernel))), abs=1e-5)


def test_the_text_output_has_three_lines(folder, tmp_path, capsys):
    run(["evaluate", str(folder), "--pairs", str(as_tsv(tmp_path / "pairs.tsv"))])
    first, second, third = capsys.readouterr().out.splitlines()
    assert first.startswith("Spearman ") and first.endswith("(6 pairs)")
    assert (
        second.startswith("alignment ")
        and "uniformity -" in second
        and third.endswith(" sentences/s")
    )


def test_retrieval_is_evaluated_in_both_directions(folder, tmp_path, capsys):
    lines = ["the cat sat", "dogs run", "rain today", "stocks fell", "the cat sat dogs run"]
    (tmp_path / "a").write_text("\n".join(lines), encoding="utf-8")
    (tmp_path / "b").write_text(
        "\n".join([*lines[:3], lines[4], lines[3]]), encoding="utf-8"
    )  # two lines are swapped
    run(
        [
            "evaluate",
            str(folder),
            "--source",
            str(tmp_path / "a"),
            "--target",
            str(tmp_path / "b"),
            "--json",
        ]
    )
    report = json.loads(capsys.readouterr().out)
    assert (
        report["source_to_target"]["recall_at_1"]
        == report["target_to_source"]["recall_at_1"]
        == pytest.approx(0.6)
    )
    assert report["mean"]["recall_at_5"] == 1.0 and report["pairs"] == 5
    run(["evaluate", str(folder), "--source", str(tmp_path / "a"), "--target", str(tmp_path / "a")])
    rows = capsys.readouterr().out.splitlines()
    assert rows[0] == "recall@k among 5 sentences"
    assert rows[1] == "  a -> a   @1: 100.0%  @5: 100.0%  @10: 100.0%   MRR 1.0000"
    assert rows[3].startswith("alignment 0.0000, uniformity -")


RIGHT = "write sentence<TAB>sentence<TAB>score"
JSON_RIGHT = 'write {"sentence1": "...", "sentence2": "...", "score": 4.2}'


@pytest.mark.parametrize(
    "name, content, line",
    [
        ("p.tsv", "a\tb\t1\na\tb\n", f"line 2: 2 of 3 columns; {RIGHT}"),
        ("p.tsv", "a\tb\t1\na b\n", f"line 2: 1 of 3 columns; {RIGHT}"),
        ("p.tsv", "a\tb\t1\na\t \t2\n", f"line 2: an empty sentence; {RIGHT}"),
        ("p.tsv", "a\tb\thigh\n", f"line 1: 'high' is not a score; {RIGHT}"),
        ("p.tsv", "a\tb\tnan\n", f"line 1: 'nan' is not a score; {RIGHT}"),
        ("p.jsonl", '{"sentence1": "a", "score": 1}\n', f"line 1: no 'sentence2'; {JSON_RIGHT}"),
        (
            "p.jsonl",
            '{"sentence1": "a", "sentence2": 3, "score": 1}\n',
            f"line 1: an empty sentence; {JSON_RIGHT}",
        ),
        ("p.jsonl", "{\n", f"line 1: not JSON; {JSON_RIGHT}"),
    ],
)
def test_a_bad_line_is_named(tmp_path, name, content, line):
    (tmp_path / name).write_text(content, encoding="utf-8")
    with pytest.raises(QkvError) as error:
        read_scored(tmp_path / name)
    assert str(error.value) == f"{tmp_path / name}, {line}"


def test_one_pair_is_too_few_to_compare(tmp_path):
    (tmp_path / "p.tsv").write_text("a\tb\t1\n\n", encoding="utf-8")
    with pytest.raises(QkvError, match=r"p.tsv: 1 pairs; give at least two pairs"):
        read_scored(tmp_path / "p.tsv")


def test_int8_is_rejected_for_embeddings(folder, tmp_path):
    with pytest.raises(QkvError, match="--int8: embeddings are computed in float32; omit it"):
        run(["evaluate", str(folder), "--pairs", str(as_tsv(tmp_path / "pairs.tsv")), "--int8"])
