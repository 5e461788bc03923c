"""A training loop from scratch over Transformer alone: a decoder-only model of characters.

python examples/training_loop.py TEXT_FILE [STEPS]
"""

import sys
from pathlib import Path

import torch

from qkv import Generator, Transformer, preset
from qkv.text.train_tokenizer import train_tokenizer

BATCH, LENGTH = 16, 64


def main() -> None:
    text = Path(sys.argv[1]).read_text(encoding="utf-8")
    steps = int(sys.argv[2]) if len(sys.argv) > 2 else 500
    torch.manual_seed(0)
    tokenizer = train_tokenizer("char", text.splitlines(), vocab_size=5_000)
    data = torch.tensor(tokenizer.encode(text))  # (tokens,)
    model = Transformer(preset("lm-1m", vocab_size=tokenizer.vocab_size, layers=2, max_len=LENGTH))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for step in range(1, steps + 1):
        starts = torch.randint(len(data) - LENGTH, (BATCH, 1))
        window = data[starts + torch.arange(LENGTH + 1)]  # (batch, length + 1)
        loss = model.loss(model.decode(window[:, :-1]), window[:, 1:]) / (BATCH * LENGTH)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 50 == 0 or step == steps:
            print(f"step {step}: loss {loss.item():.3f}")
    generator = Generator.from_model(model, tokenizer)
    print(generator(text[:10], max_new_tokens=80, temperature=0.8, seed=1))


if __name__ == "__main__":
    main()
