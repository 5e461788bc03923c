"""Language model demo: a Chinese model that completes sentences of the built-in grammar."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qkv.messages import _

if TYPE_CHECKING:
    from qkv.pipeline import Generator

TRAIN, VALID = FILES = "train.jsonl", "valid.jsonl"
PROMPT = "今天天气"
N_SAMPLES, TEMPERATURE, MAX_NEW_TOKENS = 100, 0.3, 40
RECIPE: dict[str, Any] = {
    "tokenizer": "char",
    "vocab_size": 2_000,
    "seed": 1,
    "steps": 1_200,
    "batch_tokens": 2_048,
    "context_length": 64,
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
    "zero_init_residual": True,
    "optimizer": "muon",
    "muon_lr": 0.02,
    "lr": 4e-3,
    "warmup_steps": 60,
    "decay_fraction": 0.7,
    "save_every": 300,
    "validate_every": 300,
}


def write_files(out: Path) -> dict[str, Any]:
    """Write the Chinese sentences of the built-in corpus, one document each."""
    from qkv.data.builtin import builtin_pairs
    from qkv.text.lines import write_text

    for name, pairs in zip(FILES, builtin_pairs(), strict=True):
        write_text(
            out / name,
            "".join(json.dumps({"text": pair.source}, ensure_ascii=False) + "\n" for pair in pairs),
        )
    return {"text": [str(out / TRAIN)], "valid_text": [str(out / VALID)]}


def show(out: Path) -> None:
    """Print held-out perplexity, how many samples are grammatical, and example continuations."""
    import qkv
    from qkv.data.builtin import builtin_pairs
    from qkv.train.metrics import METRICS, read_metrics

    generator = qkv.load(out)
    best = min(
        (entry for entry in read_metrics(out / METRICS) if entry["kind"] == "valid"),
        key=lambda entry: entry["loss"],
    )
    print(_("\nOn {n_sentences} held-out sentences:", n_sentences=len(builtin_pairs()[1])))
    print(
        _(
            "perplexity {perplexity:.2f} per character, {bits_per_byte:.3f} bits per byte",
            perplexity=best["perplexity"],
            bits_per_byte=best["bits_per_byte"],
        )
    )
    print(
        _(
            "{n_grammatical} of {n_samples} sampled continuations (temperature {temperature}) "
            "are sentences of the built-in grammar\n",
            n_grammatical=count_grammatical(generator),
            n_samples=N_SAMPLES,
            temperature=TEMPERATURE,
        )
    )
    for text in dict.fromkeys(
        text for seed in range(8) for text in continuations(generator, [PROMPT], seed)
    ):
        print(f"{PROMPT} -> {text}")
    figure = draw_next_tokens(generator, out / "next-tokens.png")
    print(
        _(
            "\nNext-token probabilities: {figure}\nLearning curves:          {curves}",
            figure=figure,
            curves=out / "curves.png",
        )
    )
    use = f"qkv generate {out} {PROMPT} --temperature {TEMPERATURE} --n 3"
    train = "qkv train generate --text book.txt --out runs/mine"
    print(_("Next: {use}   |   {train}", use=use, train=train))


def continuations(generator: "Generator", prompts: list[str], seed: int) -> list[str]:
    """Each prompt with a sampled continuation."""
    sequences = generator.generate(
        prompts, max_new_tokens=MAX_NEW_TOKENS, temperature=TEMPERATURE, seed=seed
    )
    return [prompt + texts[0].text for prompt, texts in zip(prompts, sequences, strict=True)]


def held_out_prompts() -> list[str]:
    """The first halves of held-out sentences, evenly spaced over the patterns of the grammar."""
    from qkv.data.builtin import builtin_pairs

    held_out = builtin_pairs()[1]
    chosen = held_out[:: len(held_out) // N_SAMPLES][:N_SAMPLES]
    return [pair.source[: (len(pair.source) + 1) // 2] for pair in chosen]


def count_grammatical(generator: "Generator") -> int:
    """Count continuations that are sentences of the built-in grammar; each prompt has its seed."""
    from qkv.data.builtin.recognizer import is_sentence

    return sum(
        is_sentence(text)
        for seed, prompt in enumerate(held_out_prompts())
        for text in continuations(generator, [prompt], seed)
    )


def draw_next_tokens(generator: "Generator", path: Path, steps: int = 4, top: int = 8) -> Path:
    """Draw the most probable next characters at each step of a greedy continuation."""
    from math import exp

    from matplotlib.figure import Figure

    from qkv.evaluate.figures import fonts_with, save

    [[sequence]] = generator.generate([PROMPT], max_new_tokens=steps, temperature=0.0, logprobs=top)
    candidates = sequence.top_logprobs or []
    texts = [PROMPT + "".join(sequence.tokens[:step]) for step in range(len(sequence.tokens))]
    with fonts_with([*texts, *(token for best in candidates for token, _ in best)]):
        figure = Figure(figsize=(2.6 * len(texts), 3.2), layout="constrained")
        for panel, text, best in zip(
            figure.subplots(1, len(texts), squeeze=False)[0], texts, candidates, strict=True
        ):
            tokens = [token for token, _ in best][::-1]
            probs = [exp(logprob) for _, logprob in best][::-1]
            panel.barh(range(len(tokens)), probs)
            panel.set_yticks(range(len(tokens)), tokens, parse_math=False)
            panel.set_xlim(0, 1)
            panel.set_title(text, parse_math=False)
        return save(figure, path)
