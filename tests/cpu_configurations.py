"""Run the numeric tests as on other CPUs: AVX2 only, x86-64 baseline, and without a compiler.

    python tests/cpu_configurations.py             all numeric tests in each configuration
                                                   (make test-cpus)
    python tests/cpu_configurations.py --short     a selection of them (part of make test)
    python tests/cpu_configurations.py avx2        one configuration

Environment variables limit the instructions of each library below torch. A configuration runs only
after every library has reported the instructions that it uses: a variable without effect is an
error.
"""

import argparse
import contextlib
import os
import platform
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
X86 = platform.machine() in ("x86_64", "AMD64")
VERBOSE = {  # each library prints its instruction set once
    "ONEDNN_VERBOSE": "1",
    "MKL_VERBOSE": "1",
    "CT2_VERBOSE": "1",
}
PATTERNS = {
    "torch": r"^torch (\w+)$",
    "oneDNN": r"^onednn_verbose,.*cpu,isa:(.+)$",
    "MKL": r"^MKL_VERBOSE .* \(Intel\(R\) ([\w.-]+)\)",
    "CTranslate2": r"Selected ISA: (\w+)",
    "fbgemm": r"^fbgemm (\w+)$",
    "native": r"^native (\w+)$",
}


@dataclass(frozen=True)
class Configuration:
    """Environment variables, the expected reports of the libraries, and the tests to run."""

    name: str
    environment: dict[str, str]
    expected: dict[str, str]  # of PATTERNS
    marks: str = "not serial and not slow"


CONFIGURATIONS = [
    Configuration(
        "avx2",
        {
            "ATEN_CPU_CAPABILITY": "avx2",
            "ONEDNN_MAX_CPU_ISA": "AVX2",
            "MKL_ENABLE_INSTRUCTIONS": "AVX2",
            "CT2_FORCE_CPU_ISA": "AVX2",
            "FBGEMM_ENABLE_INSTRUCTIONS": "AVX2",
            "QKV_NATIVE_MARCH": "x86-64-v3",
        },
        {
            "torch": "AVX2",
            "oneDNN": "Intel AVX2",
            "MKL": "AVX2",
            "CTranslate2": "AVX2",
            "fbgemm": "saturates",
            "native": "16",
        },
    ),
    Configuration(  # the lowest level of each library; that of fbgemm is AVX2
        "baseline",
        {
            "ATEN_CPU_CAPABILITY": "default",
            "ONEDNN_MAX_CPU_ISA": "SSE41",
            "MKL_ENABLE_INSTRUCTIONS": "SSE4_2",
            "CT2_FORCE_CPU_ISA": "GENERIC",
            "FBGEMM_ENABLE_INSTRUCTIONS": "AVX2",
            "QKV_NATIVE_MARCH": "x86-64",
        },
        {
            "torch": "DEFAULT",
            "oneDNN": "Intel SSE4.1",
            "MKL": "SSE4.2",
            "CTranslate2": "GENERIC",
            "fbgemm": "saturates",
            "native": "8",
        },
    ),
    Configuration(
        "no-compiler",
        {"CXX": "no-such-compiler"},
        {"native": "None"},
        "not serial and not slow and not native",
    ),
]
NAMES = [configuration.name for configuration in CONFIGURATIONS]
ALL_TESTS = [
    "tests/model",
    "tests/kernels",
    "tests/engine",
    "tests/generate",
    "tests/pipeline",
    "tests/checkpoint",
]
SERIAL_TESTS = ["tests/checkpoint/test_demo_exported.py"]  # trains the demo model if necessary
SHORT_TESTS = [
    "tests/model/test_model_against_torch.py",
    "tests/kernels/test_rms_norm.py",
    "tests/kernels/test_rotary.py",
    "tests/kernels/test_relu2.py",
    "tests/model/test_model_invariants.py",
    "tests/engine/test_int8.py",
    "tests/engine/test_native_step.py",
    "tests/engine/test_stepper.py",
    "tests/engine/test_packed_decoders.py",
    "tests/kernels/test_topk.py",
    "tests/pipeline/test_translator_int8.py",
    *(
        f"tests/checkpoint/test_ctranslate2.py::test_{name}"
        for name in (
            "every_supported_part_gives_the_same_scores_and_greedy_text",
            "all_200_translations_and_scores_equal_torch",
            "beam_search_of_a_random_model_equals_torch",
            "int8_is_smaller_and_not_worse",
        )
    ),
    "tests/checkpoint/test_import_decoders.py",
]


