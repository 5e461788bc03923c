"""Train a translator on sentence pairs in memory, then translate with it.

python examples/train_in_memory.py [STEPS]
"""

import sys

from qkv.data.builtin import builtin_pairs
from qkv.train import TrainingStep, TranslateRecipe, run


def report(step: TrainingStep) -> None:
    if step.step % 20 == 0:
        print(f"step {step.step}: loss {step.loss:.3f}")


def main() -> None:
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 300
    train, held_out = builtin_pairs()  # replace them by your own list of (source, target)
    pairs = [(pair.source, pair.target) for pair in train]
    recipe = TranslateRecipe(
        model={"preset": "seq2seq", "layers": 2, "d_model": 128, "n_heads": 4, "d_ff": 256},
        vocab_size=2_000,
        batch_tokens=2_048,
        steps=steps,
        save_every=steps,
        validate_every=steps,
    )
    translator = run(recipe, pairs, out="runs/in-memory", on_step=report)
    for pair in held_out[:5]:
        print(f"{pair.source} -> {translator(pair.source)}   (reference: {pair.target})")


if __name__ == "__main__":
    main()
