"""int8 in CTranslate2 is exact on every CPU: tested with the instruction sets of older CPUs."""

import json
import os
import platform
import random
import runpy
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
from qkv.text.train_tokenizer import train_tokenizer

LETTERS = train_tokenizer("char", ["abcdefghijklmnop"], 30)
CPUS = (
    {  # by default CTranslate2 uses MKL on Intel CPUs, oneDNN on others
        "this CPU": {},
        "AVX2, MKL": {
            "CT2_USE_MKL": "1",
            "MKL_ENABLE_INSTRUCTIONS": "AVX2",
            "CT2_FORCE_CPU_ISA": "AVX2",
        },
        "AVX2, oneDNN": {
            "CT2_USE_MKL": "0",
            "ONEDNN_MAX_CPU_ISA": "AVX2",
            "CT2_FORCE_CPU_ISA": "AVX2",
        },
        "SSE4, MKL": {
            "CT2_USE_MKL": "1",
            "MKL_ENABLE_INSTRUCTIONS": "SSE4_2",
            "CT2_FORCE_CPU_ISA": "GENERIC",
        },
        "SSE4, oneDNN": {
            "CT2_USE_MKL": "0",
            "ONEDNN_MAX_CPU_ISA": "SSE41",
            "CT2_FORCE_CPU_ISA": "GENERIC",
        },
    }
    if platform.machine() in ("x86_64", "AMD64")
    else {"this CPU": {}}
)
# MKL_ENABLE_INSTRUCTIONS works on Intel CPUs only; on others MKL's products are exact.
IS_INTEL = runpy.run_path(str(Path(__file__).parents[1] / "cpu_configurations.py"))["is_intel"]()
WITHOUT_VNNI = [name for name in CPUS if "oneDNN" in name or ("MKL" in name and IS_INTEL)]
every_cpu, without_vnni = (
    pytest.mark.parametrize("cpu", CPUS),
    pytest.mark.parametrize("cpu", WITHOUT_VNNI),
)