# ── Instructions in use ──────────────────────────────────────────────────────────────────────────
def report() -> None:
    """Let each library print the instructions that it uses; runs in a subprocess with VERBOSE."""
    import ctranslate2
    import torch

    from qkv.kernels.build import library

    print("torch", torch.backends.cpu.get_cpu_capability())
    x = torch.ones(256, 256)
    if torch.backends.mkldnn.is_available():
        torch.ops.mkldnn._linear_pointwise(x, x, None, "none", [], "")  # by oneDNN
    x @ x  # by MKL
    ctranslate2.set_log_level(20)
    # Its instruction set is printed before the files are opened.
    with contextlib.suppress(RuntimeError):
        ctranslate2.Translator("no-such-folder")
    print("fbgemm", fbgemm_behavior())
    native = library(torch.float32)
    print("native", None if native is None else native.qkv_width(), flush=True)


def fbgemm_behavior() -> str:
    """Whether fbgemm adds pairs of products in 16 bits, as without AVX-512; it reports nothing."""
    import torch

    if "fbgemm" not in torch.backends.quantized.supported_engines:
        return "absent"
    torch.backends.quantized.engine = "fbgemm"
    x = torch.full((4, 64), 127.0)
    x[:, 0] = -128.0  # the range of 256 integers, without rounding
    weight = torch.full((32, 64), 127.0)
    packed = torch.ops.quantized.linear_prepack(
        torch.quantize_per_tensor(weight, 1.0, 0, torch.qint8), None
    )
    exact = torch.ops.quantized.linear_dynamic(x, packed).equal(x @ weight.T)
    return "exact" if exact else "saturates"


def reported(environment: dict[str, str]) -> dict[str, str]:
    """The report of each library in this environment."""
    done = subprocess.run(
        [sys.executable, __file__, "--report"],
        env=environment | VERBOSE,
        capture_output=True,
        text=True,
        timeout=300,
    )
    if done.returncode:
        sys.exit(f"tests/cpu_configurations.py --report: {done.stderr.strip().splitlines()[-1]}")
    output = done.stdout + done.stderr
    return {
        name: found[1].strip()
        for name, pattern in PATTERNS.items()
        if (found := re.search(pattern, output, re.M))
    }


def is_intel() -> bool:
    cpuinfo = Path("/proc/cpuinfo")
    return cpuinfo.exists() and "GenuineIntel" in cpuinfo.read_text(encoding="utf-8")


def verify(configuration: Configuration, environment: dict[str, str]) -> None:
    """Exit if a library does not use the instructions of the configuration."""
    found, expected = reported(environment), dict(configuration.expected)
    if not is_intel():
        expected.pop("MKL", None)  # its variable works on Intel CPUs only
    wrong = [
        f"{name} is {found.get(name, 'silent')}, not {right}"
        for name, right in expected.items()
        if found.get(name) != right
    ]
    if wrong:
        sys.exit(f"{configuration.name}: not in effect: {'; '.join(wrong)}")
    print(
        f"{configuration.name}: {', '.join(f'{name} {value}' for name, value in found.items())}",
        flush=True,
    )


# ── Running ──────────────────────────────────────────────────────────────────────────────────────
def environment_of(configuration: Configuration) -> dict[str, str]:
    """This environment with that of the configuration, and the cache of tests/conftest.py."""
    common = {
        "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])),
        "OMP_NUM_THREADS": "1",
        "XDG_CACHE_HOME": str(ROOT / ".pytest_cache" / "home"),
    }
    return os.environ | common | configuration.environment


def run(configuration: Configuration, short: bool) -> bool:
    """Verify the configuration, run its tests on all cores, then those marked `serial`."""
    environment = environment_of(configuration)
    verify(configuration, environment)
    parallel = ["-n", str(os.cpu_count() or 1), "--dist", "loadfile", "-m", configuration.marks]
    runs = [[*parallel, *SHORT_TESTS]]
    if not short:
        runs = [[*parallel, *ALL_TESTS], ["-m", "serial", *SERIAL_TESTS]]
    codes = [
        subprocess.run(
            [sys.executable, "-m", "pytest", *arguments], cwd=ROOT, env=environment
        ).returncode
        for arguments in runs
    ]
    return not any(codes)


def applicable() -> list[Configuration]:
    """All configurations on x86; elsewhere only the one without a compiler."""
    if X86:
        return CONFIGURATIONS
    print(f"{platform.machine()}: the x86-64 configurations avx2 and baseline are skipped")
    return CONFIGURATIONS[2:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "names", nargs="*", help=f"configurations: {', '.join(NAMES)}; default: all"
    )
    parser.add_argument("--short", action="store_true", help="a selection of the tests")
    parser.add_argument("--report", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.report:
        report()
        return
    unknown = set(options.names) - set(NAMES)
    if unknown:
        parser.error(f"no configuration {', '.join(sorted(unknown))}")
    chosen = [each for each in applicable() if not options.names or each.name in options.names]
    failed = [each.name for each in chosen if not run(each, options.short)]
    if failed:
        sys.exit(f"tests failed in: {', '.join(failed)}")


if __name__ == "__main__":
    main()
