"""bf16 is refused where it would end the process."""

import subprocess
import sys

import pytest

from qkv.errors import QkvError
from qkv.train.precision import TRIAL, check_bf16


def test_bf16_is_refused_exactly_where_a_product_fails_in_another_process():
    fails = subprocess.run([sys.executable, "-c", TRIAL.replace("64, 64", "256, 256").replace("== 64", "== 256")], capture_output=True).returncode
    if fails:
        with pytest.raises(QkvError) as error:
            check_bf16("cpu")
        assert str(error.value) == "dtype: bf16 matrix products fail on this CPU; use float32"
    else:
        check_bf16("cpu")
    check_bf16("cuda")  # not ours to judge
