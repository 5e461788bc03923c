"""Speculative decoding changes no bit: accepted drafts save steps, rejected ones have no effect."""

import random
import runpy
from copy import deepcopy
from pathlib import Path

import pytest
import torch

from qkv.engine import native_step as native
from qkv.engine import speculative
from qkv.engine.kv_cache import SLOT, prompt_rows
from qkv.engine.packed_model import PackedModel
from qkv.engine.speculative import SpeculativeDecoding, speculative_step
from qkv.engine.stepper import PackedStepper, PlainStepper
from qkv.generate.config import GenerationConfig
from qkv.generate.decode import greedy
from qkv.generate.loop import Bounds, generate
from qkv.generate.sampling import Draws
from qkv.textbook.ahead import write_ahead

PROMPT_TESTS = runpy.run_path(str(Path(__file__).with_name("test_packed_decoders.py")))
STEP_TESTS = runpy.run_path(str(Path(__file__).with_name("test_stepper.py")))
KNOWN, shaken = PROMPT_TESTS["KNOWN"], PROMPT_TESTS["shaken"]


@pytest.fixture
def for_all_sizes(monkeypatch):
    monkeypatch.setattr(speculative, "MIN_WEIGHTS", 0)


def verify(stepper, ids: torch.Tensor) -> torch.Tensor:
    """Tokens that follow each other in one native step, (tokens, vocab); the stepper does not move."""
    rows = prompt_rows([len(ids)])
    rows[SLOT:] += stepper.rows[SLOT, 0]
    stepper.cache.reserve(len(ids))
    return stepper.packed.native(ids, rows, stepper.cache)


@pytest.mark.native
@pytest.mark.parametrize("name", KNOWN)
def test_tokens_verified_in_one_step_are_those_one_after_another(name, monkeypatch):
    monkeypatch.setattr("qkv.engine.packed_model.can_be_native", lambda weight: True)
    model = shaken(KNOWN[name]).double()
    plain, fast = PlainStepper(model), PackedStepper(model)
    ids = torch.randint(60, (70,), generator=torch.Generator().manual_seed(2))
    with torch.inference_mode():
        plain.prefill([[5, 6, 7]])
        fast.prefill([[5, 6, 7]])
        expected = torch.cat([plain.step(id) for id in ids.split(1)])
        for some, rows in zip(
            ids.split(5), expected.split(5), strict=True
        ):  # beyond the first room of the cache
            torch.testing.assert_close(verify(fast, some), rows, rtol=0, atol=1e-10)
            for id in some.split(1):
                fast.step(id)


@pytest.mark.native
def test_threads_wait_for_the_slots_that_others_fill(monkeypatch):
    stepper, ids = PackedStepper(shaken(KNOWN["qwen's"])), torch.arange(7)
    with torch.inference_mode():
        stepper.prefill([[5, 6, 7]])
        expected = verify(stepper, ids)
        monkeypatch.setattr(native, "inference_threads_for", lambda work, min_work: 3)
        for _ in range(200):
            stepper.cache.store[..., stepper.cache.used :, :] = (
                7.0  # what a thread too early would read
            )
            assert verify(stepper, ids).equal(expected)


def guessing(ids: torch.Tensor, right: float, seed: int):
    """Guesses for `ids`, each right with this chance; `said` is told how many have been said."""
    chance, said = random.Random(seed), [0]

    def foresee(logits, n_ahead):
        place = said[0] + n_ahead + 1
        if place >= len(ids) - 1:
            return None
        return (
            ids[place : place + 1] if chance.random() < right else (ids[place : place + 1] + 1) % 50
        )

    return said, foresee


@pytest.mark.native
@pytest.mark.parametrize("right", [0.0, 0.5, 0.9, 1.0])
@pytest.mark.parametrize("name", KNOWN)
def test_a_writer_that_looks_ahead_gets_the_very_digits(name, right):
    model = shaken(KNOWN[name])
    ids = torch.randint(60, (80,), generator=torch.Generator().manual_seed(3))
    plain, quick = PackedStepper(model), PackedStepper(model)
    said, foresee = guessing(ids, right, seed=4)
    with torch.inference_mode():
        plain.prefill([[5, 6, 7]])
        quick.prefill([[5, 6, 7]])
        looking = SpeculativeDecoding(quick, foresee)
        for n, id in enumerate(ids.split(1)):
            said[0] = n
            assert looking.step(id).equal(plain.step(id)), n


@pytest.mark.native
@pytest.mark.parametrize("right", [0.0, 0.7, 1.0])
@pytest.mark.parametrize("name", STEP_TESTS["SPECS"])
def test_a_translator_that_looks_ahead_gets_the_very_digits(name, right):
    model = shaken(STEP_TESTS["SPECS"][name])
    source, ids = (
        torch.randint(4, 50, (1, 9)),
        torch.randint(4, 50, (60,), generator=torch.Generator().manual_seed(3)),
    )
    said, foresee = guessing(ids, right, seed=5)
    with torch.inference_mode():
        plain, quick = PackedStepper(model), PackedStepper(model)
        for stepper in (plain, quick):
            stepper.prefill([[2]], source.tolist())
        looking = SpeculativeDecoding(quick, foresee)
        for n, id in enumerate(ids.split(1)):
            said[0] = n
            assert looking.step(id).equal(plain.step(id)), n


