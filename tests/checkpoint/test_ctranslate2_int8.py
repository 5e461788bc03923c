"""int8 in CTranslate2 is right on every CPU: in processes whose libraries may use fewer instructions than this CPU has."""

import json
import os
import platform
import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from qkv.checkpoint.convert import import_folder
from qkv.checkpoint.ctranslate2 import int8 as ctranslate2_int8
from qkv.checkpoint.ctranslate2.export import export_ctranslate2, save_ctranslate2
from qkv.checkpoint.ctranslate2.folder import compute_type
from qkv.checkpoint.folder import load_model
from qkv.checkpoint.loaded_model import LoadedModel, metadata_of
from qkv.model import spec as s
from qkv.model.presets import decoder_only
from qkv.model.transformer import Transformer
from qkv.text.learn import learn

LETTERS = learn("char", ["abcdefghijklmnop"], 30)
CPUS = (
    {  # MKL on Intel's CPUs, oneDNN on others
        "this one": {},
        "AVX2, MKL": {"MKL_ENABLE_INSTRUCTIONS": "AVX2", "CT2_FORCE_CPU_ISA": "AVX2"},
        "AVX2, oneDNN": {
            "CT2_USE_MKL": "0",
            "ONEDNN_MAX_CPU_ISA": "AVX2",
            "CT2_FORCE_CPU_ISA": "AVX2",
        },
        "SSE4, MKL": {"MKL_ENABLE_INSTRUCTIONS": "SSE4_2", "CT2_FORCE_CPU_ISA": "GENERIC"},
        "SSE4, oneDNN": {
            "CT2_USE_MKL": "0",
            "ONEDNN_MAX_CPU_ISA": "SSE41",
            "CT2_FORCE_CPU_ISA": "GENERIC",
        },
    }
    if platform.machine() in ("x86_64", "AMD64")
    else {"this one": {}}
)
WITHOUT_VNNI = [name for name in CPUS if "MKL" in name or "oneDNN" in name]
every_cpu, without_vnni = (
    pytest.mark.parametrize("cpu", CPUS),
    pytest.mark.parametrize("cpu", WITHOUT_VNNI),
)


