"""The demo of language modeling: a Chinese language model that continues a prefix with a sentence of the built-in grammar."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qkv.messages import _

if TYPE_CHECKING:
    from qkv.pipeline import Generator

TRAIN, VALID = FILES = "train.jsonl", "valid.jsonl"
PREFIX = "今天天气"
SAMPLES, TEMPERATURE, LONGEST = 100, 0.3, 40
RECIPE: dict[str, Any] = {
    "tokenizer": "char",
    "vocab_size": 2_000,
    "seed": 1,
    "steps": 1_200,
    "batch_tokens": 2_048,
    "context": 64,
    "separate_documents": True,
    "model": {
        "preset": "causal-lm",
        "layers": 3,
        "d_model": 128,
        "n_heads": 4,
        "d_ff": 512,
        "dropout": 0.05,
        "positions": "rotary",
        "activation": "relu2",
        "bias": False,
        "qk_norm": True,
        "max_len": 64,
    },
    "calm_start": True,
    "optimizer": "muon",
    "matrix_lr": 0.02,
    "lr": 4e-3,
    "warmup": 60,
    "decay_share": 0.7,
    "save_every": 300,
    "validate_every": 300,
}


def write_files(out: Path) -> dict[str, Any]:
    """The Chinese sentences of the built-in corpus, each a document of its own."""
    from qkv.data.builtin import builtin_pairs
    from qkv.text.lines import write_text

    for name, pairs in zip(FILES, builtin_pairs(), strict=True):
        write_text(
            out / name,
            "".join(json.dumps({"text": pair.source}, ensure_ascii=False) + "\n" for pair in pairs),
        )
    return {"text": [str(out / TRAIN)], "valid_text": [str(out / VALID)]}


def show(out: Path) -> None:
    """Perplexity on the held-out sentences, how many samples are sentences of the grammar, continuations of one prefix."""
    import qkv
    from qkv.train.report import METRICS, read_metrics

    generator = qkv.load(out)
    best = min(
        (entry for entry in read_metrics(out / METRICS) if entry["kind"] == "valid"),
        key=lambda entry: entry["loss"],
    )
    print(_("\nOn 500 unseen sentences:"))
    print(
        _(
            "perplexity {perplexity:.2f} per character, {bits_per_byte:.3f} bits per byte",
            perplexity=best["perplexity"],
            bits_per_byte=best["bits_per_byte"],
        )
    )
    found = grammatical(generator)
    print(
        _(
            "{found} of {samples} sampled continuations (temperature {temperature}) are sentences of the built-in grammar\n",
            found=found,
            samples=SAMPLES,
            temperature=TEMPERATURE,
        )
    )
    for text in dict.fromkeys(
        text for seed in range(8) for text in continuations(generator, [PREFIX], seed)
    ):
        print(f"{PREFIX} -> {text}")
    picture = draw_next_tokens(generator, out / "next-tokens.png")
    print(
        _(
            "\nNext-token probabilities: {picture}\nLearning curves:          {out}",
            picture=picture,
            out=out / "curves.png",
        )
    )
    print(
        _("Next: ") + f"qkv generate {out} {PREFIX} --temperature {TEMPERATURE} --n 3   |   "
        "qkv train generate --text book.txt --out runs/mine"
    )


def continuations(generator: "Generator", prefixes: list[str], seed: int) -> list[str]:
    """Each prefix with a sampled continuation."""
    written = generator.generate(
        prefixes, max_new_tokens=LONGEST, temperature=TEMPERATURE, seed=seed
    )
    return [prefix + texts[0].text for prefix, texts in zip(prefixes, written, strict=True)]


def prefixes() -> list[str]:
    """The first half of held-out sentences, evenly spaced, so that every kind of pattern is among them."""
    from qkv.data.builtin import builtin_pairs

    held_out = builtin_pairs()[1]
    chosen = held_out[:: len(held_out) // SAMPLES][:SAMPLES]
    return [pair.source[: (len(pair.source) + 1) // 2] for pair in chosen]


def grammatical(generator: "Generator") -> int:
    """How many continuations are sentences that the built-in grammar generates; one seed draws alike for all prompts, so each has its own."""
    from qkv.data.builtin.recognizer import is_sentence

    return sum(
        is_sentence(text)
        for seed, prefix in enumerate(prefixes())
        for text in continuations(generator, [prefix], seed)
    )


def draw_next_tokens(generator: "Generator", path: Path, steps: int = 4, shown: int = 8) -> Path:
    """The most probable next characters after the prefix, then after each character of the greedy continuation."""
    from math import exp

    from matplotlib.figure import Figure

    from qkv.evaluate.figures import readable, save

    written = generator.generate([PREFIX], max_new_tokens=steps, temperature=0.0, logprobs=shown)[
        0
    ][0]
    candidates = written.best or []
    texts = [PREFIX + "".join(written.tokens[:step]) for step in range(len(written.tokens))]
    with readable([*texts, *(token for best in candidates for token, _ in best)]):
        figure = Figure(figsize=(2.6 * len(texts), 3.2), layout="constrained")
        for panel, text, best in zip(
            figure.subplots(1, len(texts), squeeze=False)[0], texts, candidates, strict=True
        ):
            tokens, probs = (
                [token for token, _ in best][::-1],
                [exp(logprob) for _, logprob in best][::-1],
            )
            panel.barh(range(len(tokens)), probs)
            panel.set_yticks(range(len(tokens)), tokens, parse_math=False)
            panel.set_xlim(0, 1)
            panel.set_title(text, parse_math=False)
        return save(figure, path)
