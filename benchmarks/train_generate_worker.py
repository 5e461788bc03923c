"""A system of benchmarks/train_generate.py.

python -m benchmarks.train_generate_worker SYSTEM SHAPE SIZE
"""

import sys

from benchmarks.harness import run_worker
from qkv.threads import set_torch_threads

VOCAB = 65  # characters of Tiny Shakespeare
SIZES = {  # layers, d_model, heads, tokens per row, rows, steps per round
    "4x128x64": (4, 128, 4, 64, 12, 20),
    "6x384x256": (6, 384, 6, 256, 12, 2),
    "smoke": (1, 16, 2, 8, 2, 1),
}


def main() -> None:
    system, shape, size = sys.argv[1:4]
    if system != "transformers":
        from qkv.allocator import keep_pages

        keep_pages()  # as the qkv command does, before torch is imported
    import torch

    set_torch_threads(2)
    torch.manual_seed(0)
    _, _, _, length, rows, steps = SIZES[size]
    batches = [torch.randint(0, VOCAB, (rows, length + 1)) for _ in range(steps)]
    step = (
        load_transformers(shape, size)
        if system == "transformers"
        else load_qkv(shape, size, system == "qkv-compiled")
    )

    def round_() -> None:
        for ids in batches:
            step(ids[:, :-1], ids[:, 1:])

    run_worker(round_)


def feed_forward(shape: str, d_model: int) -> int:
    """d_ff: 4 d_model for GPT-2; 8/3 d_model for Llama, which has three matrices."""
    return 8 * d_model // 3 // 8 * 8 if shape == "llama" else 4 * d_model


def load_qkv(shape: str, size: str, compiled: bool = False):
    """A step of qkv's training loop; `compiled` is the recipe option `compile: true`."""
    import torch

    from qkv.model.presets import preset
    from qkv.model.transformer import Transformer
    from qkv.train.optim import make_optimizers
    from qkv.train.recipe import GenerateRecipe

    model = Transformer(
        preset("causal-lm", vocab_size=VOCAB, max_len=SIZES[size][3], **qkv_shape(shape, size))
    ).train()
    if compiled:
        model.decoder.compile()
    optimizer = make_optimizers(
        model, GenerateRecipe(optimizer="adamw", lr=1e-3, weight_decay=0.1)
    )[0]

    def step(ids: torch.Tensor, targets: torch.Tensor) -> None:
        (model.loss(model.decode(ids), targets) / targets.numel()).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def qkv_shape(shape: str, size: str):
    """Arguments of the preset; "default" has rotary positions, squared ReLU and no biases."""
    layers, d_model, heads, _, _, _ = SIZES[size]
    sizes = {
        "layers": layers,
        "d_model": d_model,
        "n_heads": heads,
        "d_ff": feed_forward(shape, d_model),
        "dropout": 0.0,
    }
    match shape:
        case "gpt2":
            return dict(
                **sizes, norm="layer", positions="learned", activation="gelu_tanh", bias=True
            )
        case "llama":
            return dict(**sizes, norm="rms", activation="silu", gated=True, bias=False, tied=False)
        case _:
            return dict(**sizes, norm="layer", activation="relu2", bias=False)


def load_transformers(shape: str, size: str):
    """A step of the plain loop of transformers' documentation, with torch's AdamW."""
    import torch

    from benchmarks.peers import gpt2, llama, next_token_loss

    layers, d_model, heads, length, _, _ = SIZES[size]
    if shape == "gpt2":
        model = gpt2(VOCAB, length, layers, d_model, heads)
    else:
        d_ff = feed_forward(shape, d_model)
        options = {"max_position_embeddings": length, "tie_word_embeddings": False}
        model = llama(VOCAB, layers, d_model, heads, d_ff, **options)
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1)

    def step(ids: torch.Tensor, targets: torch.Tensor) -> None:
        next_token_loss(model, ids, targets).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return step


if __name__ == "__main__":
    main()
