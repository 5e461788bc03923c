"""Run the self-checks on emulated CPUs by qemu-user: Haswell (AVX2, no AVX-512) and aarch64.

    python tests/emulated_cpus.py             float32, float64, and torch's int8 product on Haswell
                                              (make test-cpus)
    python tests/emulated_cpus.py --short     float32 only; skipped without qemu or a cross compiler
                                              (part of make test)

The native library is compiled for the CPU (for aarch64 with a cross compiler) and linked with its
self-check into a static program. Environment variables cannot replace this: fbgemm detects the CPU
itself.
"""

import argparse
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = "qemu-user g++-aarch64-linux-gnu"  # Debian packages
FLAGS = ("-static", "-fopenmp")
DTYPES: dict[str, tuple[str, ...]] = {"float32": (), "float64": ("-DIN_DOUBLE",)}


@dataclass(frozen=True)
class EmulatedCpu:
    """A CPU that qemu emulates, and how the library is compiled for it."""

    name: str
    machine: str  # as in platform.machine()
    march: str
    emulator: tuple[str, ...]
    register_bytes: int  # of a vector register

    def compiler(self) -> str:
        return "c++" if platform.machine() == self.machine else f"{self.machine}-linux-gnu-g++"

    def width(self, dtype: str) -> int:
        """Outputs of a panel: two registers."""
        return 2 * self.register_bytes // (4 if dtype == "float32" else 8)


HASWELL = EmulatedCpu("Haswell", "x86_64", "x86-64-v3", ("qemu-x86_64", "-cpu", "Haswell"), 32)
CPUS = [HASWELL, EmulatedCpu("aarch64", "aarch64", "armv8-a", ("qemu-aarch64",), 16)]


def missing() -> list[str]:
    """Programs that are not installed."""
    needed = {name for cpu in CPUS for name in (cpu.emulator[0], cpu.compiler())}
    return sorted(name for name in needed if shutil.which(name) is None)


def compile_check(cpu: EmulatedCpu, dtype: str, folder: Path) -> Path:
    """Compile the library and its self-check into one program, with the flags of the library."""
    from qkv.kernels.build import FLAGS as LIBRARY_FLAGS
    from qkv.kernels.build import SOURCES

    program = folder / f"{cpu.name}-{dtype}"
    flags = [flag for flag in LIBRARY_FLAGS if flag not in ("-shared", "-fPIC")]
    sources = [*map(str, SOURCES), str(ROOT / "tests" / "kernels" / "self_check_main.cpp")]
    command = [
        cpu.compiler(),
        *flags,
        *FLAGS,
        *DTYPES[dtype],
        f"-march={cpu.march}",
        *sources,
        "-o",
        str(program),
    ]
    # The linker warns about dlopen in static programs, which is not called here.
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    if done.returncode:
        sys.exit(f"{cpu.name}: {cpu.compiler()} failed: {done.stderr}")
    return program


def check_native(cpu: EmulatedCpu, dtype: str, folder: Path) -> bool:
    """Run the self-check; the panel width must match the CPU, and AVX-512 must be absent."""
    program = compile_check(cpu, dtype, folder)
    done = subprocess.run(
        [*cpu.emulator, str(program)], capture_output=True, text=True, timeout=300
    )
    expected = f"width {cpu.width(dtype)}, avx512 0"
    passed = done.returncode == 0 and done.stdout.strip() == expected
    result = "passed" if passed else f"FAILED: exit code {done.returncode}, {done.stdout.strip()!r}"
    print(f"{cpu.name}, native library, {dtype}: {result}", flush=True)
    return passed


# ── torch and fbgemm on Haswell ──────────────────────────────────────────────────────────────────
def check_int8_products() -> None:
    """Check both int8 products with matrices that saturate 16 bits; runs in the emulator."""
    import torch

    from qkv.engine.int8 import int8_product
    from qkv.engine.native_step import native_int8_product

    capability = torch.backends.cpu.get_cpu_capability()
    assert capability == "AVX2", capability
    generator = torch.Generator().manual_seed(0)
    for signs in (torch.ones(30, 64), torch.randint(2, (30, 64), generator=generator) * 2.0 - 1):
        weight = 127 * signs
        x = torch.where(torch.rand(5, 64, generator=generator) < 0.5, 127.0, -127.0) / 64
        x[0] = 127 / 64  # the largest sums
        exact = x.double() @ weight.double().T
        for product in (int8_product, native_int8_product):
            error = float((product(weight, None)(x) - exact).abs().max() / exact.abs().max())
            # Saturation gives 0.3 and more.
            assert error < 1e-5, f"{product.__name__}: error {error:.3f} of the largest output"


def check_torch() -> bool:
    """Check the int8 products from Python on Haswell, with the library compiled for it."""
    environment = os.environ | {
        "QKV_NATIVE_MARCH": HASWELL.march,
        "OMP_NUM_THREADS": "1",
        "XDG_CACHE_HOME": str(ROOT / ".pytest_cache" / "home"),
    }
    done = subprocess.run(
        [*HASWELL.emulator, sys.executable, __file__, "--int8"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
    )
    last_line = (done.stderr.strip().splitlines() or [""])[-1]
    result = "passed" if done.returncode == 0 else f"FAILED: {last_line}"
    print(f"Haswell, int8 products of torch and of the native library: {result}", flush=True)
    return done.returncode == 0


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--short", action="store_true", help="the native library in float32 only")
    parser.add_argument("--int8", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    sys.path.insert(0, str(ROOT))
    options = parse_options()
    if options.int8:
        check_int8_products()
        return
    if missing():
        names = ", ".join(missing())
        print(f"emulated CPUs: NOT CHECKED, no {names}; on Debian: apt-get install {PACKAGES}")
        sys.exit(0 if options.short else 1)
    dtypes = ["float32"] if options.short else list(DTYPES)
    with tempfile.TemporaryDirectory() as folder:
        passed = [check_native(cpu, dtype, Path(folder)) for cpu in CPUS for dtype in dtypes]
    if not options.short and platform.machine() == HASWELL.machine:
        passed.append(check_torch())
    sys.exit(0 if all(passed) else 1)


if __name__ == "__main__":
    main()
