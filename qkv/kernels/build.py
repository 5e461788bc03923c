"""The native library: the C++ files of this folder, compiled once for this CPU and cached.

Without a compiler (CXX, c++, g++ or clang++), if the self-check fails or if the cache cannot be
written, there is no library and torch computes everything. See docs/explanation/performance.md.
"""

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from qkv.messages import _

SOURCES = sorted(Path(__file__).parent.glob("*.cpp"))
HEADERS = sorted(Path(__file__).parent.glob("*.h"))
FLAGS = (
    "-std=c++17",
    "-O3",
    "-fPIC",
    "-shared",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-fno-signed-zeros",
    "-fassociative-math",
)  # -fassociative-math vectorizes sums; -ffast-math would also break infinities
NATIVE_DTYPES = {torch.float32}  # the tests use the C++ in float64 too
MARCH_VARIABLE = "QKV_NATIVE_MARCH"  # environment variable: value of -march, as x86-64-v3
OPENMP_FLAGS = ("-fopenmp",)  # uses the OpenMP runtime that torch has loaded: one thread pool
TIMEOUT_SECONDS = 120  # for the compiler, which takes about 5 s, and for the self-check
POINTER, INT, INT64 = ctypes.c_void_p, ctypes.c_int, ctypes.c_int64
FLOAT = None  # float or double, the number type of the library
FUNCTIONS: dict[str, list[Any]] = {  # argument types, as declared in api.h
    "qkv_step": [POINTER, POINTER, POINTER, POINTER, POINTER, INT, POINTER],
    "qkv_product": [POINTER, POINTER, INT, INT, POINTER],
    "qkv_topk": [POINTER, POINTER, INT, INT, INT, INT, INT, POINTER, POINTER],
    "qkv_log_sum_exp": [POINTER, INT, INT, INT, POINTER],
    "qkv_rotate": [POINTER, POINTER, POINTER, POINTER, INT64, INT, INT, INT, POINTER],
    "qkv_relu2": [POINTER, INT64, INT, POINTER],
    "qkv_relu2_backward": [POINTER, POINTER, INT64, INT, POINTER],
    "qkv_rms_norm": [POINTER, POINTER, POINTER, FLOAT, INT, POINTER, POINTER],
    "qkv_rms_norm_backward": [POINTER, POINTER, POINTER, POINTER, POINTER, INT, POINTER, POINTER],
}
CHECK = "import ctypes, sys; sys.exit(ctypes.CDLL(sys.argv[1]).qkv_check())"


@cache
def library(dtype: torch.dtype) -> ctypes.CDLL | None:
    """Return the library for this number type, compiled if it is not cached, or None."""
    compiler = find_compiler()
    if dtype not in (torch.float32, torch.float64) or compiler is None:
        return None
    dtype_flags = ("-DIN_DOUBLE",) if dtype == torch.float64 else ()
    for target, openmp in product(target_flags(), (OPENMP_FLAGS, ())):
        flags = (*FLAGS, *target, *openmp, *dtype_flags)
        path = library_path(compiler, flags)
        if path is not None and is_built(compiler, flags, path):
            return load_library(path, ctypes.c_double if dtype == torch.float64 else ctypes.c_float)
    return None


def target_flags() -> tuple[tuple[str, ...], ...]:
    """Compiler options for the instruction set, in order of preference.

    QKV_NATIVE_MARCH, or that of this CPU. On x86 all compilers support `-march=native`. Elsewhere
    `-mcpu=native` is usual (Clang for aarch64 supports `-march=native` since version 16, GCC for
    POWER does not); a compiler that supports neither uses its default.
    """
    march = os.environ.get(MARCH_VARIABLE)
    if march:
        return ((f"-march={march}",),)
    if platform.machine().lower() in ("x86_64", "amd64", "i386", "i686"):
        return (("-march=native",),)
    return ("-mcpu=native",), ("-march=native",), ()


def find_compiler() -> str | None:
    """The compiler in CXX, or the first of c++, g++ and clang++."""
    named = os.environ.get("CXX")
    names = [named] if named else ["c++", "g++", "clang++"]
    return next((path for name in names if (path := shutil.which(name))), None)


