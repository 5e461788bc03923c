"""The native library: the C++ files of this folder, compiled once for this CPU, cached.

Where there is no compiler (CXX, c++, g++ or clang++), its result fails the self-check or the cache
cannot be written, there is no library and torch computes everything. Explained in
docs/performance.md, "The native library".
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
)  # vectorize sums, keep infinities
MARCH_VARIABLE = "QKV_NATIVE_MARCH"  # names another instruction set, as in -march=x86-64-v3
OPENMP_FLAGS = ("-fopenmp",)  # resolved to the runtime that torch has loaded: one pool of threads
TIMEOUT_SECONDS = 120  # for the compiler, which needs 5, and for the self-check
POINTER, INT, INT64 = ctypes.c_void_p, ctypes.c_int, ctypes.c_int64
FLOAT = None  # float or double, as the library
FUNCTIONS: dict[str, list[Any]] = {  # the types of the arguments, as declared in api.h
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
    """The library that computes in this type, compiled now if need be, or None."""
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
    """The options that name the instruction set, best first: QKV_NATIVE_MARCH, or this CPU's own.

    On x86 `-march=native` is known to all compilers. Elsewhere `-mcpu=native` is the usual name
    (Clang for aarch64 knows `-march=native` since version 16 only, GCC for POWER not at all); a
    compiler that knows neither uses its default.
    """
    march = os.environ.get(MARCH_VARIABLE)
    if march:
        return ((f"-march={march}",),)
    if platform.machine().lower() in ("x86_64", "amd64", "i386", "i686"):
        return (("-march=native",),)
    return ("-mcpu=native",), ("-march=native",), ()


def find_compiler() -> str | None:
    """The compiler named by CXX, or the first of the usual ones."""
    named = os.environ.get("CXX")
    names = [named] if named else ["c++", "g++", "clang++"]
    return next((path for name in names if (path := shutil.which(name))), None)


# ── The cache ────────────────────────────────────────────────────────────────────────────────────
def library_path(compiler: str, flags: tuple[str, ...]) -> Path | None:
    """The file of this source, compiler, torch and CPU; None: the cache cannot be used safely."""
    key = [source.read_text(encoding="utf-8") for source in [*SOURCES, *HEADERS]]
    key += [compiler, *flags, torch.__version__, torch.__file__, platform.machine(), cpu_model()]
    name = hashlib.sha256("\n".join(key).encode()).hexdigest()[:24]
    try:
        folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "qkv"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except (OSError, RuntimeError):  # no home, or one that cannot be written
        return None
    return folder / f"native-{name}.so" if is_private(folder) else None


def is_private(folder: Path) -> bool:
    """Whether nobody else can put a library there for us to load."""
    if not hasattr(os, "getuid"):
        return True
    status = folder.stat()
    return status.st_uid == os.getuid() and not status.st_mode & 0o022


def cpu_model() -> str:
    """The model and the features of this CPU, which -march=native depends on."""
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
    """Whether the library is in the cache, compiled now if need be."""
    try:
        return path.exists() or build(compiler, flags, path)
    except OSError:  # a cache that is full or cannot be written
        return False


def build(compiler: str, flags: tuple[str, ...], path: Path) -> bool:
    """Compile into a temporary folder, run the self-check, then move the library to `path`.

    The self-check is another process, because an instruction that the CPU does not have ends it.
    """
    lib = Path(torch.__file__).parent / "lib"
    if sys.stderr.isatty():
        message = _("compiling the native library for this processor, once: some seconds")
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
        return (
            subprocess.run(
                command, capture_output=True, timeout=TIMEOUT_SECONDS, check=False
            ).returncode
            == 0
        )
    except (OSError, subprocess.TimeoutExpired):
        return False


def load_library(path: Path, number: type) -> ctypes.CDLL | None:
    """Open the library and declare the arguments of its functions, floats as `number`."""
    try:
        lib = ctypes.CDLL(str(path))
    except OSError:
        return None
    for name, types in FUNCTIONS.items():
        function = getattr(lib, name)
        function.argtypes, function.restype = (
            [number if type_ is FLOAT else type_ for type_ in types],
            None,
        )
    return lib
