"""The study of the KV cache: bytes by the formulas, and results equal to a full pass."""

import pytest

import qkv
from qkv.plan.cost import make_workload, memory
from qkv.study.cache import MIXERS, N_LAYERS, spec_of


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    return qkv.study.run("cache", tmp_path_factory.mktemp("cache") / "out", quick=True, seeds=1)


@pytest.mark.parametrize(
    ("name", "width"), [("mha", 2 * 8 * 16), ("gqa", 2 * 2 * 16), ("mqa", 2 * 16), ("mla", 32 + 8)]
)
def test_bytes_per_token_are_those_of_the_formula_and_of_plan(study, name, width):
    measured = study.results.mean("cache", name, "bytes_per_token")
    assert measured == 4 * N_LAYERS * width
    spec = spec_of(MIXERS[name])
    estimate = memory(spec, make_workload(spec, 1, 1024), "float32")
    assert measured == estimate.cache / 1024


def test_a_cached_step_equals_a_full_pass(study):
    for name in MIXERS:
        assert study.results.mean("cache", name, "largest_difference") < 1e-4


def test_the_conclusion_names_every_variant(study):
    assert "GQA needs 25% of it, MQA 12%, MLA 16%" in study.conclusion
