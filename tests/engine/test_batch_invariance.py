"""Batch invariance: rows that join, leave and are reordered have the logits of a batch of one."""

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
DECODERS, ENCODER_DECODERS = DECODER_TESTS["DECODERS"], PAIR_TESTS["SPECS"]
random_model, random_spec = DECODER_TESTS["random_model"], DECODER_TESTS["random_spec"]
STEPS, MAX_ROWS, MAX_TOKENS = 30, 6, 60


class Batch:
    """A stepper, and the tokens and the source of each of its rows."""

    def __init__(self, model, int8, rng):
        self.stepper, self.rng = PackedStepper(model, int8), rng
        self.has_encoder = model.encoder is not None
        self.rows, self.history = [], []
        self.add_rows(self.stepper.prefill, rng.randint(1, 4))

    def tokens(self, longest):
        return [self.rng.randrange(4, 50) for _ in range(self.rng.randint(1, longest))]

    def add_rows(self, method, n):
        """Add rows by prefill or join."""
        new = [
            (
                self.tokens(3 if self.has_encoder else 20),
                self.tokens(9) if self.has_encoder else None,
            )
            for _ in range(n)
        ]
        sources = [source for _, source in new] if self.has_encoder else None
        logits = method([prompt for prompt, _ in new], sources)
        for (prompt, source), row in zip(new, logits, strict=True):
            self.rows.append((list(prompt), source))
            self.record(self.rows[-1], row)

    def record(self, row, logits):
        self.history.append((list(row[0]), row[1], logits.clone()))

    def step(self):
        new = [self.rng.randrange(4, 50) for _ in self.rows]
        for row, token, logits in zip(
            self.rows, new, self.stepper.step(torch.tensor(new)), strict=True
        ):
            row[0].append(token)
            self.record(row, logits)

    def reorder(self):
        """Drop, repeat and reorder rows."""
        short = [n for n, (ids, _) in enumerate(self.rows) if len(ids) < MAX_TOKENS]
        chosen = []
        if short:
            chosen = [self.rng.choice(short) for _ in range(self.rng.randint(1, MAX_ROWS))]
            self.stepper.reorder(chosen)
            self.rows = [(list(self.rows[n][0]), self.rows[n][1]) for n in chosen]
        return bool(chosen)


def schedule(model, int8, seed):
    """The logits after every token of every row, in a batch that changes at random."""
    batch = Batch(model, int8, random.Random(seed))
    for _ in range(STEPS):
        choice = batch.rng.random()
        if choice < 0.2 and len(batch.rows) < MAX_ROWS:
            batch.add_rows(batch.stepper.join, batch.rng.randint(1, 2))
        elif choice < 0.4 or max(len(ids) for ids, _ in batch.rows) >= MAX_TOKENS:
            if not batch.reorder():
                break
        else:
            batch.step()
    return batch.history


def single_row_logits(model, int8, ids, source):
    """The logits after these tokens in a batch of one row, by decode steps."""
    stepper = PackedStepper(model, int8)
    logits = stepper.prefill([ids[:1]], None if source is None else [source])
    for id in ids[1:]:
        logits = stepper.step(torch.tensor([id]))
    return logits[0]


def check(model, int8, seed, atol=None):
    """Equal to a batch of one row; with `atol` close to the model's own logits in float64."""
    exact = deepcopy(model).double()
    with torch.inference_mode():
        for ids, source, logits in schedule(model, int8, seed):
            if atol is None:
                assert logits.equal(single_row_logits(model, int8, ids, source)), (len(ids), source)
                continue
            memory = None if source is None else exact.encode(torch.tensor([source]))
            expected = exact.logits(exact.decode(torch.tensor([ids]), memory))[0, -1]
            torch.testing.assert_close(logits.double(), expected, rtol=0, atol=atol)


ALL = {**DECODERS, **ENCODER_DECODERS}


@pytest.mark.native
@pytest.mark.parametrize("int8", [False, True], ids=["float32", "int8"])
@pytest.mark.parametrize("name", ALL)
def test_logits_are_bit_identical_in_any_batch(name, int8):
    check(random_model(ALL[name]), int8, seed=len(name))


@pytest.mark.native
@pytest.mark.parametrize("seed", range(20))
def test_logits_of_random_decoders_are_bit_identical_in_any_batch(seed):
    check(random_model(random_spec(seed)), False, seed)


@pytest.mark.native
def test_prefill_does_not_depend_on_the_chunk_size(monkeypatch):
    model, prompts = random_model(DECODERS["convolution"]), DECODER_TESTS["prompts"](40, 3, 17)
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
def test_logits_in_a_changing_batch_equal_the_model_in_float64(name, step_backend):
    check(random_model(ALL[name]).double(), False, seed=len(name), atol=1e-10)


@pytest.mark.parametrize("name", ["llama", "2017 paper"])
def test_logits_in_a_changing_batch_equal_the_model_in_float32(name, step_backend):
    check(random_model(ALL[name]), False, seed=3, atol=1e-5)
