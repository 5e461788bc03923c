"""The native library: the C++ files of this folder, compiled for exactly this processor, once per machine.

In: these and a compiler (CXX, c++, g++ or clang++). Out: the library, kept in the user's cache; None where there is
no compiler, it does not do or the cache takes no file, and then torch does all of it. Told in docs/performance.md, "The native library".
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

from qkv.language import say

SOURCES = sorted(Path(__file__).parent.glob("*.cpp"))
HEADERS = sorted(Path(__file__).parent.glob("*.h"))
FLAGS = ("-std=c++17", "-O3", "-fPIC", "-shared", "-fno-math-errno", "-fno-trapping-math",
         "-fno-signed-zeros", "-fassociative-math")  # sums may be vectorised; infinities stay what they are  # fmt: skip
MARCH = "QKV_NATIVE_MARCH"  # environment variable: the instruction set to compile for, as in -march=x86-64-v3
THREADED = ("-fopenmp",)  # by the runtime that torch has loaded already: one set of threads
PATIENCE = 120            # seconds for the compiler; it needs 5
AT, N, LONG = ctypes.c_void_p, ctypes.c_int, ctypes.c_int64
FUNCTIONS: dict[str, list[Any]] = {  # what each takes; None: a number
    "qkv_step": [AT, AT, AT, AT, AT, N, AT],
    "qkv_product": [AT, AT, N, N, AT],
    "qkv_best": [AT, AT, N, N, N, N, N, AT, AT],
    "qkv_log_sums": [AT, N, N, N, AT],
    "qkv_turn": [AT, AT, AT, AT, LONG, N, N, N, AT],
    "qkv_relu_squared": [AT, LONG, N, AT],
    "qkv_relu_squared_back": [AT, AT, LONG, N, AT],
    "qkv_rms": [AT, AT, AT, None, N, AT, AT],
    "qkv_rms_back": [AT, AT, AT, AT, AT, N, AT, AT],
}
CHECK = "import ctypes, sys; sys.exit(ctypes.CDLL(sys.argv[1]).qkv_check())"


@cache
def library(dtype: torch.dtype) -> ctypes.CDLL | None:
    """The library for numbers of this type, if there can be one."""
    compiler = find_compiler()
    if dtype not in (torch.float32, torch.float64) or compiler is None:
        return None
    more = ("-DIN_DOUBLE",) if dtype == torch.float64 else ()
    for target, threaded in product(target_flags(), (THREADED, ())):
        flags = (*FLAGS, *target, *threaded, *more)
        path = place_of(compiler, flags)
        if path is not None and is_there(compiler, flags, path):
            return opened(path, ctypes.c_double if dtype == torch.float64 else ctypes.c_float)
    return None


def target_flags() -> tuple[tuple[str, ...], ...]:
    """The options that name the instruction set, best first: QKV_NATIVE_MARCH alone, or those that mean this CPU.

    On x86 `-march=native` is known to all compilers. Elsewhere `-mcpu=native` is the usual name (Clang for aarch64 knows
    `-march=native` since version 16 only, GCC for POWER not at all); a compiler that knows neither takes its default.
    """
    march = os.environ.get(MARCH)
    if march:
        return ((f"-march={march}",),)
    if platform.machine().lower() in ("x86_64", "amd64", "i386", "i686"):
        return (("-march=native",),)
    return ("-mcpu=native",), ("-march=native",), ()


def is_there(compiler: str, flags: tuple[str, ...], path: Path) -> bool:
    """Whether the library stands here, made now if need be."""
    try:
        return path.exists() or build(compiler, flags, path)
    except OSError:  # a cache that is full or cannot be written
        return False


def find_compiler() -> str | None:
    """The compiler that the user names, or the first of the usual ones."""
    named = os.environ.get("CXX")
    return next((found for name in ([named] if named else ["c++", "g++", "clang++"]) if (found := shutil.which(name))), None)


def place_of(compiler: str, flags: tuple[str, ...]) -> Path | None:
    """Another source, compiler, torch or processor has a library of its own."""
    about = [source.read_text(encoding="utf-8") for source in [*SOURCES, *HEADERS]]
    about += [compiler, *flags, torch.__version__, torch.__file__, platform.machine(), processor()]
    name = hashlib.sha256("\n".join(about).encode()).hexdigest()[:24]
    try:
        folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "qkv"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except (OSError, RuntimeError):  # no home, or one that cannot be written
        return None
    return folder / f"native-{name}.so" if is_ours(folder) else None


def is_ours(folder: Path) -> bool:
    """Nobody else may put a library where we load one."""
    if not hasattr(os, "getuid"):
        return True
    state = folder.stat()
    return state.st_uid == os.getuid() and not state.st_mode & 0o022


def processor() -> str:
    """What -march=native looks at."""
    about = Path("/proc/cpuinfo")
    lines = about.read_text(encoding="utf-8", errors="replace").splitlines() if about.exists() else [platform.processor()]
    return "\n".join(sorted({line for line in lines if line.startswith(("model name", "flags", "Features", "CPU part"))} or {lines[0]}))


def build(compiler: str, flags: tuple[str, ...], path: Path) -> bool:
    """Compile beside the final place, try it in another process (a wrong instruction ends it), then move it there."""
    lib = Path(torch.__file__).parent / "lib"
    if sys.stderr.isatty():
        told = say("compiling the native library for this processor, once: some seconds", "正在为这台处理器编译原生库，只此一次：几秒钟")
        print(told, file=sys.stderr)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        made = Path(folder, "native.so")
        command = [compiler, *flags, *map(str, SOURCES), "-o", str(made), f"-L{lib}", f"-Wl,-rpath,{lib}"]
        if not runs(command) or not runs([sys.executable, "-c", CHECK, str(made)]):
            return False
        made.replace(path)
    return True


def runs(command: list[str]) -> bool:
    try:
        return subprocess.run(command, capture_output=True, timeout=PATIENCE, check=False).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def opened(path: Path, number: type) -> ctypes.CDLL | None:
    """The library, told what its functions take."""
    try:
        lib = ctypes.CDLL(str(path))
    except OSError:
        return None
    for name, takes in FUNCTIONS.items():
        function = getattr(lib, name)
        function.argtypes, function.restype = [number if one is None else one for one in takes], None
    return lib
