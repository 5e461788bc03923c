"""The native library is compiled once and cached privately; without it torch is used."""

import ctypes
import errno
import os
import platform
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

from qkv.engine.packed_model import PackedModel
from qkv.kernels import build
from qkv.model.presets import encoder_decoder
from qkv.model.transformer import Transformer

X86 = platform.machine() in ("x86_64", "AMD64")
# Outputs of a panel: two registers of 128 or 256 bits of float32.
WIDTHS = {"x86-64": 8, "x86-64-v3": 16}


@pytest.fixture
def empty_cache(tmp_path, monkeypatch):
    """An empty cache folder, and no library loaded by other tests."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    build.library.cache_clear()
    yield tmp_path / "qkv"
    build.library.cache_clear()


@pytest.mark.parametrize("compiler", ["no-such-compiler", "false"])
def test_without_a_working_compiler_torch_is_used(empty_cache, monkeypatch, compiler):
    monkeypatch.setenv("CXX", compiler)
    assert build.library(torch.float32) is None
    model = Transformer(encoder_decoder(60, 32, 1, 4, 48)).eval()
    assert PackedModel.of(model).native is None
    assert not empty_cache.exists() or not list(empty_cache.iterdir())


@pytest.mark.native
def test_a_library_that_fails_the_self_check_is_not_kept(empty_cache, monkeypatch):
    monkeypatch.setattr(build, "CHECK", "import sys; sys.exit(1)")
    assert build.library(torch.float32) is None
    assert not list(empty_cache.iterdir())


@pytest.mark.native
def test_the_library_is_compiled_once_into_a_private_folder(empty_cache, monkeypatch):
    assert build.library(torch.float32) is not None
    (compiled,) = empty_cache.iterdir()
    assert empty_cache.stat().st_mode & 0o777 == 0o700
    build.library.cache_clear()
    monkeypatch.setattr(build, "build", None)  # a second build would fail
    assert build.library(torch.float32) is not None
    assert list(empty_cache.iterdir()) == [compiled]


@pytest.mark.parametrize(
    "where, call",
    [(build.tempfile, "TemporaryDirectory"), (build.Path, "replace"), (build.Path, "exists")],
)
def test_with_a_full_or_read_only_cache_torch_is_used(empty_cache, monkeypatch, where, call):
    def fail(*args, **options):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(build, "cpu_model", lambda: "any")
    monkeypatch.setattr(build, "succeeds", lambda command: True)
    monkeypatch.setattr(where, call, fail)
    assert build.library(torch.float32) is None


@pytest.mark.skipif(not hasattr(os, "getuid"), reason="needs POSIX permissions")
def test_no_library_is_loaded_from_a_folder_that_others_can_write(empty_cache):
    empty_cache.mkdir(parents=True)
    empty_cache.chmod(0o777)
    assert build.library(torch.float32) is None
    assert not list(empty_cache.iterdir())


def test_other_dtypes_have_no_library():
    assert build.library(torch.bfloat16) is None


@pytest.mark.native
@pytest.mark.skipif(not X86, reason="x86 instruction sets")
def test_each_instruction_set_has_its_own_library(empty_cache, monkeypatch):
    for n, (march, width) in enumerate(WIDTHS.items(), start=1):
        monkeypatch.setenv("QKV_NATIVE_MARCH", march)
        build.library.cache_clear()
        found = build.library(torch.float32)
        assert found is not None and found.qkv_width() == width
        assert len(list(empty_cache.iterdir())) == n


def test_with_an_unknown_instruction_set_torch_is_used(empty_cache, monkeypatch):
    monkeypatch.setenv("QKV_NATIVE_MARCH", "no-such-cpu")
    assert build.library(torch.float32) is None


@pytest.mark.native
def test_without_native_flags_the_compiler_uses_its_default(empty_cache, monkeypatch, tmp_path):
    compiler_path = build.find_compiler()
    compiler = tmp_path / "limited-c++"
    compiler.write_text(
        f'#!/bin/sh\ncase "$*" in *=native*) exit 1;; esac\nexec {compiler_path} "$@"\n'
    )
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    monkeypatch.delenv("QKV_NATIVE_MARCH", raising=False)
    monkeypatch.setattr(build.platform, "machine", lambda: "aarch64")
    assert build.target_flags() == (("-mcpu=native",), ("-march=native",), ())
    assert build.library(torch.float32) is not None


# ── Self-check ───────────────────────────────────────────────────────────────────────────────────
BUGS = {  # file, correct code, bug, number of the check that detects it
    "product": ("products.h", "sums[r][p][1] += right * x;", "sums[r][p][1] += left * x;", 1),
    "saturating int8 product": (
        "products.h",
        "if (SCALE) sums[r][n / 2][n % 2] *= value;",
        "if (SCALE) for (int i = 0; i < LANES; i++)"
        " sums[r][n / 2][n % 2][i] = std::min(sums[r][n / 2][n % 2][i], (number)32767);",
        2,
    ),
    "unsigned int8 weights": ("products.h", "all[i] = from[i];", "all[i] = (uint8_t)from[i];", 2),
    "exponential": ("numbers.h", "1.66666655e-1f", "1.67666655e-1f", 3),
    "attention": ("attention.h", "score /= total", "score /= 1", 3),
    "layer norm": ("attention.h", "(norm.kind == LAYER_NORM ? sum / width : sum)", "sum", 3),
    "rotation of queries and keys": (
        "attention.h",
        "multiply_add(b, -sin[i], a * cos[i])",
        "multiply_add(b, sin[i], a * cos[i])",
        3,
    ),
    "rows of the logits": ("decode_step.cpp", "rows->outputs ? rows->outputs[out] : out", "out", 3),
    "order of equal scores": ("topk.cpp", "sum > best[rank]", "sum >= best[rank]", 4),
    "log-sum-exp": ("topk.cpp", "max + std::log(total)", "max - std::log(total)", 5),
    "rotary": ("rotary.cpp", "first * c[i] - second * sine", "first * c[i] + second * sine", 6),
    "RMSNorm": ("rms_norm.cpp", "sum / h->width + eps", "sum / h->width", 7),
    "gradient of RMSNorm": ("rms_norm.cpp", "scale * scale / h->width", "scale / h->width", 7),
    "gradient of squared ReLU": ("relu2.cpp", "2 * x[i] * grad[i]", "x[i] * grad[i]", 8),
}


@pytest.fixture(scope="module")
def objects(tmp_path_factory) -> Path:
    """The sources and unoptimized object files: after a change only one file is recompiled."""
    folder = tmp_path_factory.mktemp("objects")
    for source in [*build.SOURCES, *build.HEADERS]:
        shutil.copy(source, folder)
    for source in build.SOURCES:
        compile_object(folder, source.name)
    assert check_of(folder) == 0
    return folder


def compile_object(folder: Path, name: str) -> None:
    subprocess.run(
        [build.find_compiler(), "-std=c++17", "-O0", "-fPIC", "-c", name],
        cwd=folder,
        check=True,
        timeout=120,
    )


def check_of(folder: Path) -> int:
    """The result of qkv_check() of the library linked from these object files."""
    # A library of the same name would not be loaded again.
    library = folder / f"check-{len(list(folder.iterdir()))}.so"
    subprocess.run(
        [build.find_compiler(), "-shared", *map(str, folder.glob("*.o")), "-o", str(library)],
        check=True,
        timeout=120,
    )
    return ctypes.CDLL(str(library)).qkv_check()


@pytest.mark.native
@pytest.mark.parametrize("name, correct, bug, check", BUGS.values(), ids=BUGS)
def test_the_self_check_detects_a_bug(objects, tmp_path, name, correct, bug, check):
    shutil.copytree(objects, tmp_path, dirs_exist_ok=True)
    text = (tmp_path / name).read_text(encoding="utf-8")
    assert text.count(correct) == 1
    (tmp_path / name).write_text(text.replace(correct, bug), encoding="utf-8")
    for source in ["decode_step.cpp", "topk.cpp"] if name.endswith(".h") else [name]:
        compile_object(tmp_path, source)
    assert check_of(tmp_path) == check
