"""The generation loop: batch invariance, steppers, stopping, log-probabilities, full contexts."""

import runpy
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch

from qkv.engine.stepper import PlainStepper, make_stepper
from qkv.generate.config import GenerationConfig
from qkv.generate.loop import Bounds, GenerationLoop, generate

TINY = runpy.run_path(str(Path(__file__).parents[1] / "tiny_generators.py"))
PROMPTS = [[3, 4, 5, 6, 7], [9], [2, 8, 1], [9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9], [5, 6]]
END = 1


class Uncached:
    """A stepper without cache, batch and padding: a full pass at every step."""

    def __init__(self, model):
        self.model = model

    def decoding(self):
        return nullcontext()

    def prefill(self, prompts, sources=None):
        self.rows = [list(prompt) for prompt in prompts]
        return torch.stack(
            [self.model.logits(self.model.decode(torch.tensor([row])))[0, -1] for row in self.rows]
        )

    def step(self, ids):
        return self.prefill([[*row, id] for row, id in zip(self.rows, ids.tolist(), strict=True)])

    def reorder(self, rows, beams=1):
        self.rows = [self.rows[row] for row in rows]


@torch.inference_mode()
def run(model, prompts, stepper=PlainStepper, on_token=None, bounds=None, **settings):
    bounds = bounds or Bounds(model.spec.max_len, ends=(END,))
    return generate(
        stepper(model), prompts, GenerationConfig(**{"seed": 7, **settings}), bounds, on_token
    )


SETTINGS = [
    {"temperature": 0},
    {"temperature": 1.3},
    {"top_k": 5, "top_p": 0.9, "repetition_penalty": 1.2},
]


@pytest.mark.parametrize("settings", SETTINGS, ids=["greedy", "sampling", "filters"])
@pytest.mark.parametrize("kind", TINY["KINDS"])
def test_generation_is_batch_invariant_also_beyond_the_context(kind, settings):
    model = TINY["make"](kind)
    alone = [run(model, [prompt], Uncached, max_new_tokens=60, **settings)[0] for prompt in PROMPTS]
    for batch in ([0, 1, 2, 3, 4], [4, 3, 2], [3, 1]):
        batched = run(model, [PROMPTS[n] for n in batch], max_new_tokens=60, **settings)
        assert batched == [alone[n] for n in batch]
    assert len({tuple(sequence.ids) for sequence in alone}) > 1


def test_the_stepper_does_not_change_the_sequences():
    for kind in TINY["KINDS"]:
        model = TINY["make"](kind)
        packed, uncached = (
            run(model, PROMPTS, stepper, max_new_tokens=60, n=2)
            for stepper in (make_stepper, Uncached)
        )
        assert packed == uncached


def test_the_n_sequences_of_a_prompt_differ_and_the_first_is_that_of_n_1():
    model = TINY["make"]()
    three = run(model, PROMPTS, n=3, max_new_tokens=12)
    assert len(three) == 15 and len({tuple(sequence.ids) for sequence in three[:3]}) == 3
    assert three[::3] == run(model, PROMPTS, max_new_tokens=12)
    assert run(model, PROMPTS, n=3, max_new_tokens=12) == three
    assert run(model, PROMPTS, n=3, max_new_tokens=12, seed=8) != three


def test_a_sequence_ends_with_an_end_token_or_at_its_limit():
    sequences = run(TINY["make"](), PROMPTS, n=8, max_new_tokens=20)
    assert {sequence.finish_reason for sequence in sequences} == {"eos", "length"}
    for ids, finish_reason, *_ in sequences:
        if finish_reason == "eos":
            assert ids[-1] == END and END not in ids[:-1]
        else:
            assert len(ids) == 20