SETTINGS = {
    "greedy": {"temperature": 0},
    "warm": {"temperature": 1.3},
    "narrow": {"top_k": 5, "top_p": 0.9, "repetition_penalty": 1.2},
    "told": {"temperature": 0.8, "logprobs": 3},
}


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
@pytest.mark.parametrize("name", KNOWN)
def test_a_text_is_the_same_with_and_without_speculative_decoding(name, settings, monkeypatch):
    model = shaken(KNOWN[name])
    for prompt, new, context in (
        ([5, 6, 7], 70, 90),
        ([9], 1, 90),
        ([4] * 10, 2, 90),
        ([3] * 12, 80, 20),
    ):  # the last one slides
        texts = []
        for large in (1 << 62, 0):
            monkeypatch.setattr(speculative, "MIN_WEIGHTS", large)
            with torch.inference_mode():
                texts += generate(
                    PackedStepper(model),
                    [prompt],
                    GenerationConfig(max_new_tokens=new, seed=7, **settings),
                    Bounds(context, (8,)),
                )
        assert texts[0] == texts[1]


def test_a_text_is_that_of_the_textbook(for_all_sizes):
    """The slow model without a cache, in float64; the quick one is another model."""
    model, other = shaken(KNOWN["llama's"]), shaken(KNOWN["qwen's"]).double()
    with torch.inference_mode():
        found = generate(
            PackedStepper(model),
            [[5, 6, 7]],
            GenerationConfig(max_new_tokens=50, temperature=0, seed=0),
            Bounds(90),
        )[0].ids
        model.double()

        def likeliest(one):
            return lambda ids: int(one.logits(one.decode(torch.tensor([ids])))[0, -1].argmax())

        assert found == write_ahead(likeliest(model), likeliest(other), [5, 6, 7], 50, 3)[0]


def test_a_translation_is_the_same_with_and_without_speculative_decoding(
    half_trained, make_sources, monkeypatch
):
    source, real = make_sources(30)
    known = {"bos_id": 1, "eos_id": 2, "pad_id": 0}
    model = deepcopy(half_trained).float()
    for row, there in zip(source, real, strict=True):
        for max_len in (1, 3, 20):
            found = []
            for large in (1 << 62, 0):
                monkeypatch.setattr(speculative, "MIN_WEIGHTS", large)
                found.append(greedy(model, row[there][None], None, max_len=max_len, **known))
            assert found[0] == found[1]


def read_by(stepper, monkeypatch) -> list[int]:
    """How many tokens each reading of the weights was for."""
    sizes, run = [], stepper.packed.native
    monkeypatch.setattr(
        stepper.packed,
        "native",
        lambda ids, *rest, **more: sizes.append(len(ids)) or run(ids, *rest, **more),
    )
    stepper.packed.native.size = run.size
    return sizes


@pytest.mark.native
def test_right_guesses_save_readings_and_wrong_ones_are_soon_given_up(monkeypatch, for_all_sizes):
    model, ids = shaken(KNOWN["llama's"]), torch.arange(60).repeat(3)
    for right, least, most in ((1.0, 180 / 8, 180 / 6), (0.0, 150, 180)):
        stepper = PackedStepper(model)
        said, foresee = guessing(ids, right, seed=6)
        with torch.inference_mode():
            stepper.prefill([[1]])
            sizes, step = read_by(stepper, monkeypatch), speculative_step(stepper, foresee)
            for n, id in enumerate(ids.split(1)):
                said[0] = n
                step(id)
        assert least <= len(sizes) <= most
        assert sum(sizes) - len(ids) <= (0 if right else 0.2 * len(ids))  # read for nothing
        monkeypatch.undo()
        monkeypatch.setattr(speculative, "MIN_WEIGHTS", 0)


def test_the_int8_view_guesses_what_the_model_says(monkeypatch, for_all_sizes):
    stepper = PackedStepper(shaken(KNOWN["llama's"]))
    sizes = read_by(stepper, monkeypatch)
    with torch.inference_mode():
        generate(
            stepper,
            [[5, 6, 7]],
            GenerationConfig(max_new_tokens=80, temperature=0, seed=0),
            Bounds(90),
        )
    assert len(sizes) < 40  # more than half of the guesses were right


@pytest.mark.native
def test_only_a_single_row_of_a_large_model_in_all_its_digits_looks_ahead(monkeypatch):
    model = shaken(KNOWN["llama's"])
    with torch.inference_mode():

        def looks(prompts, int8=False):
            stepper = PackedStepper(model, int8)
            stepper.prefill(prompts)
            return speculative_step(stepper, lambda logits, n: None) is not None

        assert not looks([[1]])
        monkeypatch.setattr(speculative, "MIN_WEIGHTS", PackedModel.of(model).native.size)
        assert looks([[1]]) and not looks([[1], [2]]) and not looks([[1]], int8=True)
        monkeypatch.setattr("qkv.engine.packed_model.can_be_native", lambda weight: False)
        assert not looks([[1]])
    assert speculative_step(PlainStepper(model), lambda logits, n: None) is None


def test_draws_looked_at_early_are_those_that_come():
    plain, peeked = Draws(3, 2, torch.device("cpu")), Draws(3, 2, torch.device("cpu"))
    expected = torch.stack([plain.next().clone() for _ in range(610)])  # (place, text)
    for place in range(600):
        assert peeked.coming(place % 9).equal(expected[place + place % 9])
        assert peeked.next().equal(expected[place])
