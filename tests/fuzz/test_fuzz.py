"""Mutated files: every reader returns an object or raises one line; `make fuzz` runs for longer."""

import subprocess
import sys
from pathlib import Path
from random import Random

import fuzz_commands
import fuzz_requests
import pytest
from fuzz_contract import violation_of
from fuzz_readers import READERS, make_targets
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

SETTINGS = settings(
    max_examples=60, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck)
)
RUN = Path(__file__).with_name("run.py")


@pytest.mark.parametrize("name", READERS)
def test_a_mutated_file_is_read_or_refused_in_one_line(name, tmp_path):
    targets = make_targets(name, tmp_path)
    for target in targets:  # not every file is one that the reader accepts as it is
        assert violation_of(target, target.valid) is None

    @SETTINGS
    @given(st.sampled_from(range(len(targets))), st.randoms(use_true_random=False))
    def check(index: int, rng: Random) -> None:
        content = READERS[name].mutate(rng, targets[index].valid)
        wrong = violation_of(targets[index], content)
        assert wrong is None, (wrong, content[:1_000])

    check()


def test_mutated_command_lines_end_with_a_documented_code(tmp_path):
    targets, rng = list(fuzz_commands.command_targets(tmp_path / "commands")), Random(1)
    for target in targets:
        content = fuzz_commands.mutate_arguments(rng, target.valid)
        wrong = violation_of(target, content)
        assert wrong is None, (wrong, content)


def test_random_requests_get_no_500(tmp_path):
    rng = Random(2)
    with fuzz_requests.request_targets(tmp_path / "requests") as (target,):
        for _request in range(100):
            content = fuzz_requests.mutate_request(rng, target.valid)
            wrong = violation_of(target, content)
            assert wrong is None, (wrong, content)


def test_the_long_run_counts_inputs_with_both_engines(tmp_path):
    command = [sys.executable, RUN, "--minutes", "0.05", "--only", "model.json", "--seed", "1"]
    run = subprocess.run(
        [*command, "--out", tmp_path / "out"], capture_output=True, text=True, timeout=300
    )
    assert run.returncode == 0, run.stdout + run.stderr
    inputs, _word, violations, *_rest = run.stdout.splitlines()[-1].split()
    assert int(inputs.replace(",", "")) > 0 and violations == "0"
    assert not (tmp_path / "out").exists()
