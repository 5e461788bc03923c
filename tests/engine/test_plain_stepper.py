"""The plain stepper: padding, batching and the cache do not change logits."""

import runpy
from pathlib import Path

import pytest
import torch

from qkv.engine.stepper import PlainStepper, make_stepper
from qkv.errors import QkvError

TINY = runpy.run_path(str(Path(__file__).parents[1] / "tiny_generators.py"))
PROMPTS = [[3, 4, 5, 6, 7], [9], [2, 8, 1]]


def full_pass(model, ids: list[int]) -> torch.Tensor:
    """The logits after these ids, in one forward pass."""
    with torch.no_grad():
        return model.logits(model.decode(torch.tensor([ids])))[0, -1]


def assert_equal(found: torch.Tensor, expected: list[torch.Tensor]) -> None:
    torch.testing.assert_close(found, torch.stack(expected), rtol=0, atol=1e-10)


@pytest.mark.parametrize("kind", TINY["KINDS"])
def test_prefill_and_steps_of_prompts_of_any_length_equal_a_full_pass(kind):
    model, rows = TINY["make"](kind), [list(prompt) for prompt in PROMPTS]
    stepper = PlainStepper(model)
    with torch.no_grad():
        assert_equal(stepper.prefill(PROMPTS), [full_pass(model, row) for row in rows])
        for new in ([1, 2, 3], [4, 4, 4]):
            rows = [[*row, id] for row, id in zip(rows, new, strict=True)]
            assert_equal(stepper.step(torch.tensor(new)), [full_pass(model, row) for row in rows])


def test_rows_can_be_dropped_repeated_and_reordered():
    model = TINY["make"]()
    stepper = PlainStepper(model)
    with torch.no_grad():
        stepper.prefill(PROMPTS)
        stepper.reorder([2, 0, 0])
        assert_equal(
            stepper.step(torch.tensor([5, 6, 7])),
            [
                full_pass(model, ids)
                for ids in ([*PROMPTS[2], 5], [*PROMPTS[0], 6], [*PROMPTS[0], 7])
            ],
        )


def test_a_second_prefill_starts_a_new_batch():
    model = TINY["make"]()
    stepper = PlainStepper(model)
    with torch.no_grad():
        stepper.prefill(PROMPTS)
        assert_equal(
            stepper.prefill([[7, 7], [8, 8]]), [full_pass(model, [7, 7]), full_pass(model, [8, 8])]
        )


def test_int8_of_an_unsupported_model_raises():
    with pytest.raises(QkvError) as error:
        make_stepper(TINY["make"]("lstm").float(), int8=True)
    assert str(error.value) == "int8: this model cannot be quantized on this machine; leave it out"
