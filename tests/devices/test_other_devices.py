"""All that is done on the CPU is done on another device: every tensor is moved there, and the numbers are the same."""

import math
from itertools import chain

import pytest
import torch
from pretended import NAME

from qkv.cli.explore import open_explorer
from qkv.pipeline import Generator, Translator
from qkv.pipeline.embedder import Embedder
from qkv.train.report import read_metrics

SOURCES = ["我爱机器学习", "今天天气真好", "机器学习很有趣"]


def test_the_pretended_device_computes_and_refuses_to_mix(elsewhere):
    here = torch.arange(6.0).view(2, 3)
    with elsewhere():
        there = here.to(NAME)
        assert there.device.type == NAME and torch.equal((there @ there.T).cpu(), here @ here.T)
        assert torch.zeros(2, device=NAME).tolist() == [0, 0] and torch.tensor(
            [7], device=NAME
        ).tolist() == [7]
        for mixed in (
            lambda: there + here,
            lambda: there @ here.T,
            lambda: torch.cat([here, there]),
            lambda: here[there.long()],
        ):
            with pytest.raises((RuntimeError, IndexError)):
                mixed()
        with pytest.raises((RuntimeError, TypeError)):
            there.numpy()


@pytest.mark.parametrize(
    "name", ["translate", "translate-paper", "generate", "generate-documents", "embed"]
)
def test_a_training_there_learns_what_it_learns_here(trained, train, elsewhere, tmp_path, name):
    with elsewhere():
        train(name, NAME, tmp_path)
    here, there = (read_metrics(folder / "metrics.jsonl") for folder in (trained(name), tmp_path))
    assert (
        [entry["kind"] for entry in there]
        == [entry["kind"] for entry in here]
        == ["train", "valid"]
    )
    for one, other in zip(here, there, strict=True):
        assert math.isclose(one["loss"], other["loss"], rel_tol=1e-5)


@pytest.mark.parametrize(
    "settings",
    [{"beam_size": 1}, {"beam_size": 3, "n_best": 2}, {"beam_size": 2, "alignment": True}],
)
@pytest.mark.parametrize("name", ["translate", "translate-paper"])
def test_translations_there_are_those_here(trained, elsewhere, name, settings):
    here = Translator.load(trained(name)).translate(SOURCES, **settings)
    with elsewhere():
        there = Translator.load(trained(name), NAME).translate(SOURCES, **settings)
    for one, other in zip(chain(*here), chain(*there), strict=True):
        assert (one.text, one.tokens) == (other.text, other.tokens) and math.isclose(
            one.score, other.score, rel_tol=1e-5
        )
        assert (one.alignment is None) == ("alignment" not in settings) and str(
            one.alignment
        ) == str(other.alignment)


@pytest.mark.parametrize(
    "settings",
    [
        {"temperature": 0},
        {"n": 2},
        {"top_k": 9},
        {"top_p": 0.9},
        {"min_p": 0.3},
        {"typical": 0.5},
        {"repetition_penalty": 1.3},
        {"logprobs": 2},
    ],
    ids=str,
)
def test_texts_there_are_those_here(trained, elsewhere, settings):
    asked = {
        "max_new_tokens": 40,
        "seed": 1,
        "temperature": 1.0,
        **settings,
    }  # more than a context of 32
    here = Generator.load(trained("generate")).generate(["i like", "the weather"], **asked)
    with elsewhere():
        there = Generator.load(trained("generate"), NAME).generate(
            ["i like", "the weather"], **asked
        )
    assert [one.ids for texts in here for one in texts] == [
        one.ids for texts in there for one in texts
    ]


def test_vectors_there_are_those_here(trained, elsewhere):
    here = Embedder.load(trained("embed")).embed(SOURCES)
    with elsewhere():
        there = Embedder.load(trained("embed"), NAME).embed(SOURCES)
    torch.testing.assert_close(torch.as_tensor(there), torch.as_tensor(here), rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", ["translate", "generate", "embed"])
def test_a_model_there_can_be_looked_into(trained, elsewhere, name):
    here = open_explorer(trained(name)).open("我爱机器学习")
    with elsewhere():
        there = open_explorer(trained(name), NAME).open("我爱机器学习")
    assert_alike(here, there)


def assert_alike(one, other):
    """The same tree, numbers that are not whole to four digits."""
    assert type(one) is type(other)
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        for key in one:
            assert_alike(one[key], other[key])
    elif isinstance(one, list):
        assert len(one) == len(other)
        for a, b in zip(one, other, strict=True):
            assert_alike(a, b)
    else:
        assert one == (
            pytest.approx(other, rel=1e-4, abs=1e-5) if isinstance(one, float) else other
        )
