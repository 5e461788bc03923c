"""Language model demo: a Chinese model that completes sentences of the built-in grammar."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import qkv
from qkv.cli.demo_recipe import MODEL, optimizer
from qkv.data import builtin
from qkv.messages import N_, _
from qkv.text.lines import write_text

if TYPE_CHECKING:
    from qkv.pipeline import Generator

OUT = Path("runs/demo-generate")
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
    "model": {"preset": "causal-lm", "layers": 3, **MODEL, "max_len": 64},
    **optimizer(warmup_steps=60, save_every=300),
}
FIGURES = N_("\nNext-token probabilities: {figure}\nLearning curves:          {curves}")
TRAIN_YOUR_OWN = "qkv train generate --text book.txt --out runs/mine"


def write_files(out: Path) -> dict[str, Any]:
    """Write the Chinese sentences of the built-in corpus, one document each."""
    for name, pairs in zip(FILES, builtin.builtin_pairs(), strict=True):
        write_text(
            out / name,
            "".join(json.dumps({"text": pair.source}, ensure_ascii=False) + "\n" for pair in pairs),
        )
    return {"text": [str(out / TRAIN)], "valid_text": [str(out / VALID)]}


def show(out: Path) -> tuple[Path, str]:
    """Print perplexity, grammatical samples and continuations; return the figure and a command."""
    from qkv.train.metrics import METRICS, read_metrics

    generator = qkv.load(out, task="generate")
    best = min(
        (entry for entry in read_metrics(out / METRICS) if entry["kind"] == "valid"),
        key=lambda entry: entry["loss"],
    )
    print(_("\nOn {n_sentences} held-out sentences:", n_sentences=len(builtin.builtin_pairs()[1])))
    print(_("perplexity {perplexity:.2f} per character, {bits_per_byte:.3f} bits per byte", **best))
    print(
        _(
            "{n_grammatical} of {n_samples} sampled continuations (temperature {temperature}) "
            "are sentences of the built-in grammar\n",
            n_grammatical=count_grammatical(generator),
            n_samples=N_SAMPLES,
            temperature=TEMPERATURE,
        )
    )
    for text in dict.fromkeys(continuation(generator, PROMPT, seed) for seed in range(8)):
        print(f"{PROMPT} -> {text}")
    figure = draw_next_tokens(generator, out / "next-tokens.png")
    return figure, f"qkv generate {out} {PROMPT} --temperature {TEMPERATURE} --n 3"


def continuation(generator: "Generator", prompt: str, seed: int) -> str:
    """The prompt with a sampled continuation."""
    [[sequence]] = generator.generate(
        [prompt], max_new_tokens=MAX_NEW_TOKENS, temperature=TEMPERATURE, seed=seed
    )
    return prompt + sequence.text


def held_out_prompts() -> list[str]:
    """The first halves of held-out sentences, evenly spaced over the patterns of the grammar."""

    held_out = builtin.builtin_pairs()[1]
    chosen = held_out[:: len(held_out) // N_SAMPLES][:N_SAMPLES]
    return [pair.source[: (len(pair.source) + 1) // 2] for pair in chosen]


def count_grammatical(generator: "Generator") -> int:
    """Count continuations that are sentences of the built-in grammar; each prompt has its seed."""
    from qkv.data.builtin.recognizer import is_sentence

    return sum(
        is_sentence(continuation(generator, prompt, seed))
        for seed, prompt in enumerate(held_out_prompts())
    )


def draw_next_tokens(generator: "Generator", path: Path) -> Path:
    """Draw the most probable next characters at each step of a greedy continuation."""
    from math import exp

    from matplotlib.figure import Figure

    from qkv.evaluate.figures import fonts_with, save

    [[sequence]] = generator.generate([PROMPT], max_new_tokens=4, temperature=0.0, logprobs=8)
    candidates = sequence.top_logprobs or []
    texts = [PROMPT + "".join(sequence.tokens[:step]) for step in range(len(sequence.tokens))]
    with fonts_with([*texts, *(token for best in candidates for token, _ in best)]):
        figure = Figure(figsize=(2.6 * len(texts), 3.2), layout="constrained")
        panels = figure.subplots(1, len(texts), squeeze=False)[0]
        for panel, text, best in zip(panels, texts, candidates, strict=True):
            tokens, logprobs = zip(*reversed(best), strict=True)
            panel.barh(range(len(tokens)), list(map(exp, logprobs)))
            panel.set_yticks(range(len(tokens)), tokens, parse_math=False)
            panel.set_xlim(0, 1)
            panel.set_title(text, parse_math=False)
        return save(figure, path)
