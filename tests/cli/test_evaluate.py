"""`qkv evaluate` of a translation model: the scores of sacrebleu's command, perplexity, errors."""

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

from qkv.cli.app import run
from qkv.errors import QkvError


@pytest.fixture
def files(tmp_path: Path, digit_pairs) -> tuple[str, str]:
    pairs = digit_pairs(40, seed=500, longest=10)
    (tmp_path / "s.zh").write_text("".join(f"{source}\n" for source, _ in pairs), encoding="utf-8")
    (tmp_path / "t.en").write_text("".join(f"{target}\n" for _, target in pairs), encoding="utf-8")
    return str(tmp_path / "s.zh"), str(tmp_path / "t.en")


def evaluate(folder: Path, files: tuple[str, str], *options: object) -> None:
    source, target = files
    arguments = ["evaluate", folder, "--source", source, "--target", target, *options]
    run(list(map(str, arguments)))


def sacrebleu(reference: str, output: Path, *options: str) -> str:
    command = [
        sys.executable,
        "-m",
        "sacrebleu",
        reference,
        "-i",
        str(output),
        "-m",
        "bleu",
        "chrf",
        "-f",
        "text",
    ]
    return subprocess.run(
        [*command, *options], capture_output=True, text=True, check=True, timeout=60
    ).stdout


@pytest.mark.parametrize(
    "options, sacrebleu_options", [([], []), (["--tokenize", "none"], ["--tokenize", "none"])]
)
def test_the_scores_equal_those_of_the_sacrebleu_command(
    digits, files, tmp_path, capsys, options, sacrebleu_options
):
    output = tmp_path / "out.en"
    evaluate(digits, files, "--out", output, *options)
    lines = capsys.readouterr().out.splitlines(keepends=True)
    assert "".join(lines[:2]) == sacrebleu(files[1], output, *sacrebleu_options)
    assert lines[2].startswith("exact match ") and lines[3].startswith("perplexity 1.")
    assert lines[4].endswith(" s)\n") and " sentences/s (40 in " in lines[4]


@pytest.mark.parametrize("more", [[], ["--int8"]])
def test_the_translations_equal_those_of_qkv_translate(digits, files, tmp_path, capsys, more):
    run(["translate", str(digits), "--file", files[0], "--beam-size", "2", *more])
    translated = capsys.readouterr().out
    output = tmp_path / "out.en"
    evaluate(digits, files, "--beam-size", "2", "--out", output, *more)
    assert output.read_text(encoding="utf-8") == translated


def test_json_has_the_same_figures(digits, files, capsys):
    evaluate(digits, files, "--json", "--baseline", files[1])
    report = json.loads(capsys.readouterr().out)
    assert (
        20 < report["bleu"] < 100
        and "tok:13a" in report["bleu_signature"]
        and report["sentences"] == 40
    )
    assert report["perplexity"] == pytest.approx(math.exp(report["nats_per_token"]))
    assert report["sentences_per_second"] == pytest.approx(40 / report["seconds"])
    assert report["baseline"]["bleu"] == pytest.approx(100) and report["p_bleu"] < 0.05


def test_a_model_does_not_differ_from_itself(digits, files, capsys):
    evaluate(digits, files, "--baseline", digits)
    printed = capsys.readouterr().out
    assert printed.count("p = 1.0000") == 2 and "|bs:1000|seed:12345|" in printed


@pytest.mark.parametrize(
    "arguments, line",
    [
        (
            ["{digits}", "--source", "{s}", "--target", "{tmp}/short"],
            "{s}, {tmp}/short: 40 and 1 lines; "
            "line n of the target file must translate line n of the source file",
        ),
        (
            ["{digits}", "--source", "{s}", "--target", "{t}", "--baseline", "{tmp}/short"],
            "{tmp}/short: 1 lines for 40 sentences; give one translation per line",
        ),
        (
            ["{digits}", "--source", "{tmp}/none", "--target", "{t}"],
            "{tmp}/none: no such file; check the path",
        ),
        (
            ["{tmp}/none", "--source", "{s}", "--target", "{t}"],
            "{tmp}/none: no such folder; check the path",
        ),
        (
            ["{digits}", "--source", "{s}", "--target", "{t}", "--tokenize", "13b"],
            "--tokenize: no BLEU tokenizer '13b'; did you mean '13a'?",
        ),
        (
            ["{digits}", "--source", "{s}", "--target", "{t}", "--beam-size", "0"],
            "beam_size: 0 is out of range; use 1 to 1,024",
        ),
        (
            ["{digits}", "--source", "{s}"],
            "qkv evaluate: mixed or incomplete data options; "
            "give --source with --target, or --text, or --pairs; not a mixture",
        ),
    ],
)
def test_bad_input_is_one_line(digits, files, tmp_path, arguments, line):
    (tmp_path / "short").write_text("one\n", encoding="utf-8")

    def filled(text: str) -> str:
        return text.format(digits=digits, tmp=tmp_path, s=files[0], t=files[1])

    with pytest.raises(QkvError) as error:
        run(["evaluate", *map(filled, arguments)])
    assert str(error.value) == filled(line)


def test_an_output_that_cannot_be_written_is_rejected_before_translating(
    digits, files, tmp_path, monkeypatch
):
    from qkv.pipeline import Translator

    monkeypatch.setattr(
        Translator,
        "translate",
        lambda *arguments, **options: pytest.fail("translation has started"),
    )
    (tmp_path / "file").write_text("x")
    for output, wrong in (
        (tmp_path, "a folder, not a file; give the path of a file"),
        (Path(), "a folder, not a file; give the path of a file"),
        (tmp_path / "file" / "deeper", "cannot be written; choose another path"),
    ):
        with pytest.raises(QkvError) as error:
            evaluate(digits, files, "--out", output)
        assert str(error.value) == f"{output}: {wrong}"


@pytest.mark.parametrize(
    "option",
    [["--out", "x"], ["--baseline", "x"], ["--language", "zh"], ["--tokenize", "13a"]],
    ids=" ".join,
)
@pytest.mark.parametrize("kind", ["--text", "--pairs"])
def test_options_of_a_translator_are_rejected_where_they_have_no_effect(
    digits, files, option, kind
):
    with pytest.raises(QkvError) as error:
        run(["evaluate", str(digits), kind, files[0], *option])
    assert (
        str(error.value)
        == f"{option[0]}: only for a translation model with --source and --target; omit it"
    )