# ── The cache ────────────────────────────────────────────────────────────────────────────────────
def library_path(compiler: str, flags: tuple[str, ...]) -> Path | None:
    """The cache file for these sources, compiler, torch and CPU; None: no safe cache folder."""
    key = [source.read_text(encoding="utf-8") for source in [*SOURCES, *HEADERS]]
    key += [compiler, *flags, torch.__version__, torch.__file__, platform.machine(), cpu_model()]
    name = hashlib.sha256("\n".join(key).encode()).hexdigest()[:24]
    try:
        folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "qkv"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except (OSError, RuntimeError):  # no home directory, or not writable
        return None
    return folder / f"native-{name}.so" if is_private(folder) else None


def is_private(folder: Path) -> bool:
    """Whether other users cannot write to the folder, from which we load code."""
    if not hasattr(os, "getuid"):
        return True
    status = folder.stat()
    return status.st_uid == os.getuid() and not status.st_mode & 0o022


def cpu_model() -> str:
    """The CPU model and its features, which -march=native depends on."""
    cpuinfo = Path("/proc/cpuinfo")
    if not cpuinfo.exists():
        return platform.processor()
    lines = cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines()
    fields = {
        line for line in lines if line.startswith(("model name", "flags", "Features", "CPU part"))
    }
    return "\n".join(sorted(fields or {lines[0]}))


# ── Compiling ────────────────────────────────────────────────────────────────────────────────────
def is_built(compiler: str, flags: tuple[str, ...], path: Path) -> bool:
    """Whether the library is in the cache; compile it if not."""
    try:
        return path.exists() or build(compiler, flags, path)
    except OSError:  # the cache is full or not writable
        return False


def build(compiler: str, flags: tuple[str, ...], path: Path) -> bool:
    """Compile into a temporary folder, run the self-check, then move the library to `path`.

    The self-check runs in a subprocess, because an illegal instruction would end the process.
    """
    lib = Path(torch.__file__).parent / "lib"
    if sys.stderr.isatty():
        message = _("compiling the native library for this CPU, once; it takes some seconds")
        print(message, file=sys.stderr)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        compiled = Path(folder, "native.so")
        command = [
            compiler,
            *flags,
            *map(str, SOURCES),
            "-o",
            str(compiled),
            f"-L{lib}",
            f"-Wl,-rpath,{lib}",
        ]
        if not succeeds(command) or not succeeds([sys.executable, "-c", CHECK, str(compiled)]):
            return False
        compiled.replace(path)
    return True


def succeeds(command: list[str]) -> bool:
    try:
        done = subprocess.run(command, capture_output=True, timeout=TIMEOUT_SECONDS, check=False)
        return done.returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def load_library(path: Path, number: type) -> ctypes.CDLL | None:
    """Open the library and declare the argument types of its functions; FLOAT is `number`."""
    try:
        lib = ctypes.CDLL(str(path))
    except OSError:
        return None
    for name, types in FUNCTIONS.items():
        function = getattr(lib, name)
        function.argtypes = [number if type_ is FLOAT else type_ for type_ in types]
        function.restype = None
    return lib


# ── Use ──────────────────────────────────────────────────────────────────────────────────────────
def can_be_native(x: Tensor) -> bool:
    """Whether the native library supports this dtype and device, and has been built."""
    return x.device.type == "cpu" and x.dtype in NATIVE_DTYPES and library(x.dtype) is not None


def native(x: Tensor) -> ctypes.CDLL:
    """The library for the dtype of x; call it only if `can_be_native(x)`."""
    lib = library(x.dtype)
    assert lib is not None
    return lib


def address(tensor: Tensor | None, dtype: torch.dtype | None = None) -> int | None:
    """The address of a contiguous tensor of this dtype; None: null pointer."""
    assert tensor is None or (tensor.is_contiguous() and dtype in (None, tensor.dtype))
    return None if tensor is None else tensor.data_ptr()
