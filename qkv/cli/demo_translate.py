"""Translation demo: a Chinese-English model, its BLEU, exact match and cross-attention."""

from pathlib import Path
from typing import Any

from qkv.cli.demo_recipe import MODEL, OPTIMIZER
from qkv.messages import _

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
    **OPTIMIZER,
    "warmup_steps": 50,
    "decay_fraction": 0.7,
    "save_every": 400,
    "validate_every": 400,
    "beam_size": 4,
    "guided_alignment_weight": 0.1,
}


def write_files(out: Path) -> dict[str, Any]:
    """Write the built-in pairs as TSV files with word alignments; return the training options."""
    from qkv.data.builtin import builtin_pairs
    from qkv.data.builtin.links import pharaoh
    from qkv.text.lines import write_text

    write_pairs(out)
    write_text(out / ALIGNMENT, "".join(f"{pharaoh(pair.links)}\n" for pair in builtin_pairs()[0]))
    return {
        "source": str(out / TRAIN),
        "valid_source": str(out / VALID),
        "alignment": str(out / ALIGNMENT),
    }


def write_pairs(out: Path) -> None:
    from qkv.data.builtin import builtin_pairs
    from qkv.text.lines import write_text

    for name, pairs in zip(FILES, builtin_pairs(), strict=True):
        write_text(out / name, "".join(f"{pair.source}\t{pair.target}\n" for pair in pairs))


def show(out: Path) -> tuple[str, str]:
    """Print scores and translations, draw a cross-attention; return the next commands."""
    import qkv
    from qkv.cli.attention import draw_cross_attention
    from qkv.data.builtin import DEMO_SENTENCES, builtin_pairs
    from qkv.evaluate.alignment_error import alignment_error_rate
    from qkv.evaluate.scores import score

    translator = qkv.load(out)
    held_out = builtin_pairs()[1]
    outputs = translator([pair.source for pair in held_out])
    scores = score(outputs, [pair.target for pair in held_out], "en")
    print(_("\nOn {n_sentences} held-out sentences:", n_sentences=len(held_out)))
    print(_("exact match {exact:.1%}", exact=scores.exact))
    print(scores)
    error = alignment_error_rate(translator, held_out)
    print(_("alignment error rate (AER) {error:.3f}", error=error), end="\n\n")
    examples = [pair.source for pair in DEMO_SENTENCES]
    for source, output in zip(examples, translator(examples), strict=True):
        print(f"{source} -> {output}")
    figure = draw_cross_attention(translator, examples[1], out / "attention.png")
    print(
        _(
            "\nCross-attention: {figure}\nLearning curves: {curves}",
            figure=figure,
            curves=out / "curves.png",
        )
    )
    return (
        f"qkv translate {out} 机器学习很有趣",
        "qkv train translate --source a.zh --target a.en --out runs/mine",
    )
