"""The translator that `qkv demo` trains, in other people's software: the same 500 translations, or one line that says why not."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import sacrebleu
from same_translations import differences

from qkv.checkpoint.ctranslate2.export import export_ctranslate2
from qkv.data.builtin import builtin_pairs
from qkv.pipeline.translator import Translation, Translator

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.alone  # the demo trains for minutes and wants both cores
HELD_OUT = builtin_pairs()[1]
SOURCES, TARGETS = [pair.source for pair in HELD_OUT], [pair.target for pair in HELD_OUT]


def python(*arguments: str, text: str = "", **environment: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env=os.environ | {"QKV_LANG": "en"} | environment,
        input=text,
        capture_output=True,
        text=True,
        timeout=1_500,
    )


@pytest.fixture(scope="module")
def demo() -> Path:
    """The folder of tests/test_readme.py: who comes first trains it, who comes next uses it."""
    done = python("-m", "qkv", "demo", OMP_NUM_THREADS="2")
    assert done.returncode == 0, done.stderr[-2_000:]
    return ROOT / "runs" / "demo"


def translated(folder: Path) -> list[list[Translation]]:
    """By CTranslate2 with beam 4, in a process without torch."""
    code = (
        "import json, sys; from dataclasses import astuple; from qkv.pipeline import Translator\n"
        "folder, texts = json.load(sys.stdin)\n"
        "print(json.dumps([[astuple(one) for one in best] for best in Translator.load_ctranslate2(folder).translate(texts, beam_size=4)]))\n"
        "sys.exit('torch' in sys.modules)"
    )
    done = python("-c", code, text=json.dumps([str(folder), SOURCES]))
    assert done.returncode == 0, done.stderr[-2_000:]
    return [[Translation(*one) for one in best] for best in json.loads(done.stdout)]


def bleu(translations: list[list[Translation]]) -> float:
    return sacrebleu.corpus_bleu([best[0].text for best in translations], [TARGETS]).score


@pytest.fixture(scope="module")
def in_torch(demo) -> list[list[Translation]]:
    return Translator.load(demo).translate(SOURCES, beam_size=4)


def test_all_500_translations_are_the_same_in_float32(demo, in_torch, tmp_path):
    _, report = export_ctranslate2(demo, tmp_path / "ct2", 16)
    assert report.same and report.greedy and report.n_same == 16
    theirs = translated(tmp_path / "ct2")
    assert (
        len(theirs) == 500
        and differences(Translator.load(demo), SOURCES, in_torch, theirs, beam_size=4) == []
    )


def test_int8_costs_less_than_half_a_point_of_bleu(demo, in_torch, tmp_path):
    _, report = export_ctranslate2(demo, tmp_path / "int8", 16, int8=True)
    assert report.same and report.largest > 0
    assert abs(bleu(translated(tmp_path / "int8")) - bleu(in_torch)) < 0.5


def test_marian_has_no_words_for_it_and_says_so(demo, tmp_path):
    done = python(
        "-m", "qkv", "export", str(demo), "--to", "huggingface", "--out", str(tmp_path / "marian")
    )
    assert done.returncode == 2 and not (tmp_path / "marian").exists()
    (line,) = done.stderr.splitlines()
    assert line.startswith("model.json: the nearest family, ") and line.endswith(
        "; such a model stays in our own format"
    )
    for part in (
        "encoder.layers.0.norm.place 'pre'",
        "decoder.layers.0.mixer.qk_norm True",
        "'kind': 'rotary'",
    ):
        assert part in line
