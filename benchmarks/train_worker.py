"""A system of train_translate.py and model.py.

python -m benchmarks.train_worker SYSTEM SIZE BATCHES.npz step|pass
"""

import sys

import numpy as np

from benchmarks.harness import run_worker
from qkv.threads import set_torch_threads


def main() -> None:
    system, size, file, kind = sys.argv[1:5]
    if system == "qkv":
        from qkv.allocator import keep_pages

        keep_pages()  # as the qkv command does, before torch is imported
    import torch

    set_torch_threads(2)
    torch.manual_seed(0)
    stored = np.load(file)
    count = len(stored.files) // 3
    batches = [
        tuple(torch.from_numpy(stored[f"{name}{i}"]) for name in ("source", "in", "out"))
        for i in range(count)
    ]
    model, loss, optimizer = load_system(system, size)
    model.train()

    def round_() -> None:
        for batch in batches:
            loss(model, *batch).backward()
            if kind == "step":
                optimizer.step()
            optimizer.zero_grad()

    run_worker(round_)


def load_system(system: str, size: str):
    import torch

    from benchmarks import peers

    if system == "qkv":
        return load_qkv(size)
    model = peers.marian(size) if system == "marian" else peers.TorchTransformer(size)
    loss = peers.marian_loss if system == "marian" else peers.torch_loss
    return model, loss, torch.optim.Adam(model.parameters(), lr=1e-4, betas=(0.9, 0.98))


def load_qkv(size: str):
    from qkv.model.presets import preset
    from qkv.model.transformer import Transformer
    from qkv.train.optim import make_optimizers
    from qkv.train.recipe import Recipe

    model = Transformer(preset(size))

    def loss(model, source, target_in, target_out):
        attention_mask, target_mask = source != 0, target_out != 0
        memory = model.encode(source, None if bool(attention_mask.all()) else attention_mask)
        states = model.decode(target_in, memory)
        return (
            model.loss(states, target_out, None if bool(target_mask.all()) else target_mask, 0.1)
            / target_mask.sum()
        )

    return model, loss, make_optimizers(model, Recipe(optimizer="adam", lr=1e-4))[0]


main()
