"""Tiny Shakespeare with a plain training loop around transformers' GPT-2.

python -m benchmarks.shakespeare_plain TEXT ITERATIONS      prints seconds and validation loss.
"""

import json
import math
import sys
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from transformers import GPT2Config, GPT2LMHeadModel

from qkv.threads import set_torch_threads

ROWS, LENGTH, WARMUP_STEPS, MAX_LR, MIN_LR = 12, 64, 100, 1e-3, 1e-4


def main(file: str, iterations: int) -> None:
    set_torch_threads(2)
    torch.manual_seed(1337)
    text = Path(file).read_bytes().decode()
    vocabulary = {character: i for i, character in enumerate(sorted(set(text)))}
    ids = torch.tensor([vocabulary[character] for character in text])
    train, valid = ids[: int(len(ids) * 0.9)], ids[int(len(ids) * 0.9) :]
    model = GPT2LMHeadModel(
        GPT2Config(
            vocab_size=len(vocabulary),
            n_positions=LENGTH,
            n_embd=128,
            n_layer=4,
            n_head=4,
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
        )
    )
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=MAX_LR, betas=(0.9, 0.99), weight_decay=0.1
    )
    seconds = train_model(model.train(), optimizer, train, iterations)
    print(
        json.dumps(
            {
                "seconds": seconds,
                "loss": loss_on(model.eval(), valid),
                "parameters": model.num_parameters(),
                "characters": iterations * ROWS * LENGTH,
            }
        )
    )


def train_model(model, optimizer, train: torch.Tensor, iterations: int) -> float:
    start = time.perf_counter()
    for number in range(iterations):
        progress = max(0.0, (number - WARMUP_STEPS) / max(1, iterations - WARMUP_STEPS))
        decayed = MIN_LR + 0.5 * (1 + math.cos(math.pi * progress)) * (MAX_LR - MIN_LR)
        optimizer.param_groups[0]["lr"] = min(MAX_LR * (number + 1) / WARMUP_STEPS, decayed)
        begins = torch.randint(len(train) - LENGTH, (ROWS,))
        ids = torch.stack([train[begin : begin + LENGTH + 1] for begin in begins])
        loss = F.cross_entropy(
            model(input_ids=ids[:, :-1], use_cache=False).logits.flatten(0, 1), ids[:, 1:].flatten()
        )
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    return time.perf_counter() - start


@torch.inference_mode()
def loss_on(model, valid: torch.Tensor) -> float:
    """Loss of every character but the first, with at least half a context, as qkv measures it."""
    nats, half = 0.0, LENGTH // 2
    for end in range(LENGTH, len(valid) + half, half):
        begin = max(0, min(end, len(valid) - 1) - LENGTH)
        row = valid[begin : min(end, len(valid) - 1) + 1]
        scored = len(row) - 1 if end == LENGTH else min(half, len(valid) - 1 - (end - half))
        if scored > 0:
            logits = model(input_ids=row[None, :-1]).logits[0, -scored:]
            nats += float(F.cross_entropy(logits, row[-scored:], reduction="sum"))
    return nats / (len(valid) - 1)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
