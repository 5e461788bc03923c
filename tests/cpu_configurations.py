"""Run the numeric tests as on other CPUs: with AVX2 only, with the baseline of x86-64, and without a compiler.

    python tests/cpu_configurations.py             all numeric tests, in each configuration (make test-cpus)
    python tests/cpu_configurations.py --short     a selection of them (part of make test)
    python tests/cpu_configurations.py avx2        one configuration

The libraries below torch choose their instructions by themselves; environment variables hold each of them back. A configuration
runs only after every library has said which instructions it uses: a variable that has no effect is an error, not a green test.
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
VERBOSE = {
    "ONEDNN_VERBOSE": "1",
    "MKL_VERBOSE": "1",
    "CT2_VERBOSE": "1",
}  # each prints its instruction set once
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
    """Environment variables, what the libraries then say of themselves, and the tests that apply."""

    name: str
    environment: dict[str, str]
    expected: dict[str, str]  # of PATTERNS
    marks: str = "not alone and not slow"


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
    Configuration(  # the lowest that each knows; fbgemm has nothing below AVX2
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
        "not alone and not slow and not native",
    ),
]
LONG = [
    "tests/model",
    "tests/kernels",
    "tests/engine",
    "tests/generate",
    "tests/pipeline",
    "tests/checkpoint",
]
ALONE = [
    "tests/checkpoint/test_demo_exported.py"
]  # on the demo's model, which is trained if it is not there
SHORT = [
    "tests/model/test_model_against_torch.py",
    "tests/kernels/test_rms_norm.py",
    "tests/kernels/test_rotary.py",
    "tests/kernels/test_relu2.py",
    "tests/model/test_model_truths.py",
    "tests/engine/test_int8.py",
    "tests/engine/test_native_step.py",
    "tests/engine/test_stepper.py",
    "tests/engine/test_packed_decoders.py",
    "tests/kernels/test_topk.py",
    "tests/pipeline/test_translator_int8.py",
    *(
        f"tests/checkpoint/test_ctranslate2.py::test_{name}"
        for name in (
            "every_part_that_fits_gives_the_same_numbers_and_the_same_greedy_text",
            "all_200_translations_and_their_scores_equal_ours",
            "an_unsure_model_is_searched_as_far_as_ours",
            "int8_is_smaller_and_nearly_as_good",
        )
    ),
    "tests/checkpoint/test_import_decoders.py",
]


# ── What is in effect ────────────────────────────────────────────────────────────────────────────────────────────
def observe() -> None:
    """Let each library print which instructions it uses; run in a process of its own, with VERBOSE."""
    import ctranslate2
    import torch

    from qkv.kernels.build import library

    print("torch", torch.backends.cpu.get_cpu_capability())
    x = torch.ones(256, 256)
    if torch.backends.mkldnn.is_available():
        torch.ops.mkldnn._linear_pointwise(x, x, None, "none", [], "")  # by oneDNN
    x @ x  # by MKL
    ctranslate2.set_log_level(20)
    with contextlib.suppress(
        RuntimeError
    ):  # its instruction set is printed before the files are opened
        ctranslate2.Translator("no-such-folder")
    print("fbgemm", observed_fbgemm())
    native = library(torch.float32)
    print("native", None if native is None else native.qkv_width(), flush=True)


def observed_fbgemm() -> str:
    """Whether fbgemm adds pairs of products in 16 bits, as it does without AVX-512: it has no other way to say what it uses."""
    import torch

    if "fbgemm" not in torch.backends.quantized.supported_engines:
        return "absent"
    torch.backends.quantized.engine = "fbgemm"
    x = torch.full((4, 64), 127.0)
    x[:, 0] = -128.0  # all 256 steps are in use, each one whole
    weight = torch.full((32, 64), 127.0)
    packed = torch.ops.quantized.linear_prepack(
        torch.quantize_per_tensor(weight, 1.0, 0, torch.qint8), None
    )
    return (
        "exact"
        if torch.ops.quantized.linear_dynamic(x, packed).equal(x @ weight.T)
        else "saturates"
    )


def observed(environment: dict[str, str]) -> dict[str, str]:
    """What each library says of itself in this environment."""
    done = subprocess.run(
        [sys.executable, __file__, "--observe"],
        env=environment | VERBOSE,
        capture_output=True,
        text=True,
        timeout=300,
    )
    if done.returncode:
        sys.exit(f"tests/cpu_configurations.py --observe: {done.stderr.strip().splitlines()[-1]}")
    said = done.stdout + done.stderr
    return {
        name: found[1].strip()
        for name, pattern in PATTERNS.items()
        if (found := re.search(pattern, said, re.M))
    }


def is_intel() -> bool:
    about = Path("/proc/cpuinfo")
    return about.exists() and "GenuineIntel" in about.read_text(encoding="utf-8")


def prove(configuration: Configuration, environment: dict[str, str]) -> None:
    """End here if a library does not use the instructions that the configuration names."""
    found, expected = observed(environment), dict(configuration.expected)
    if not is_intel():
        expected.pop("MKL", None)  # its variable is for Intel's CPUs only
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


# ── Running ──────────────────────────────────────────────────────────────────────────────────────────────────────
def environment_of(configuration: Configuration) -> dict[str, str]:
    """This process's environment with the configuration's; the native library is kept where tests/conftest.py keeps it."""
    here = {
        "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])),
        "OMP_NUM_THREADS": "1",
        "XDG_CACHE_HOME": str(ROOT / ".pytest_cache" / "home"),
    }
    return os.environ | here | configuration.environment


def run(configuration: Configuration, short: bool) -> bool:
    """Prove the configuration, then run the tests in it: one process on each core, after them those marked `alone`."""
    environment = environment_of(configuration)
    prove(configuration, environment)
    parallel = ["-n", str(os.cpu_count() or 1), "--dist", "loadfile", "-m", configuration.marks]
    runs = [[*parallel, *SHORT]] if short else [[*parallel, *LONG], ["-m", "alone", *ALONE]]
    codes = [
        subprocess.run(
            [sys.executable, "-m", "pytest", *arguments], cwd=ROOT, env=environment
        ).returncode
        for arguments in runs
    ]
    return not any(codes)


def applicable() -> list[Configuration]:
    """All configurations on x86; elsewhere there is only one to choose: without a compiler."""
    if X86:
        return CONFIGURATIONS
    print(
        f"{platform.machine()}: avx2 and baseline are configurations of x86-64; they are left out here"
    )
    return CONFIGURATIONS[2:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "names",
        nargs="*",
        help=f"configurations: {', '.join(one.name for one in CONFIGURATIONS)}; all if none is named",
    )
    parser.add_argument("--short", action="store_true", help="a selection of the tests")
    parser.add_argument("--observe", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.observe:
        observe()
        return
    unknown = set(options.names) - {one.name for one in CONFIGURATIONS}
    if unknown:
        parser.error(f"no configuration {', '.join(sorted(unknown))}")
    chosen = [one for one in applicable() if not options.names or one.name in options.names]
    failed = [one.name for one in chosen if not run(one, options.short)]
    if failed:
        sys.exit(f"tests failed in: {', '.join(failed)}")


if __name__ == "__main__":
    main()
