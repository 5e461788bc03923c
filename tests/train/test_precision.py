"""bf16 is refused where it would end the process; where it works, it learns what float32 learns."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from qkv.errors import QkvError
from qkv.train.precision import TRIAL, check_bf16


def test_bf16_is_refused_exactly_where_a_product_fails_in_another_process():
    fails = subprocess.run(
        [sys.executable, "-c", TRIAL.replace("64, 64", "256, 256").replace("== 64", "== 256")],
        capture_output=True,
    ).returncode
    if fails:
        with pytest.raises(QkvError) as error:
            check_bf16("cpu")
        assert str(error.value) == "dtype: bf16 matrix products fail on this CPU; use float32"
    else:
        check_bf16("cpu")
    check_bf16("cuda")  # not ours to judge


def test_the_losses_of_bf16_are_those_of_float32_within_its_digits(tmp_path):
    """Without the units that some machines only announce: any CPU can then multiply in bf16."""
    here = {**os.environ, "ONEDNN_MAX_CPU_ISA": "AVX512_CORE", "OMP_NUM_THREADS": "1"}
    script = Path(__file__).with_name("bf16_runs.py")
    done = subprocess.run(
        [sys.executable, script, tmp_path], env=here, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)
    assert rows.keys() == {"today", "paper", "gated", "agreeing", "characters", "experts"}
    for name, (plain, half) in rows.items():
        assert half != plain and half == pytest.approx(plain, rel=1e-3), name
