"""One contestant of the training race: python -m benchmarks.train_worker WHO SIZE BATCHES.npz [step|pass]."""

import sys

import numpy as np

from benchmarks.race import serve


def main() -> None:
    who, size, file, kind = sys.argv[1:5]
    if who == "qkv":
        from qkv.allocator import keep_pages

        keep_pages()  # as the qkv command does, before torch is imported
    import torch

    torch.set_num_threads(2)
    torch.manual_seed(0)
    stored = np.load(file)
    count = len(stored.files) // 3
    batches = [
        tuple(torch.from_numpy(stored[f"{name}{i}"]) for name in ("source", "in", "out"))
        for i in range(count)
    ]
    model, loss, optimizer = contestant(who, size)
    model.train()

    def round_() -> None:
        for batch in batches:
            loss(model, *batch).backward()
            if kind == "step":
                optimizer.step()
            optimizer.zero_grad()

    serve(round_)


def contestant(who: str, size: str):
    import torch

    from benchmarks import peers

    if who == "qkv":
        return ours(size)
    model = peers.marian(size) if who == "marian" else peers.TorchTransformer(size)
    loss = peers.marian_loss if who == "marian" else peers.torch_loss
    return model, loss, torch.optim.Adam(model.parameters(), lr=1e-4, betas=(0.9, 0.98))


def ours(size: str):
    from qkv.model.presets import preset
    from qkv.model.transformer import Transformer
    from qkv.train.optim import make_optimizers
    from qkv.train.recipe import Recipe

    model = Transformer(preset(size))

    def loss(model, source, target_in, target_out):
        real, wanted = source != 0, target_out != 0
        memory = model.encode(source, None if bool(real.all()) else real)
        stream = model.decode(target_in, memory)
        return (
            model.loss(stream, target_out, None if bool(wanted.all()) else wanted, 0.1)
            / wanted.sum()
        )

    return model, loss, make_optimizers(model, Recipe(optimizer="adam", lr=1e-4))[0]


main()
