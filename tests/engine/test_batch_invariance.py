"""Rows join, leave and change their order in a running batch: the logits of a row are those of the row alone, bit for bit."""

import random
import runpy
from copy import deepcopy
from pathlib import Path

import pytest
import torch

from qkv.engine import packed_model
from qkv.engine.stepper import PackedStepper

DECODER_TESTS = runpy.run_path(str(Path(__file__).with_name("test_packed_decoders.py")))
PAIR_TESTS = runpy.run_path(str(Path(__file__).with_name("test_stepper.py")))
KNOWN, PAIRS, shaken, drawn = (
    DECODER_TESTS["KNOWN"],
    PAIR_TESTS["SPECS"],
    DECODER_TESTS["shaken"],
    DECODER_TESTS["drawn"],
)
STEPS, MOST_ROWS, LONGEST = 30, 6, 60


class Batch:
    """A stepper and, for each of its rows, the tokens it has read and its source."""

    def __init__(self, model, int8, pick):
        self.stepper, self.pick, self.translates = (
            PackedStepper(model, int8),
            pick,
            model.encoder is not None,
        )
        self.rows, self.history = [], []
        self.enter(self.stepper.prefill, pick.randint(1, 4))

    def tokens(self, longest):
        return [self.pick.randrange(4, 50) for _ in range(self.pick.randint(1, longest))]

    def enter(self, read, n):
        """New rows, by prefill or join."""
        new = [
            (self.tokens(3 if self.translates else 20), self.tokens(9) if self.translates else None)
            for _ in range(n)
        ]
        sources = [source for _, source in new] if self.translates else None
        logits = read([prompt for prompt, _ in new], sources)
        for (prompt, source), row in zip(new, logits, strict=True):
            self.rows.append((list(prompt), source))
            self.note(self.rows[-1], row)

    def note(self, row, logits):
        self.history.append((list(row[0]), row[1], logits.clone()))

    def step(self):
        new = [self.pick.randrange(4, 50) for _ in self.rows]
        for row, token, logits in zip(
            self.rows, new, self.stepper.step(torch.tensor(new)), strict=True
        ):
            row[0].append(token)
            self.note(row, logits)

    def reorder(self):
        """Rows leave, come twice and change their order."""
        stay = [n for n, (ids, _) in enumerate(self.rows) if len(ids) < LONGEST]
        chosen = (
            [self.pick.choice(stay) for _ in range(self.pick.randint(1, MOST_ROWS))] if stay else []
        )
        if chosen:
            self.stepper.reorder(chosen)
            self.rows = [(list(self.rows[n][0]), self.rows[n][1]) for n in chosen]
        return bool(chosen)


def schedule(model, int8, seed):
    """The logits after every token of every row of a batch in which rows come and go at random."""
    batch = Batch(model, int8, random.Random(seed))
    for _ in range(STEPS):
        choice = batch.pick.random()
        if choice < 0.2 and len(batch.rows) < MOST_ROWS:
            batch.enter(batch.stepper.join, batch.pick.randint(1, 2))
        elif choice < 0.4 or max(len(ids) for ids, _ in batch.rows) >= LONGEST:
            if not batch.reorder():
                break
        else:
            batch.step()
    return batch.history


def alone(model, int8, ids, source):
    """The logits after these tokens in a batch of one row: of the prompt, then one token per step."""
    stepper = PackedStepper(model, int8)
    logits = stepper.prefill([ids[:1]], None if source is None else [source])
    for id in ids[1:]:
        logits = stepper.step(torch.tensor([id]))
    return logits[0]


def check(model, int8, seed, atol=None):
    """Bit for bit as alone; with `atol` near the model's own logits, in float64 of the same weights."""
    exact = deepcopy(model).double()
    with torch.inference_mode():
        for ids, source, logits in schedule(model, int8, seed):
            if atol is None:
                assert logits.equal(alone(model, int8, ids, source)), (len(ids), source)
                continue
            memory = None if source is None else exact.encode(torch.tensor([source]))
            expected = exact.logits(exact.decode(torch.tensor([ids]), memory))[0, -1]
            torch.testing.assert_close(logits.double(), expected, rtol=0, atol=atol)


ALL = {**KNOWN, **PAIRS}


@pytest.mark.native
@pytest.mark.parametrize("int8", [False, True], ids=["float32", "int8"])
@pytest.mark.parametrize("name", ALL)
def test_a_row_has_the_same_bits_alone_and_in_any_batch(name, int8):
    check(shaken(ALL[name]), int8, seed=len(name))


@pytest.mark.native
@pytest.mark.parametrize("seed", range(20))
def test_a_row_of_any_decoder_has_the_same_bits_alone_and_in_any_batch(seed):
    check(shaken(drawn(seed)), False, seed)


@pytest.mark.native
def test_the_size_of_the_chunks_of_a_prefill_changes_no_bit(monkeypatch):
    model, prompts = shaken(KNOWN["after a convolution"]), DECODER_TESTS["prompts"](40, 3, 17)
    with torch.inference_mode():
        found = []
        for rows in (1, 7, 512):
            monkeypatch.setattr(packed_model, "PREFILL_CHUNK_ROWS", rows)
            stepper = PackedStepper(model)
            found.append(
                torch.cat([stepper.prefill(prompts), stepper.step(torch.tensor([5, 6, 7]))])
            )
    assert found[0].equal(found[2]) and found[1].equal(found[2])


@pytest.mark.parametrize("name", ALL)
def test_rows_that_come_and_go_have_the_logits_of_the_model_in_float64(name, steps_by):
    check(shaken(ALL[name]).double(), False, seed=len(name), atol=1e-10)


@pytest.mark.parametrize("name", ["llama's", "the paper's"])
def test_rows_that_come_and_go_have_the_logits_of_the_model_in_float32(name, steps_by):
    check(shaken(ALL[name]), False, seed=3, atol=1e-5)