def test_on_token_can_stop_a_sequence_and_the_others_continue():
    model, calls = TINY["make"](), list[tuple[int, int]]()

    def on_token(index: int, id: int) -> bool:
        calls.append((index, id))
        return index == 1 and sum(1 for other, _ in calls if other == 1) == 3

    bounds = Bounds(24)
    free = run(model, PROMPTS, bounds=bounds, max_new_tokens=9)
    sequences = run(model, PROMPTS, on_token=on_token, bounds=bounds, max_new_tokens=9)
    assert sequences[1].finish_reason == "stop" and sequences[1].ids == free[1].ids[:3]
    assert [sequences[n] for n in (0, 2, 3, 4)] == [free[n] for n in (0, 2, 3, 4)]
    for n, sequence in enumerate(sequences):
        assert [id for index, id in calls if index == n] == sequence.ids


def test_logprobs_are_those_of_the_model_before_sampling_rules():
    model = TINY["make"]()
    sequences = run(model, PROMPTS, max_new_tokens=8, temperature=0.5, top_k=3, logprobs=4)
    for prompt, sequence in zip(PROMPTS, sequences, strict=True):
        with torch.no_grad():
            logits = model.logits(model.decode(torch.tensor([prompt + sequence.ids])))[0]
        expected = logits.softmax(dim=-1).log()[len(prompt) - 1 :]
        for position, id in enumerate(sequence.ids):
            logprob = float(expected[position, id])
            assert sequence.logprobs[position] == pytest.approx(logprob, abs=1e-10)
            values, ids = expected[position].sort(descending=True)
            top_ids, top_values = zip(*sequence.top_logprobs[position], strict=True)
            assert list(top_ids) == ids[:4].tolist()
            assert top_values == pytest.approx(values[:4].tolist(), abs=1e-10)
    assert run(model, PROMPTS[:1], max_new_tokens=2, logprobs=0)[0].top_logprobs == [[], []]


@pytest.mark.parametrize("context_length", [1, 2, 3, 7, 24])
def test_a_full_context_keeps_its_last_part_and_the_begin_tokens(context_length):
    """Prefills after the first have the begin tokens and the latest tokens, within the context."""

    class RecordedStepper(PlainStepper):
        def prefill(self, prompts, sources=None):
            self.prefills = [*getattr(self, "prefills", []), prompts]
            return super().prefill(prompts)

    model = TINY["make"]("learned", max_len=context_length)
    begin = (2,) if context_length > 2 else ()
    with torch.inference_mode():
        stepper = RecordedStepper(model)
        config, bounds = (
            GenerationConfig(seed=0, max_new_tokens=50),
            Bounds(context_length, begin=begin),
        )
        (sequence,) = generate(stepper, [[*begin, 5]], config, bounds)
    ids = [*begin, 5, *sequence.ids]
    assert len(sequence.ids) == 50 and len(stepper.prefills) > 2
    for (prompt,) in stepper.prefills[1:]:
        assert 1 <= len(prompt) <= max(1, context_length - 1)
        assert prompt[: len(begin)] == list(begin)
        tail = prompt[len(begin) :]
        assert any(ids[end - len(tail) : end] == tail for end in range(len(tail), len(ids) + 1))
    assert len(stepper.prefills) <= 2 + 50 // max(1, context_length // 2)


def test_cache_memory_does_not_grow_over_ten_thousand_tokens():
    model = TINY["make"]("learned", vocab=8, max_len=64, layers=1).float()
    cache_bytes = dict[int, int]()
    with torch.inference_mode():
        stepper = PlainStepper(model)
        loop = GenerationLoop(
            stepper, [[3]], GenerationConfig(seed=0, max_new_tokens=10_000), Bounds(64)
        )
        while loop.n_alive:
            loop.advance()
            if loop.length % 97 == 0:
                buffers = [
                    buffer for layer in stepper.cache.layers for buffer in layer.attn.buffers
                ]
                cache_bytes[loop.length] = sum(
                    buffer.untyped_storage().nbytes() for buffer in buffers
                )
    assert len(loop.sequences[0].ids) == 10_000 and len(cache_bytes) > 100
    assert max(cache_bytes.values()) == max(
        size for length, size in cache_bytes.items() if length < 500
    )
