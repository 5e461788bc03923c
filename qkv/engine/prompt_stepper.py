"""The fast step of a language model: prompts read in one pass, then one new token per row.

In: prompts, then one id per row and step. Out: logits, equal to the model's own (proven in
tests/engine/test_prompt_stepper.py); with int8 matrices close to them. Told in docs/performance.md, "Decoding".
"""

import math
from contextlib import nullcontext

import torch
from torch import Tensor

from qkv.engine.int8 import can_be_int8
from qkv.engine.kv_cache import KeyValues, whole
from qkv.engine.native_step import MANY
from qkv.engine.packed_model import FastModel, as_hidden, is_common
from qkv.engine.padding import left_padded
from qkv.model.eval_mode import eval_mode
from qkv.model.head import LmHead
from qkv.model.transformer import Transformer
from qkv.threads import one_torch_thread


class FastPromptStepper:
    """Rows are texts that grow; shorter prompts are padded on the left, and the padding is hidden."""

    memory = None  # of an encoder: there is none

    def __init__(self, model: Transformer, int8: bool = False):
        self.model, self.int8, self.fast = model, int8, FastModel.of(model, int8)
        self.place: int | Tensor = 0  # of the next token: one for all rows, or each with its own

    def read(self, prompts: list[list[int]]) -> Tensor:
        """Forget all, read these prompts -> (rows, vocab) logits after each."""
        decoder = self.fast.decoder
        ids, real = left_padded(prompts, decoder.table.device)
        rows, length = ids.shape
        shape = len(decoder.layers), rows, decoder.heads.n_kv_heads, whole(length + 1), decoder.heads.d_head
        self.cells, self.place = KeyValues.empty(shape, decoder.table), length
        if decoder.opening is not None:
            self.cells.store = decoder.opening.store(rows, shape[3], decoder.table)
        if real is None:
            self.cells.hidden[..., :length] = 0.0
        else:
            self.cells.hidden = self.cells.hidden.repeat(rows, 1, 1)
            self.cells.hidden[:, 0, :length] = as_hidden(real, decoder.table)
            self.place = real.sum(dim=1)                                            # (rows,)
        native = self.fast.native is not None and rows * length < MANY                # beyond, torch multiplies the matrices
        with one_torch_thread() if native else nullcontext():
            x = decoder.read(ids, real, self.cells)                                 # (rows * length, d_model)
            self.cells.used = length
            return self.fast.logits(x.view(rows, length, -1)[:, -1])

    def step(self, ids: Tensor) -> Tensor:
        """(rows,) newest tokens -> (rows, vocab) logits of the next."""
        logits = self.fast.step(ids, self.place, self.cells)
        self.place = self.place + 1
        return logits

    def keep(self, rows: Tensor) -> None:
        """New row i goes on from old row rows[i]."""
        self.cells.keep(rows)
        if isinstance(self.place, Tensor):
            self.place = self.place[rows]


def can_prompt_fast(model: Transformer, int8: bool = False) -> bool:
    """Whether this is a language model whose decoder is of the common kind (and whose numbers int8 can stand for)."""
    decoder, spec = model.decoder, model.spec.decoder
    return (
        model.encoder is None and type(model.lm_head) is LmHead and (not int8 or can_be_int8(model.embed.weight))
        and decoder is not None and spec is not None and spec.sees == "past" and is_common(decoder, spec, opening=True)
    )  # fmt: skip


def int8_loss(model: Transformer, ids: Tensor) -> tuple[float, float]:
    """Nats per token of (rows, length) ids, by the model as it is and with int8 matrices; perplexity is exp of it."""
    with eval_mode(model):
        return nats(FastModel.of(model), ids), nats(FastModel.of(model, int8=True), ids)


def nats(fast: FastModel, ids: Tensor) -> float:
    """Each token but the first of each row is predicted from those before it."""
    total = 0.0
    for row in ids:  # one row's logits at a time: all of them would not fit
        logits = fast.logits(fast.decoder.read(row[None, :-1], None))               # (length - 1, vocab)
        total += float(torch.nn.functional.cross_entropy(logits.double(), row[1:], reduction="sum"))
    return total / (ids.numel() - len(ids)) if ids.shape[1] > 1 else math.nan
