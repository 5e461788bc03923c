"""Writing: the same text alone, in company, with any stepper; ends, limits and contexts that slide."""

import runpy
from pathlib import Path

import pytest
import torch

from qkv.engine.stepper import PlainStepper, make_stepper
from qkv.generate.config import GenerationConfig
from qkv.generate.loop import Bounds, GenerationLoop, generate

TINY = runpy.run_path(str(Path(__file__).parents[1] / "tiny_writers.py"))
PROMPTS = [[3, 4, 5, 6, 7], [9], [2, 8, 1], [9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9], [5, 6]]
END = 1


class Uncached:
    """No cache, no batch, no padding: every text is read anew at every step."""

    def __init__(self, model):
        self.model = model

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
def written(model, prompts, stepper=PlainStepper, on_token=None, bounds=None, **settings):
    bounds = bounds or Bounds(model.spec.max_len, ends=(END,))
    return generate(
        stepper(model), prompts, GenerationConfig(**{"seed": 7, **settings}), bounds, on_token
    )


SETTINGS = [
    {"temperature": 0},
    {"temperature": 1.3},
    {"top_k": 5, "top_p": 0.9, "repetition_penalty": 1.2},
]


@pytest.mark.parametrize("settings", SETTINGS, ids=["greedy", "warm", "narrow"])
@pytest.mark.parametrize("kind", TINY["KINDS"])
def test_a_text_is_the_same_alone_and_in_any_company_even_beyond_the_context(kind, settings):
    model = TINY["make"](kind)
    alone = [
        written(model, [prompt], Uncached, max_new_tokens=60, **settings)[0] for prompt in PROMPTS
    ]
    for company in ([0, 1, 2, 3, 4], [4, 3, 2], [3, 1]):
        together = written(model, [PROMPTS[n] for n in company], max_new_tokens=60, **settings)
        assert together == [alone[n] for n in company]
    assert len({tuple(one.ids) for one in alone}) > 1


def test_the_stepper_of_a_model_changes_no_text():
    for kind in TINY["KINDS"]:
        model = TINY["make"](kind)
        quick, plain = (
            written(model, PROMPTS, stepper, max_new_tokens=60, n=2)
            for stepper in (make_stepper, Uncached)
        )
        assert quick == plain


def test_the_n_texts_of_a_prompt_differ_and_the_first_is_the_one_alone():
    model = TINY["make"]()
    three = written(model, PROMPTS, n=3, max_new_tokens=12)
    assert len(three) == 15 and len({tuple(one.ids) for one in three[:3]}) == 3
    assert three[::3] == written(model, PROMPTS, max_new_tokens=12)
    assert written(model, PROMPTS, n=3, max_new_tokens=12) == three
    assert written(model, PROMPTS, n=3, max_new_tokens=12, seed=8) != three


def test_a_text_ends_with_an_end_token_or_at_its_length():
    drafts = written(TINY["make"](), PROMPTS, n=8, max_new_tokens=20)
    assert {one.why for one in drafts} == {"end", "length"}
    for one in drafts:
        assert (
            (one.ids[-1] == END and END not in one.ids[:-1])
            if one.why == "end"
            else (len(one.ids) == 20)
        )


def test_whoever_watches_can_end_a_text_and_the_others_go_on():
    model, heard = TINY["make"](), list[tuple[int, int]]()

    def on_token(text: int, id: int) -> bool:
        heard.append((text, id))
        return text == 1 and sum(1 for number, _ in heard if number == 1) == 3

    bounds = Bounds(24)
    free = written(model, PROMPTS, bounds=bounds, max_new_tokens=9)
    drafts = written(model, PROMPTS, on_token=on_token, bounds=bounds, max_new_tokens=9)
    assert drafts[1].why == "stop" and drafts[1].ids == free[1].ids[:3]
    assert [drafts[n] for n in (0, 2, 3, 4)] == [free[n] for n in (0, 2, 3, 4)]
    assert all([id for text, id in heard if text == n] == one.ids for n, one in enumerate(drafts))


def test_log_probabilities_are_those_of_the_model_before_any_rule():
    model = TINY["make"]()
    for prompt, one in zip(
        PROMPTS,
        written(model, PROMPTS, max_new_tokens=8, temperature=0.5, top_k=3, logprobs=4),
        strict=True,
    ):
        with torch.no_grad():
            logits = model.logits(model.decode(torch.tensor([prompt + one.ids])))[0]
        told = logits.softmax(dim=-1).log()[len(prompt) - 1 :]
        for place, id in enumerate(one.ids):
            assert one.log_probs[place] == pytest.approx(float(told[place, id]), abs=1e-10)
            numbers, ids = told[place].sort(descending=True)
            assert [id for id, _ in one.best[place]] == ids[:4].tolist()
            assert [number for _, number in one.best[place]] == pytest.approx(
                numbers[:4].tolist(), abs=1e-10
            )
    assert written(model, PROMPTS[:1], max_new_tokens=2, logprobs=0)[0].best == [[], []]


@pytest.mark.parametrize("context", [1, 2, 3, 7, 24])
def test_a_full_context_keeps_its_last_part_and_its_beginning_mark(context):
    """What is read again: never more than fits, always the newest tokens, after the mark where there is one."""

    class Listening(PlainStepper):
        def prefill(self, prompts, sources=None):
            self.heard = [*getattr(self, "heard", []), prompts]
            return super().prefill(prompts)

    model = TINY["make"]("learned", max_len=context)
    begin = (2,) if context > 2 else ()
    with torch.inference_mode():
        stepper = Listening(model)
        settings = GenerationConfig(seed=0, max_new_tokens=50)
        (draft,) = generate(stepper, [[*begin, 5]], settings, Bounds(context, begin=begin))
    whole = [*begin, 5, *draft.ids]
    assert len(draft.ids) == 50 and len(stepper.heard) > 2
    for (again,) in stepper.heard[1:]:
        assert 1 <= len(again) <= max(1, context - 1) and again[: len(begin)] == list(begin)
        tail = again[len(begin) :]
        assert any(whole[end - len(tail) : end] == tail for end in range(len(tail), len(whole) + 1))
    assert len(stepper.heard) <= 2 + 50 // max(1, context // 2)


def test_ten_thousand_tokens_need_no_more_memory_than_a_hundred():
    model = TINY["make"]("learned", vocab=8, max_len=64, layers=1).float()
    held = dict[int, int]()
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
                held[loop.length] = sum(buffer.untyped_storage().nbytes() for buffer in buffers)
    assert len(loop.sequences[0].ids) == 10_000 and len(held) > 100
    assert max(held.values()) == max(size for length, size in held.items() if length < 500)
