"""A translator of Chinese digits, trained in seconds: 一二。 -> one two."""

import random
from dataclasses import replace
from pathlib import Path

import torch

DIGITS = {
    "零": "zero",
    "一": "one",
    "二": "two",
    "三": "three",
    "四": "four",
    "五": "five",
    "六": "six",
    "七": "seven",
    "八": "eight",
    "九": "nine",
}


def pairs(n: int, seed: int, longest: int = 8) -> list[tuple[str, str]]:
    rng = random.Random(seed)
    rows = [rng.choices(list(DIGITS), k=rng.randint(1, longest)) for _ in range(n)]
    return [("".join(row) + "。", " ".join(DIGITS[digit] for digit in row) + ".") for row in rows]


def make(folder: Path, steps: int = 150) -> Path:
    """Train and save a model folder; bit-identical each time."""
    from qkv.data.batches import pair_batch
    from qkv.model.presets import encoder_decoder
    from qkv.model.transformer import Transformer
    from qkv.pipeline import Translator
    from qkv.text.train_tokenizer import train_tokenizer

    corpus = pairs(400, seed=1)
    source = train_tokenizer("char", [pair[0] for pair in corpus] + ["，"], 30)
    target = train_tokenizer("word", [pair[1] for pair in corpus], 30)
    torch.manual_seed(1)
    spec = replace(
        encoder_decoder(target.vocab_size, 32, layers=1, n_heads=2, d_ff=64, dropout=0.0),
        source_vocab_size=source.vocab_size,
        max_len=40,
    )
    model = Transformer(spec)
    optimizer = torch.optim.Adam(model.parameters(), lr=4e-3)
    for step in range(steps):
        batch_pairs = pairs(48, seed=step + 10)
        batch = pair_batch(
            [source.encode(zh) for zh, _ in batch_pairs],
            [target.encode(en) for _, en in batch_pairs],
            0,
            2,
            3,
        )
        stream = model.decode(batch.target_in, model.encode(batch.source, batch.source != 0))
        loss = (
            model.loss(stream, batch.target_out, batch.target_out != 0)
            / (batch.target_out != 0).sum()
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    Translator.from_model(model, source, target).save(folder)
    return folder
