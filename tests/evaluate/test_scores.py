"""Scores equal those of sacrebleu's command line, run as a separate process."""

import json
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from qkv.errors import QkvError
from qkv.evaluate.scores import bleu_tokenizer, compare, detect_language, score

LINES_ZH = [
    "我爱机器学习。",
    "今天天气真好！",
    "那只动物没有过马路，因为它太累了。",
    "他用GPU训练Transformer模型。",
]
LINES_EN = [
    "I love machine learning .",
    "The weather is nice today .",
    "It was too tired .",
    "He trains a model .",
]


def sacrebleu(folder: Path, references: list[str], *systems: list[str], options: list[str]) -> str:
    """The output of the command line for these lines."""
    paths = [folder / f"{number}.txt" for number in range(len(systems) + 1)]
    for path, lines in zip(paths, [references, *systems], strict=True):
        path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    command = [
        sys.executable,
        "-m",
        "sacrebleu",
        str(paths[0]),
        "-i",
        *map(str, paths[1:]),
        "-m",
        "bleu",
        "chrf",
    ]
    done = subprocess.run(
        [*command, *options], capture_output=True, encoding="utf-8", check=True, timeout=60
    )
    return done.stdout


def worse(lines: list[str], every: int) -> list[str]:
    """Each `every`-th line is replaced by its neighbor, a third of the rest is cut."""
    return [
        lines[n - 1] if n % every == 0 else line[: len(line) * 2 // 3] if n % 3 == 0 else line
        for n, line in enumerate(lines)
    ]


@pytest.mark.parametrize(
    "name, language, options",
    [
        ("tatoeba_zh_en/valid.zh", "zh", ["-l", "en-zh"]),
        ("tatoeba_zh_en/valid.zh", "zh-Hans", ["-l", "en-zh"]),
        ("tatoeba_zh_en/valid.zh", "", ["-l", "en-zh"]),
        ("tatoeba_zh_en/valid.en", "en", ["-l", "zh-en"]),
        ("multi30k/val.de", "de", []),
    ],
    ids=str,
)
def test_the_output_equals_that_of_the_sacrebleu_command(shared, tmp_path, name, language, options):
    references = (shared / name).read_text(encoding="utf-8").splitlines()[:300]
    ours = score(worse(references, 5), references, language)
    assert f"{ours}\n" == sacrebleu(
        tmp_path, references, worse(references, 5), options=[*options, "-f", "text"]
    )
    assert 10 < ours.bleu < 95


def test_tokenized_files_are_scored_as_they_are(shared, tmp_path):
    references = (shared / "multi30k_tok/val.de").read_text(encoding="utf-8").splitlines()[:300]
    ours = score(worse(references, 4), references, "de", tokenize="none")
    assert "|tok:none|" in ours.bleu_signature
    options = ["--tokenize", "none", "-f", "text"]
    assert f"{ours}\n" == sacrebleu(tmp_path, references, worse(references, 4), options=options)


@pytest.mark.parametrize(
    "references, language, tok", [(LINES_ZH, "zh-CN", "zh"), (LINES_EN, "en", "13a")]
)
def test_scores_and_signatures_equal_the_command_lines_json(tmp_path, references, language, tok):
    outputs = worse(references, 3)
    ours = score(outputs, references, language)
    theirs = json.loads(
        sacrebleu(tmp_path, references, outputs, options=["--tokenize", tok, "-w", "12"])
    )
    assert [round(ours.bleu, 12), round(ours.chrf, 12)] == [entry["score"] for entry in theirs]
    assert [ours.bleu_signature, ours.chrf_signature] == [entry["signature"] for entry in theirs]


def test_signatures_have_the_form_of_sacrebleu():
    signature = score(["a"], ["a"], "zh_TW").bleu_signature
    assert signature.startswith("nrefs:1|case:mixed|eff:no|tok:zh|smooth:exp|version:")
    assert score(["a"], ["a"]).chrf_signature.startswith(
        "nrefs:1|case:mixed|eff:yes|nc:6|nw:0|space:no|version:"
    )


def test_exact_match_is_the_fraction_of_equal_lines():
    ours = score(["one", "two ", "drei", "four"], ["one", "two", "three", "four"])
    assert (ours.exact, ours.sentences) == (0.75, 4)
    assert json.loads(json.dumps(ours.as_json()))["exact"] == 0.75


def test_a_comparison_equals_the_command_lines_paired_bootstrap(tmp_path):
    references = [f"{line} {number} {number * 7 % 31}" for number in range(15) for line in LINES_EN]
    first, second = worse(references, 8), worse(references, 7)
    ours = compare(first, second, references, "en", names=("first", "second"))
    printed = sacrebleu(tmp_path, references, first, second, options=["--paired-bs", "-f", "text"])
    number = r"\d+\.\d+"
    theirs = re.findall(rf"{number} \({number} ± {number}\)|p = {number}", printed)
    cells = [cell.rstrip("*") for row in ours.rows()[1:] for cell in row[1:3]]
    assert cells == theirs and len(cells) == 6
    assert all(0.0015 < p < 1 for p in (ours.p_bleu, ours.p_chrf)), "p-values between the extremes"
    assert "bs:1000|seed:12345|" in ours.signatures[0]


def test_a_comparison_is_a_table_that_marks_a_significant_difference():
    ours = compare(LINES_EN * 10, worse(LINES_EN * 10, 2), LINES_EN * 10, names=("good", "bad"))
    header, good, bad, p, footnote, bleu, chrf = str(ours).splitlines()
    assert header.split() == ["BLEU", "chrF2", "exact"]
    assert good.startswith("good  100.0 (100.0 ± 0.0)") and good.endswith("100.0%")
    assert bad.startswith("bad ") and p.count("p = 0.0010*") == 2 and "p < 0.05" in footnote
    assert bleu.startswith("BLEU|nrefs:1|") and chrf.startswith("chrF2|nrefs:1|")


def test_a_system_does_not_differ_from_itself():
    outputs = worse(LINES_EN * 5, 2)
    ours = compare(outputs, outputs, LINES_EN * 5)
    assert (ours.p_bleu, ours.p_chrf) == (1.0, 1.0)


@pytest.mark.parametrize(
    "language, tokenizer",
    [
        ("zh", "zh"),
        ("zh-Hans", "zh"),
        ("zh-CN", "zh"),
        ("zh_TW", "zh"),
        ("ZH", "zh"),
        ("zho-CN", "zh"),
        ("cmn", "zh"),
        ("en", "13a"),
        ("de-DE", "13a"),
        ("", "13a"),
        ("zhuang", "13a"),
    ],
)
def test_the_tokenizer_follows_the_language(language, tokenizer):
    assert bleu_tokenizer(language) == tokenizer


@pytest.mark.parametrize("language", ["ja", "jpn", "ko", "ko-KR"])
def test_japanese_and_korean_are_scored_with_or_without_mecab(language):
    assert bleu_tokenizer(language) in ("char", f"{language[:2]}-mecab")
    assert score(
        ["今日はいい天気です。"], ["今日はいい天気です。"], language
    ).bleu == pytest.approx(100)


@pytest.mark.parametrize(
    "text, language",
    [
        ("我爱机器学习", "zh"),
        ("我用GPU和PyTorch训练Transformer", "zh"),
        ("機器學習很有趣", "zh"),
        ("機械学習は面白いです", "ja"),
        ("기계 학습은 재미있다", "ko"),
        ("machine learning", ""),
        ("The word 爱 means love", ""),
        ("Größe, élève", ""),
        ("", ""),
        ("123 456", ""),
    ],
)
def test_the_language_is_detected_from_the_characters(text, language):
    assert detect_language([text]) == language


def test_different_numbers_of_lines_are_rejected_with_both_counts():
    with pytest.raises(QkvError) as error:
        score(["a"] * 1200, ["b"])
    assert (
        str(error.value)
        == "scores: 1,200 outputs for 1 references; give one reference for each output"
    )


def test_empty_input_is_rejected():
    with pytest.raises(QkvError) as error:
        score([], [])
    assert str(error.value) == "scores: 0 outputs and 0 references; give at least one line of each"


def test_an_unknown_tokenizer_is_rejected_with_a_near_miss():
    with pytest.raises(QkvError) as error:
        score(["a"], ["a"], tokenize="13b")
    assert str(error.value) == "--tokenize: no BLEU tokenizer '13b'; did you mean '13a'?"


@pytest.mark.skipif(find_spec("MeCab") is not None, reason="MeCab is installed")
def test_a_tokenizer_without_its_package_is_rejected_in_one_line():
    with pytest.raises(QkvError) as error:
        score(["猫"], ["猫"], tokenize="ja-mecab")
    assert str(error.value).startswith(
        "--tokenize: sacrebleu cannot load 'ja-mecab'; "
    ) and "\n" not in str(error.value)
