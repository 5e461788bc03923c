"""The model of `qkv demo`: 500 equal translations in CTranslate2, an error for Marian."""

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
from qkv.pipeline.segments import Translation
from qkv.pipeline.translator import Translator

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.serial  # the demo trains for minutes on both cores
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
    """The folder of tests/test_readme.py; the first test that needs it trains the model."""
    done = python("-m", "qkv", "demo", OMP_NUM_THREADS="2")
    assert done.returncode == 0, done.stderr[-2_000:]
    return ROOT / "runs" / "demo"


def translated(folder: Path) -> list[list[Translation]]:
    """Translations by CTranslate2 with beam 4, in a process without torch."""
    code = (
        "import json, sys; from dataclasses import astuple; from qkv.pipeline import Translator\n"
        "folder, texts = json.load(sys.stdin)\n"
        "found = Translator.load_ctranslate2(folder).translate(texts, beam_size=4)\n"
        "print(json.dumps([[astuple(hypothesis) for hypothesis in best] for best in found]))\n"
        "sys.exit('torch' in sys.modules)"
    )
    done = python("-c", code, text=json.dumps([str(folder), SOURCES]))
    assert done.returncode == 0, done.stderr[-2_000:]
    return [[Translation(*fields) for fields in best] for best in json.loads(done.stdout)]


def bleu(translations: list[list[Translation]]) -> float:
    return sacrebleu.corpus_bleu([best[0].text for best in translations], [TARGETS]).score


@pytest.fixture(scope="module")
def in_torch(demo) -> list[list[Translation]]:
    return Translator.load(demo).translate(SOURCES, beam_size=4)


def test_all_500_translations_are_the_same_in_float32(demo, in_torch, tmp_path):
    _, report = export_ctranslate2(demo, tmp_path / "ct2", 16)
    assert report.same and report.greedy and report.n_same == 16
    actual = translated(tmp_path / "ct2")
    assert (
        len(actual) == 500
        and differences(Translator.load(demo), SOURCES, in_torch, actual, beam_size=4) == []
    )


def test_int8_costs_less_than_half_a_point_of_bleu(demo, in_torch, tmp_path):
    _, report = export_ctranslate2(demo, tmp_path / "int8", 16, int8=True)
    assert report.same and report.max_difference > 0
    assert abs(bleu(translated(tmp_path / "int8")) - bleu(in_torch)) < 0.5


def test_the_export_to_marian_names_unsupported_parts(demo, tmp_path):
    done = python(
        "-m", "qkv", "export", str(demo), "--to", "huggingface", "--out", str(tmp_path / "marian")
    )
    assert done.returncode == 2 and not (tmp_path / "marian").exists()
    (line,) = done.stderr.splitlines()
    assert line.startswith("model.json: the nearest Hugging Face architecture, ") and line.endswith(
        "; keep this model in the qkv format"
    )
    for part in (
        "encoder.layers.0.norm.placement 'pre'",
        "decoder.layers.0.mixer.qk_norm True",
        "'kind': 'rotary'",
    ):
        assert part in line
