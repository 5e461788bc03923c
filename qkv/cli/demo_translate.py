"""Translation demo: a Chinese-English model, its BLEU, exact match and cross-attention."""

from pathlib import Path
from typing import Any

import qkv
from qkv.cli.demo_recipe import MODEL, optimizer
from qkv.data import builtin
from qkv.data.builtin.links import pharaoh
from qkv.messages import N_, _
from qkv.text.lines import write_text

OUT = Path("runs/demo")
TRAIN, VALID = FILES = "train.tsv", "valid.tsv"
ALIGNMENT = "train.align"  # gold word alignments of the training pairs
RECIPE: dict[str, Any] = {
    "tokenizer": "byte_bpe",
    "vocab_size": 2_000,
    "seed": 1,
    "steps": 1_200,
    "batch_tokens": 2_048,
    "target_language": "en",
    "model": {"preset": "seq2seq", "layers": 3, **MODEL, "max_len": 128},
    **optimizer(warmup_steps=50, save_every=400),
    "beam_size": 4,
    "guided_alignment_weight": 0.1,
}
FIGURES = N_("\nCross-attention: {figure}\nLearning curves: {curves}")
TRAIN_YOUR_OWN = "qkv train translate --source a.zh --target a.en --out runs/mine"


def write_files(out: Path) -> dict[str, Any]:
    """Write the built-in pairs as TSV files with word alignments; return the training options."""
    write_pairs(out)
    write_text(
        out / ALIGNMENT, "".join(f"{pharaoh(pair.links)}\n" for pair in builtin.builtin_pairs()[0])
    )
    return {
        "source": str(out / TRAIN),
        "valid_source": str(out / VALID),
        "alignment": str(out / ALIGNMENT),
    }


def write_pairs(out: Path) -> None:
    for name, pairs in zip(FILES, builtin.builtin_pairs(), strict=True):
        write_text(out / name, "".join(f"{pair.source}\t{pair.target}\n" for pair in pairs))


def show(out: Path) -> tuple[Path, str]:
    """Print scores and translations, draw a cross-attention; return the figure and a command."""
    from qkv.cli.attention import draw_cross_attention
    from qkv.evaluate.alignment_error import alignment_error_rate
    from qkv.evaluate.scores import score

    translator = qkv.load(out, task="translate")
    held_out = builtin.builtin_pairs()[1]
    outputs = translator([pair.source for pair in held_out])
    scores = score(outputs, [pair.target for pair in held_out], "en")
    print(_("\nOn {n_sentences} held-out sentences:", n_sentences=len(held_out)))
    print(_("exact match {exact:.1%}", exact=scores.exact))
    print(scores)
    error = alignment_error_rate(translator, held_out)
    print(_("alignment error rate (AER) {error:.3f}", error=error), end="\n\n")
    examples = [pair.source for pair in builtin.DEMO_SENTENCES]
    for source, output in zip(examples, translator(examples), strict=True):
        print(f"{source} -> {output}")
    figure = draw_cross_attention(translator, examples[1], out / "attention.png")
    return figure, f"qkv translate {out} 机器学习很有趣"
