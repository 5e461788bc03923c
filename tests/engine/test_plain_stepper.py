"""Reading prompts and stepping on: padding, company and cache change no score."""

import runpy
from pathlib import Path

import pytest
import torch

from qkv.engine.stepper import PlainStepper, make_stepper
from qkv.errors import QkvError

TINY = runpy.run_path(str(Path(__file__).parents[1] / "tiny_writers.py"))
PROMPTS = [[3, 4, 5, 6, 7], [9], [2, 8, 1]]


def alone(model, ids: list[int]) -> torch.Tensor:
    """The scores after a text by one plain pass over all of it."""
    with torch.no_grad():
        return model.logits(model.decode(torch.tensor([ids])))[0, -1]


def same(found: torch.Tensor, expected: list[torch.Tensor]) -> None:
    torch.testing.assert_close(found, torch.stack(expected), rtol=0, atol=1e-10)


@pytest.mark.parametrize("kind", TINY["KINDS"])
def test_prompts_of_any_length_are_read_and_continued_side_by_side_as_alone(kind):
    model, rows = TINY["make"](kind), [list(prompt) for prompt in PROMPTS]
    stepper = PlainStepper(model)
    with torch.no_grad():
        same(stepper.prefill(PROMPTS), [alone(model, row) for row in rows])
        for new in ([1, 2, 3], [4, 4, 4]):
            rows = [[*row, id] for row, id in zip(rows, new, strict=True)]
            same(stepper.step(torch.tensor(new)), [alone(model, row) for row in rows])


def test_rows_can_be_dropped_repeated_and_reordered():
    model = TINY["make"]()
    stepper = PlainStepper(model)
    with torch.no_grad():
        stepper.prefill(PROMPTS)
        stepper.reorder([2, 0, 0])
        same(
            stepper.step(torch.tensor([5, 6, 7])),
            [alone(model, ids) for ids in ([*PROMPTS[2], 5], [*PROMPTS[0], 6], [*PROMPTS[0], 7])],
        )


def test_reading_again_forgets_what_was_read():
    model = TINY["make"]()
    stepper = PlainStepper(model)
    with torch.no_grad():
        stepper.prefill(PROMPTS)
        same(stepper.prefill([[7, 7], [8, 8]]), [alone(model, [7, 7]), alone(model, [8, 8])])


def test_int8_is_refused_where_there_is_no_such_step():
    with pytest.raises(QkvError) as error:
        make_stepper(TINY["make"]("lstm").float(), int8=True)
    assert str(error.value) == "int8: this model has no such step here; leave it out"
