"""The native library is made once, for its user alone; where it cannot be made, torch does all of it."""

import errno
import os

import pytest
import torch

from qkv.generate import fast
from qkv.model.presets import translator
from qkv.model.transformer import Transformer
from qkv.native import build


@pytest.fixture
def empty_cache(tmp_path, monkeypatch):
    """A cache of its own, and nothing remembered from other tests."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    build.library.cache_clear()
    yield tmp_path / "qkv"
    build.library.cache_clear()


@pytest.mark.parametrize("compiler", ["no-such-compiler", "false"])
def test_without_a_working_compiler_torch_steps(empty_cache, monkeypatch, compiler):
    monkeypatch.setenv("CXX", compiler)
    assert build.library(torch.float32) is None
    model = Transformer(translator(60, 32, 1, 4, 48)).eval()
    assert fast.FastModel.of(model).native is None
    assert not empty_cache.exists() or not list(empty_cache.iterdir())


def test_a_library_that_counts_wrong_is_not_kept(empty_cache, monkeypatch):
    monkeypatch.setattr(build, "CHECK", "import sys; sys.exit(1)")
    assert build.library(torch.float32) is None
    assert not list(empty_cache.iterdir())


def test_the_library_is_made_once_for_a_user_alone(empty_cache, monkeypatch):
    assert build.library(torch.float32) is not None
    (made,) = empty_cache.iterdir()
    assert empty_cache.stat().st_mode & 0o777 == 0o700
    build.library.cache_clear()
    monkeypatch.setattr(build, "build", None)  # a second making would fail
    assert build.library(torch.float32) is not None
    assert list(empty_cache.iterdir()) == [made]


@pytest.mark.parametrize("where, call", [(build.tempfile, "TemporaryDirectory"), (build.Path, "replace"), (build.Path, "exists")])
def test_in_a_cache_that_is_full_or_cannot_be_written_torch_steps(empty_cache, monkeypatch, where, call):
    def refuse(*args, **more):
        raise OSError(errno.ENOSPC, "No space left on device")
    monkeypatch.setattr(build, "processor", lambda: "any")
    monkeypatch.setattr(build, "runs", lambda command: True)
    monkeypatch.setattr(where, call, refuse)
    assert build.library(torch.float32) is None


@pytest.mark.skipif(not hasattr(os, "getuid"), reason="folders have owners on POSIX systems only")
def test_no_library_is_loaded_from_where_others_can_write(empty_cache):
    empty_cache.mkdir(parents=True)
    empty_cache.chmod(0o777)
    assert build.library(torch.float32) is None
    assert not list(empty_cache.iterdir())


def test_other_numbers_have_no_library():
    assert build.library(torch.bfloat16) is None
