"""Speculative decoding gives identical logits; accepted draft tokens save steps."""

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
from qkv.generate.beam import BeamSearchConfig
from qkv.generate.config import GenerationConfig
from qkv.generate.decode import greedy
from qkv.generate.loop import Bounds, generate
from qkv.generate.sampling import Draws
from qkv.textbook.speculative import speculative_decode

DECODER_TESTS = runpy.run_path(str(Path(__file__).with_name("test_packed_decoders.py")))
STEP_TESTS = runpy.run_path(str(Path(__file__).with_name("test_stepper.py")))
DECODERS, random_model = DECODER_TESTS["DECODERS"], DECODER_TESTS["random_model"]


@pytest.fixture
def for_all_sizes(monkeypatch):
    monkeypatch.setattr(speculative, "MIN_WEIGHTS", 0)


def verify(stepper, ids: torch.Tensor) -> torch.Tensor:
    """Logits of consecutive tokens in one native step, (tokens, vocab); no step is taken."""
    rows = prompt_rows([len(ids)])
    rows[SLOT:] += stepper.rows[SLOT, 0]
    stepper.cache.reserve(len(ids))
    return stepper.packed.native(ids, rows, stepper.cache)


@pytest.mark.native
@pytest.mark.parametrize("name", DECODERS)
def test_verifying_tokens_in_one_step_equals_single_steps(name, monkeypatch):
    monkeypatch.setattr("qkv.engine.packed_model.can_be_native", lambda weight: True)
    model = random_model(DECODERS[name]).double()
    plain, packed = PlainStepper(model), PackedStepper(model)
    ids = torch.randint(60, (70,), generator=torch.Generator().manual_seed(2))
    with torch.inference_mode():
        plain.prefill([[5, 6, 7]])
        packed.prefill([[5, 6, 7]])
        expected = torch.cat([plain.step(id) for id in ids.split(1)])
        # More tokens than the initial capacity of the cache.
        for draft, logits in zip(ids.split(5), expected.split(5), strict=True):
            torch.testing.assert_close(verify(packed, draft), logits, rtol=0, atol=1e-10)
            for id in draft.split(1):
                packed.step(id)


@pytest.mark.native
def test_threads_wait_for_slots_that_other_threads_write(monkeypatch):
    stepper, ids = PackedStepper(random_model(DECODERS["qwen"])), torch.arange(7)
    with torch.inference_mode():
        stepper.prefill([[5, 6, 7]])
        expected = verify(stepper, ids)
        monkeypatch.setattr(native, "inference_threads_for", lambda work, min_work: 3)
        for _ in range(200):
            # What a thread would read too early.
            stepper.cache.store[..., stepper.cache.used :, :] = 7.0
            assert verify(stepper, ids).equal(expected)


def make_drafts(ids: torch.Tensor, accuracy: float, seed: int):
    """A draft function for `ids`, correct with this probability; set n_done[0] before each step."""
    rng, n_done = random.Random(seed), [0]

    def choose(logits, offset):
        index = n_done[0] + offset + 1
        if index >= len(ids) - 1:
            return None
        token = ids[index : index + 1]
        return token if rng.random() < accuracy else (token + 1) % 50

    return n_done, choose


@pytest.mark.native
@pytest.mark.parametrize("accuracy", [0.0, 0.5, 0.9, 1.0])
@pytest.mark.parametrize("name", DECODERS)
def test_logits_of_a_decoder_are_identical(name, accuracy):
    model = random_model(DECODERS[name])
    ids = torch.randint(60, (80,), generator=torch.Generator().manual_seed(3))
    plain, speculating = PackedStepper(model), PackedStepper(model)
    n_done, choose = make_drafts(ids, accuracy, seed=4)
    with torch.inference_mode():
        plain.prefill([[5, 6, 7]])
        speculating.prefill([[5, 6, 7]])
        decoding = SpeculativeDecoding(speculating, choose)
        for n, id in enumerate(ids.split(1)):
            n_done[0] = n
            assert decoding.step(id).equal(plain.step(id)), n


@pytest.mark.native
@pytest.mark.parametrize("accuracy", [0.0, 0.7, 1.0])
@pytest.mark.parametrize("name", STEP_TESTS["SPECS"])
def test_logits_of_an_encoder_decoder_are_identical(name, accuracy):
    model = random_model(STEP_TESTS["SPECS"][name])
    source, ids = (
        torch.randint(4, 50, (1, 9)),
        torch.randint(4, 50, (60,), generator=torch.Generator().manual_seed(3)),
    )
    n_done, choose = make_drafts(ids, accuracy, seed=5)
    with torch.inference_mode():
        plain, speculating = PackedStepper(model), PackedStepper(model)
        for stepper in (plain, speculating):
            stepper.prefill([[2]], source.tolist())
        decoding = SpeculativeDecoding(speculating, choose)
        for n, id in enumerate(ids.split(1)):
            n_done[0] = n
            assert decoding.step(id).equal(plain.step(id)), n