def python(cpu: str, code: str, *arguments: object) -> object:
    """What a program prints as JSON on such a CPU."""
    done = subprocess.run(
        [sys.executable, "-c", f"import json, sys\n{code}", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=300,
        env=os.environ | CPUS[cpu],
    )
    assert done.returncode == 0, done.stderr[-2_000:]
    return json.loads(done.stdout)


# ── One product of the largest numbers, against the exact one ────────────────────────────────────────────────────
SCORES = """import ctranslate2
tokens = json.loads(sys.argv[2])
print(json.dumps(ctranslate2.Generator(sys.argv[1], intra_threads=1).score_batch([tokens])[0].log_probs))"""
IDS = [4, 9, 5, 7, 12, 6, 8, 4, 4, 10, 11, 5]


def signs(n: int, width: int, seed: int) -> list[list[int]]:
    """Rows of 1 and -1, of other shares each; the first is all 1, the second alternates."""
    drawn = random.Random(seed)
    rows = [
        [1 if drawn.random() < (row % 5) / 4 else -1 for _ in range(width)] for row in range(2, n)
    ]
    return [[1] * width, [1, -1] * (width // 2), *rows]


@pytest.fixture(scope="module")
def saturating() -> tuple[LoadedModel, list[float]]:
    """Layers that add nothing, and a projection whose weights and activations all have the largest size; the exact log-probabilities."""
    width, size, step = 64, LETTERS.vocab_size, 1 / 16
    spec = replace(
        decoder_only(size, width, 1, s.Heads(2, 2, 32), s.Gated(24)),
        max_len=40,
        head=s.LmHead(False),
    )
    model = Transformer(spec).eval()
    embed, head = signs(size, width, 1), signs(size, width, 2)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.fill_(0.0 if name.endswith(("o_proj.weight", "down_proj.weight")) else 1.0)
        model.embed.weight.copy_(torch.tensor(embed))
        model.lm_head.weight.copy_(torch.tensor(head) * step)
    sums = np.array(
        [
            [sum(a * b for a, b in zip(embed[id], row, strict=True)) for row in head]
            for id in IDS[:-1]
        ]
    )  # (tokens, vocab)
    logits = sums * step / np.sqrt(1 + spec.decoder.layers[0].norm.eps)
    exact = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    return LoadedModel(model, {"tokenizer": LETTERS}, metadata_of(model)), [
        float(row[id]) for row, id in zip(exact, IDS[1:], strict=True)
    ]


def largest_gap(cpu: str, folder: Path, exact: list[float]) -> float:
    names = json.loads((folder / "vocabulary.json").read_text())
    found = python(cpu, SCORES, folder, json.dumps([names[id] for id in IDS]))
    return max(abs(a - b) for a, b in zip(found, exact, strict=True))


@every_cpu
def test_products_that_would_saturate_are_exact(cpu, saturating, tmp_path):
    save_ctranslate2(tmp_path / "int8", saturating[0], int8=True)
    assert largest_gap(cpu, tmp_path / "int8", saturating[1]) < 1e-4


@without_vnni
def test_weights_of_8_bits_would_be_wrong_there(cpu, saturating, tmp_path, monkeypatch):
    """The CPUs above do saturate: otherwise the test before this one would say nothing."""
    monkeypatch.setattr(ctranslate2_int8, "LARGEST_WEIGHT", 127)
    save_ctranslate2(tmp_path / "int8", saturating[0], int8=True)
    assert largest_gap(cpu, tmp_path / "int8", saturating[1]) > 1


# ── Whole models ─────────────────────────────────────────────────────────────────────────────────────────────────
PARITY = """from qkv.checkpoint.ctranslate2.export import export_ctranslate2
_, report = export_ctranslate2(sys.argv[1], sys.argv[2], 16, int8=True)
print(json.dumps([report.same, report.largest, report.tolerance]))"""


@every_cpu
def test_the_report_of_an_int8_export_is_the_same(cpu, digits, tmp_path):
    same, largest, tolerance = python(cpu, PARITY, digits, tmp_path / "there")
    _, here = export_ctranslate2(digits, tmp_path / "here", 16, int8=True)
    assert same and largest < tolerance and largest == pytest.approx(here.largest, abs=1e-3)


STORY = """from qkv.pipeline import Generator
print(json.dumps(Generator.load_ctranslate2(sys.argv[1])('', temperature=0, max_new_tokens=30)))"""


@every_cpu
def test_stories260k_tells_its_published_story_in_int8(cpu, shared, tmp_path):
    import_folder(shared / "stories260K_hf", tmp_path / "ours", 0)
    export_ctranslate2(tmp_path / "ours", tmp_path / "int8", 0, int8=True)
    story = python(cpu, STORY, tmp_path / "int8")
    published = (shared / "stories260K" / "expected_greedy_200steps.txt").read_text()
    assert len(story) > 60 and published.startswith(story.lstrip())


@without_vnni
def test_an_older_export_with_weights_of_8_bits_is_computed_in_float32(
    cpu, saturating, tmp_path, monkeypatch
):
    """The engine's, whose folders of format 1 may lack weight_bits; CTranslate2 alone would use int8 and be wrong."""
    monkeypatch.setattr(ctranslate2_int8, "LARGEST_WEIGHT", 127)
    facts = save_ctranslate2(tmp_path / "old", saturating[0], int8=True)
    del facts["weight_bits"]
    (tmp_path / "old" / "qkv.json").write_text(json.dumps(facts))
    code = (
        "from qkv.pipeline import Generator\nwriter = Generator.load_ctranslate2(sys.argv[1])\n"
        "print(json.dumps(writer.backend.core.score_batch([json.loads(sys.argv[2])])[0].log_probs))"
    )
    names = json.loads((tmp_path / "old" / "vocabulary.json").read_text())
    found = python(cpu, code, tmp_path / "old", json.dumps([names[id] for id in IDS]))
    assert found == pytest.approx(saturating[1], abs=1e-4)


@pytest.mark.parametrize(
    "facts, device, expected",
    [
        ({"dtype": "float32"}, "cpu", "float32"),
        ({"dtype": "int8"}, "cpu", "float32"),
        ({"dtype": "int8"}, "cuda", "int8"),
        ({"dtype": "int8", "weight_bits": 7}, "cpu", "int8"),
        ({"dtype": "int8", "weight_bits": 8}, "cpu", "float32"),
    ],
)
def test_the_compute_type_is_one_that_is_right(facts, device, expected):
    assert compute_type(facts, device) == expected


# ── The numbers in the file ──────────────────────────────────────────────────────────────────────────────────────
def test_every_weight_is_its_nearest_multiple_of_a_63rd_of_the_largest_in_its_row():
    weight = np.random.default_rng(0).normal(size=(40, 30)).astype(np.float32)
    weight[3] = 0
    whole, scales = ctranslate2_int8.quantized(weight)
    step = np.abs(weight).max(axis=1, keepdims=True) / 63
    assert whole.dtype == np.int8 and np.abs(whole).max() == 63 and not whole[3].any()
    assert (np.abs(whole / scales[:, None] - weight) <= step / 2 + 1e-7).all()


def test_the_copy_that_is_compared_with_holds_the_numbers_of_the_file(digits, tmp_path):
    """CTranslate2 in float32 on the exported file equals our copy in float32: the same matrices, none left out."""
    from qkv.checkpoint.ctranslate2.parity import Theirs, random_ids, with_rounded_weights
    from qkv.checkpoint.parity import our_answer

    model, facts = (
        load_model(digits).model,
        save_ctranslate2(tmp_path / "int8", load_model(digits), int8=True),
    )
    source, target = random_ids(model, facts, 8)
    begun = torch.cat([torch.full_like(target[:, :1], facts["bos"]), target], dim=1)
    ours = (
        our_answer(with_rounded_weights(model))(source, begun[:, :-1])
        .log_softmax(dim=-1)
        .gather(2, target[..., None])[..., 0]
    )
    theirs = Theirs(tmp_path / "int8", facts | {"dtype": "float32"}).log_probs(source, target)
    torch.testing.assert_close(theirs, ours, rtol=0, atol=1e-4)
