"""bf16 is an error where it would end the process; elsewhere its losses equal those of float32."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from qkv.errors import QkvError
from qkv.train.precision import PROBE, check_bf16


def test_bf16_is_an_error_exactly_where_a_product_fails_in_another_process():
    fails = subprocess.run(
        [sys.executable, "-c", PROBE.replace("64, 64", "256, 256").replace("== 64", "== 256")],
        capture_output=True,
    ).returncode
    if fails:
        with pytest.raises(QkvError) as error:
            check_bf16("cpu")
        assert str(error.value) == "dtype: bf16 matrix products fail on this CPU; use float32"
    else:
        check_bf16("cpu")
    check_bf16("cuda")  # not checked


def test_the_losses_of_bf16_equal_those_of_float32_within_its_precision(tmp_path):
    """Limited to AVX-512: with it every CPU can multiply in bf16."""
    here = {**os.environ, "ONEDNN_MAX_CPU_ISA": "AVX512_CORE", "OMP_NUM_THREADS": "1"}
    script = Path(__file__).with_name("bf16_runs.py")
    done = subprocess.run(
        [sys.executable, script, tmp_path], env=here, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)
    assert rows.keys() == {"modern", "paper", "gated", "r-drop", "characters", "experts"}
    for name, (plain, half) in rows.items():
        assert half != plain and half == pytest.approx(plain, rel=1e-3), name
