"""Results on another device equal those on the CPU: every tensor is moved there."""

import math
from itertools import chain

import pytest
import torch
from fake_device import NAME

from qkv.cli.explore import open_explorer
from qkv.pipeline import Generator, Translator
from qkv.pipeline.embedder import Embedder
from qkv.train.metrics import read_metrics

SOURCES = ["我爱机器学习", "今天天气真好", "机器学习很有趣"]


def test_the_fake_device_computes_and_rejects_cpu_tensors(fake_device):
    on_cpu = torch.arange(6.0).view(2, 3)
    with fake_device():
        on_fake = on_cpu.to(NAME)
        assert on_fake.device.type == NAME and torch.equal(
            (on_fake @ on_fake.T).cpu(), on_cpu @ on_cpu.T
        )
        assert torch.zeros(2, device=NAME).tolist() == [0, 0] and torch.tensor(
            [7], device=NAME
        ).tolist() == [7]
        for mixed in (
            lambda: on_fake + on_cpu,
            lambda: on_fake @ on_cpu.T,
            lambda: torch.cat([on_cpu, on_fake]),
            lambda: on_cpu[on_fake.long()],
        ):
            with pytest.raises((RuntimeError, IndexError)):
                mixed()
        with pytest.raises((RuntimeError, TypeError)):
            on_fake.numpy()


@pytest.mark.parametrize(
    "name", ["translate", "translate-paper", "generate", "generate-documents", "embed"]
)
def test_losses_of_a_training_equal_those_on_the_cpu(trained, train, fake_device, tmp_path, name):
    with fake_device():
        train(name, NAME, tmp_path)
    on_cpu, on_fake = (
        read_metrics(folder / "metrics.jsonl") for folder in (trained(name), tmp_path)
    )
    assert (
        [entry["kind"] for entry in on_fake]
        == [entry["kind"] for entry in on_cpu]
        == ["train", "valid"]
    )
    for expected, entry in zip(on_cpu, on_fake, strict=True):
        assert math.isclose(expected["loss"], entry["loss"], rel_tol=1e-5)


@pytest.mark.parametrize(
    "settings",
    [{"beam_size": 1}, {"beam_size": 3, "n_best": 2}, {"beam_size": 2, "alignment": True}],
)
@pytest.mark.parametrize("name", ["translate", "translate-paper"])
def test_translations_equal_those_on_the_cpu(trained, fake_device, name, settings):
    on_cpu = Translator.load(trained(name)).translate(SOURCES, **settings)
    with fake_device():
        on_fake = Translator.load(trained(name), NAME).translate(SOURCES, **settings)
    for expected, found in zip(chain(*on_cpu), chain(*on_fake), strict=True):
        assert (found.text, found.tokens) == (expected.text, expected.tokens)
        assert math.isclose(found.score, expected.score, rel_tol=1e-5)
        assert (expected.alignment is None) == ("alignment" not in settings)
        assert str(found.alignment) == str(expected.alignment)


@pytest.mark.parametrize(
    "settings",
    [
        {"temperature": 0},
        {"n": 2},
        {"top_k": 9},
        {"top_p": 0.9},
        {"min_p": 0.3},
        {"typical_p": 0.5},
        {"repetition_penalty": 1.3},
        {"logprobs": 2},
    ],
    ids=str,
)
def test_generated_texts_equal_those_on_the_cpu(trained, fake_device, settings):
    # more tokens than the context length, 32
    options = {"max_new_tokens": 40, "seed": 1, "temperature": 1.0, **settings}
    on_cpu = Generator.load(trained("generate")).generate(["i like", "the weather"], **options)
    with fake_device():
        on_fake = Generator.load(trained("generate"), NAME).generate(
            ["i like", "the weather"], **options
        )
    assert [text.ids for texts in on_cpu for text in texts] == [
        text.ids for texts in on_fake for text in texts
    ]


def test_embeddings_equal_those_on_the_cpu(trained, fake_device):
    on_cpu = Embedder.load(trained("embed")).embed(SOURCES)
    with fake_device():
        on_fake = Embedder.load(trained("embed"), NAME).embed(SOURCES)
    torch.testing.assert_close(torch.as_tensor(on_fake), torch.as_tensor(on_cpu), rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", ["translate", "generate", "embed"])
def test_explorer_answers_equal_those_on_the_cpu(trained, fake_device, name):
    on_cpu = open_explorer(trained(name)).open("我爱机器学习")
    with fake_device():
        on_fake = open_explorer(trained(name), NAME).open("我爱机器学习")
    assert_close(on_cpu, on_fake)


def assert_close(a, b):
    """The trees are equal; floats have four equal digits."""
    assert type(a) is type(b)
    if isinstance(a, dict):
        assert a.keys() == b.keys()
        for key in a:
            assert_close(a[key], b[key])
    elif isinstance(a, list):
        assert len(a) == len(b)
        for left, right in zip(a, b, strict=True):
            assert_close(left, right)
    else:
        assert a == (pytest.approx(b, rel=1e-4, abs=1e-5) if isinstance(a, float) else b)
