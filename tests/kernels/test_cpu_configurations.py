"""tests/cpu_configurations.py fails if a configuration has no effect."""

import runpy
from pathlib import Path

import pytest

CPU = runpy.run_path(str(Path(__file__).resolve().parents[1] / "cpu_configurations.py"))
BASELINE = next(c for c in CPU["CONFIGURATIONS"] if c.name == "baseline")
NO_COMPILER = next(c for c in CPU["CONFIGURATIONS"] if c.name == "no-compiler")


@pytest.mark.native
@pytest.mark.skipif(not CPU["X86"], reason="a configuration of x86-64")
def test_variables_without_effect_are_an_error():
    environment = {
        name: value
        for name, value in CPU["environment_of"](BASELINE).items()
        if name not in BASELINE.environment
    }
    with pytest.raises(SystemExit) as error:
        CPU["verify"](BASELINE, environment)
    message = str(error.value)
    assert message.startswith("baseline: not in effect: ")
    for library in ("torch", "oneDNN", "CTranslate2", "native"):
        assert f"{library} is " in message


@pytest.mark.native
def test_a_compiler_in_the_no_compiler_configuration_is_an_error():
    environment = {
        name: value for name, value in CPU["environment_of"](NO_COMPILER).items() if name != "CXX"
    }
    with pytest.raises(SystemExit, match=r"no-compiler: not in effect: native is [0-9]+, not None"):
        CPU["verify"](NO_COMPILER, environment)


def test_all_configurations_name_existing_tests_and_markers(request):
    known = {line.partition(":")[0] for line in request.config.getini("markers")}
    for configuration in CPU["CONFIGURATIONS"]:
        assert set(configuration.marks.replace("not ", "").split(" and ")) <= known
    for path in CPU["ALL_TESTS"] + CPU["SERIAL_TESTS"] + CPU["SHORT_TESTS"]:
        # pytest itself reports a missing test.
        assert (CPU["ROOT"] / path.partition("::")[0]).exists(), path