def python(cpu: str, code: str, *arguments: object) -> object:
    """The JSON that a program prints, with the instruction sets of `cpu`."""
    done = subprocess.run(
        [sys.executable, "-c", f"import json, sys\n{code}", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=300,
        env=os.environ | CPUS[cpu],
    )
    assert done.returncode == 0, done.stderr[-2_000:]
    return json.loads(done.stdout)


# ── One product of maximal values, against the exact result ─────────────────────────────────────
SCORES = """import ctranslate2
tokens = json.loads(sys.argv[2])
generator = ctranslate2.Generator(sys.argv[1], intra_threads=1)
print(json.dumps(generator.score_batch([tokens])[0].log_probs))"""
IDS = [4, 9, 5, 7, 12, 6, 8, 4, 4, 10, 11, 5]


def signs(n: int, width: int, seed: int) -> list[list[int]]:
    """Rows of 1 and -1 with different proportions; the first is all 1, the second alternates."""
    rng = random.Random(seed)
    rows = [
        [1 if rng.random() < (row % 5) / 4 else -1 for _ in range(width)] for row in range(2, n)
    ]
    return [[1] * width, [1, -1] * (width // 2), *rows]


@pytest.fixture(scope="module")
def saturating() -> tuple[LoadedModel, list[float]]:
    """A model whose layers add zero, with maximal head weights, and its exact log-probabilities."""
    width, size, step = 64, LETTERS.vocab_size, 1 / 16
    spec = replace(
        decoder_only(size, width, 1, s.Attention(2, 2, 32), s.Gated(24)),
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


def max_difference(cpu: str, folder: Path, exact: list[float]) -> float:
    names = json.loads((folder / "vocabulary.json").read_text())
    found = python(cpu, SCORES, folder, json.dumps([names[id] for id in IDS]))
    return max(abs(a - b) for a, b in zip(found, exact, strict=True))


@every_cpu
def test_products_do_not_saturate(cpu, saturating, tmp_path):
    save_ctranslate2(tmp_path / "int8", saturating[0], int8=True)
    assert max_difference(cpu, tmp_path / "int8", saturating[1]) < 1e-4


@without_vnni
def test_8_bit_weights_would_saturate(cpu, saturating, tmp_path, monkeypatch):
    """These CPUs do saturate, so the previous test is meaningful."""
    monkeypatch.setattr(ctranslate2_int8, "MAX_WEIGHT", 127)
    save_ctranslate2(tmp_path / "int8", saturating[0], int8=True)
    assert max_difference(cpu, tmp_path / "int8", saturating[1]) > 1


# ── Complete models ─────────────────────────────────────────────────────────────────────────────
PARITY = """from qkv.checkpoint.ctranslate2.export import export_ctranslate2
_, report = export_ctranslate2(sys.argv[1], sys.argv[2], 16, int8=True)
print(json.dumps([report.same, report.max_difference, report.tolerance]))"""


@every_cpu
def test_the_parity_report_of_an_int8_export_is_the_same(cpu, digits, tmp_path):
    same, difference, tolerance = python(cpu, PARITY, digits, tmp_path / "there")
    _, here = export_ctranslate2(digits, tmp_path / "here", 16, int8=True)
    assert (
        same
        and difference < tolerance
        and difference == pytest.approx(here.max_difference, abs=1e-3)
    )


TEXT = """from qkv.pipeline import Generator
print(json.dumps(Generator.load_ctranslate2(sys.argv[1])('', temperature=0, max_new_tokens=30)))"""


@every_cpu
def test_stories260k_generates_its_published_text_in_int8(cpu, shared, tmp_path):
    import_folder(shared / "stories260K_hf", tmp_path / "native", 0)
    export_ctranslate2(tmp_path / "native", tmp_path / "int8", 0, int8=True)
    text = python(cpu, TEXT, tmp_path / "int8")
    published = (shared / "stories260K" / "expected_greedy_200steps.txt").read_text()
    assert len(text) > 60 and published.startswith(text.lstrip())


@without_vnni
def test_an_older_export_with_8_bit_weights_is_computed_in_float32(
    cpu, saturating, tmp_path, monkeypatch
):
    """Older folders have no weight_bits; CTranslate2 alone would use int8 and saturate."""
    monkeypatch.setattr(ctranslate2_int8, "MAX_WEIGHT", 127)
    metadata = save_ctranslate2(tmp_path / "old", saturating[0], int8=True)
    del metadata["weight_bits"]
    (tmp_path / "old" / "qkv.json").write_text(json.dumps(metadata))
    code = (
        "from qkv.pipeline import Generator\ngenerator = Generator.load_ctranslate2(sys.argv[1])\n"
        "print(json.dumps(generator.backend.core.score_batch([json.loads(sys.argv[2])])[0].log_probs))"
    )
    names = json.loads((tmp_path / "old" / "vocabulary.json").read_text())
    found = python(cpu, code, tmp_path / "old", json.dumps([names[id] for id in IDS]))
    assert found == pytest.approx(saturating[1], abs=1e-4)


@pytest.mark.parametrize(
    "metadata, device, expected",
    [
        ({"dtype": "float32"}, "cpu", "float32"),
        ({"dtype": "int8"}, "cpu", "float32"),
        ({"dtype": "int8"}, "cuda", "int8"),
        ({"dtype": "int8", "weight_bits": 7}, "cpu", "int8"),
        ({"dtype": "int8", "weight_bits": 8}, "cpu", "float32"),
    ],
)
def test_the_compute_type_is_exact(metadata, device, expected):
    assert compute_type(metadata, device) == expected


# ── Quantized weights ───────────────────────────────────────────────────────────────────────────
def test_weights_are_rounded_to_multiples_of_the_row_maximum_over_63():
    weight = np.random.default_rng(0).normal(size=(40, 30)).astype(np.float32)
    weight[3] = 0
    values, scales = ctranslate2_int8.quantized(weight)
    step = np.abs(weight).max(axis=1, keepdims=True) / 63
    assert values.dtype == np.int8 and np.abs(values).max() == 63 and not values[3].any()
    assert (np.abs(values / scales[:, None] - weight) <= step / 2 + 1e-7).all()


def test_the_quantized_copy_has_the_weights_of_the_file(digits, tmp_path):
    """CTranslate2 in float32 on the exported file equals the quantized copy."""
    from qkv.checkpoint.ctranslate2.parity import CTranslate2Runtime, with_quantized_weights
    from qkv.checkpoint.parity import native_forward, random_ids

    model, metadata = (
        load_model(digits).model,
        save_ctranslate2(tmp_path / "int8", load_model(digits), int8=True),
    )
    special = {metadata["bos"], metadata["eos"], metadata["pad"]}
    source, target = random_ids(model.spec, 8, model.spec.max_len - 1, special)
    decoder_input = torch.cat([torch.full_like(target[:, :1], metadata["bos"]), target], dim=1)
    expected = (
        native_forward(with_quantized_weights(model))(source, decoder_input[:, :-1])
        .log_softmax(dim=-1)
        .gather(2, target[..., None])[..., 0]
    )
    actual = CTranslate2Runtime(tmp_path / "int8", metadata | {"dtype": "float32"}).logprobs(
        source, target
    )
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-4)