SETTINGS = {
    "greedy": {"temperature": 0},
    "sampling": {"temperature": 1.3},
    "filters": {"top_k": 5, "top_p": 0.9, "repetition_penalty": 1.2},
    "logprobs": {"temperature": 0.8, "logprobs": 3},
}


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
@pytest.mark.parametrize("name", DECODERS)
def test_generated_sequences_are_identical(name, settings, monkeypatch):
    model = random_model(DECODERS[name])
    for prompt, n_new, context_length in (
        ([5, 6, 7], 70, 90),
        ([9], 1, 90),
        ([4] * 10, 2, 90),
        ([3] * 12, 80, 20),  # longer than the context
    ):
        sequences = []
        for min_weights in (1 << 62, 0):
            monkeypatch.setattr(speculative, "MIN_WEIGHTS", min_weights)
            with torch.inference_mode():
                sequences += generate(
                    PackedStepper(model),
                    [prompt],
                    GenerationConfig(max_new_tokens=n_new, seed=7, **settings),
                    Bounds(context_length, (8,)),
                )
        assert sequences[0] == sequences[1]


def test_a_generated_sequence_equals_the_textbook(for_all_sizes):
    """The textbook uses float64, no cache, and another model as the draft model."""
    model, other = random_model(DECODERS["llama"]), random_model(DECODERS["qwen"]).double()
    with torch.inference_mode():
        found = generate(
            PackedStepper(model),
            [[5, 6, 7]],
            GenerationConfig(max_new_tokens=50, temperature=0, seed=0),
            Bounds(90),
        )[0].ids
        model.double()

        def greedy_token(model):
            return lambda ids: int(model.logits(model.decode(torch.tensor([ids])))[0, -1].argmax())

        expected = speculative_decode(greedy_token(model), greedy_token(other), [5, 6, 7], 50, 3)
        assert found == expected[0]


def test_translations_are_identical(half_trained, make_sources, monkeypatch):
    source, attention_mask = make_sources(30)
    config = BeamSearchConfig(1, 2, 0)
    model = deepcopy(half_trained).float()
    for row, is_token in zip(source, attention_mask, strict=True):
        for limit in (1, 3, 20):
            found, ids = [], row[is_token].tolist()
            for min_weights in (1 << 62, 0):
                monkeypatch.setattr(speculative, "MIN_WEIGHTS", min_weights)
                found.append(greedy(model, [ids], config, [limit]))
            assert found[0] == found[1]


def record_steps(stepper, monkeypatch) -> list[int]:
    """The number of tokens of each native step from now on."""
    sizes, run = [], stepper.packed.native
    monkeypatch.setattr(
        stepper.packed,
        "native",
        lambda ids, *args, **options: sizes.append(len(ids)) or run(ids, *args, **options),
    )
    stepper.packed.native.size = run.size
    return sizes


@pytest.mark.native
def test_accepted_drafts_save_steps_and_rejected_drafts_pause_drafting(monkeypatch, for_all_sizes):
    model, ids = random_model(DECODERS["llama"]), torch.arange(60).repeat(3)
    for accuracy, min_steps, max_steps in ((1.0, 180 / 8, 180 / 6), (0.0, 150, 180)):
        stepper = PackedStepper(model)
        n_done, choose = make_drafts(ids, accuracy, seed=6)
        with torch.inference_mode():
            stepper.prefill([[1]])
            sizes = record_steps(stepper, monkeypatch)
            step = speculative_step(stepper, choose)
            for n, id in enumerate(ids.split(1)):
                n_done[0] = n
                step(id)
        assert min_steps <= len(sizes) <= max_steps
        assert sum(sizes) - len(ids) <= (0 if accuracy else 0.2 * len(ids))  # rejected
        monkeypatch.undo()
        monkeypatch.setattr(speculative, "MIN_WEIGHTS", 0)


@pytest.mark.native
def test_drafts_of_the_int8_weights_are_accepted(monkeypatch, for_all_sizes):
    stepper = PackedStepper(random_model(DECODERS["llama"]))
    sizes = record_steps(stepper, monkeypatch)
    with torch.inference_mode():
        generate(
            stepper,
            [[5, 6, 7]],
            GenerationConfig(max_new_tokens=80, temperature=0, seed=0),
            Bounds(90),
        )
    assert len(sizes) < 40  # more than half of the draft tokens were accepted


@pytest.mark.native
def test_only_a_single_row_of_a_large_native_model_is_speculative(monkeypatch):
    model = random_model(DECODERS["llama"])
    with torch.inference_mode():

        def is_speculative(prompts, int8=False):
            stepper = PackedStepper(model, int8)
            stepper.prefill(prompts)
            return speculative_step(stepper, lambda logits, n: None) is not None

        assert not is_speculative([[1]])
        monkeypatch.setattr(speculative, "MIN_WEIGHTS", PackedModel.of(model).native.size)
        assert (
            is_speculative([[1]])
            and not is_speculative([[1], [2]])
            and not is_speculative([[1]], int8=True)
        )
        monkeypatch.setattr("qkv.engine.packed_model.can_be_native", lambda weight: False)
        model.embed.weight.data = model.embed.weight.data.clone()  # packed again
        assert not is_speculative([[1]])
    assert speculative_step(PlainStepper(model), lambda logits, n: None) is None


def test_peeked_draws_equal_the_next_draws():
    plain, peeked = Draws(3, 2, torch.device("cpu")), Draws(3, 2, torch.device("cpu"))
    expected = torch.stack([plain.next().clone() for _ in range(610)])  # (position, sequence)
    for position in range(600):
        assert peeked.peek(position % 9).equal(expected[position + position % 9])
        assert peeked.next().equal(expected[position])
