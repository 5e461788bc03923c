"""`qkv evaluate --source --target` of a translation model: BLEU, chrF, perplexity, throughput.

With --baseline, a paired bootstrap test of the two systems. See docs/guides/translation.md.
"""

import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from qkv.errors import QkvError
from qkv.evaluate.perplexity import translation_perplexity
from qkv.evaluate.scores import compare, score
from qkv.generate.config import TranslationConfig
from qkv.messages import _
from qkv.pipeline import Translator
from qkv.text.lines import read_lines, write_text

Figures = dict[str, Any]


def evaluate_translation(
    folder: Path,
    files: tuple[Path, Path],
    metric_options: tuple[str, str],
    config: TranslationConfig,
    baseline: Path | None,
    out: Path | None,
    device: str,
    int8: bool,
) -> tuple[Figures, str]:
    """Evaluate a translation model; `metric_options` are its target language and BLEU tokenizer."""
    sources, references = aligned(*files)
    # Report an invalid option before translating.
    score(references[:1], references[:1], *metric_options)
    translator = Translator.load(folder, device, int8)
    baseline_outputs = _outputs_of(baseline, device, sources, config) if baseline else None
    start = time.perf_counter()
    outputs = _translated(translator, sources, config)
    seconds = time.perf_counter() - start
    if out:
        write_text(out, "".join(f"{line}\n" for line in outputs))
    scores = score(outputs, references, *metric_options)
    comparison = None
    if baseline_outputs is not None:
        names = str(baseline), str(folder)
        comparison = compare(baseline_outputs, outputs, references, *metric_options, names=names)
    report = scores.as_json() | _perplexity(translator, sources, references)
    report |= {"seconds": seconds, "sentences_per_second": len(sources) / seconds}
    lines = [str(scores), *_lines(report)]
    if comparison:
        lines += ["", str(comparison)]
        report["baseline"] = comparison.scores[0].as_json()
        report |= {"p_bleu": comparison.p_bleu, "p_chrf": comparison.p_chrf}
    return report, "\n".join(lines)


def _lines(report: Figures) -> list[str]:
    lines = [_("exact match {exact:.1%}", **report), perplexity_line(report)]
    if report["skipped"]:
        lines.append(_("{skipped:,} pairs skipped: longer than the context", **report))
    return [
        *lines,
        _(
            "throughput {rate:.1f} sentences/s ({n_sentences:,} in {seconds:.2f} s)",
            rate=report["sentences_per_second"],
            n_sentences=report["sentences"],
            **report,
        ),
    ]


def perplexity_line(report: Mapping[str, Any]) -> str:
    return _(
        "perplexity {value:.3f} ({nats_per_token:.4f} nats/token, {tokens:,} tokens)",
        value=report["perplexity"],
        **report,
    )


def _perplexity(translator: Translator, sources: list[str], references: list[str]) -> Figures:
    found = translation_perplexity(
        translator.model,
        list(map(translator.encode_source, sources)),
        list(map(translator.encode_target, references)),
    )
    return {
        "perplexity": found.value,
        "nats_per_token": found.nats_per_token,
        "tokens": found.tokens,
        "skipped": found.skipped,
    }


def aligned(source: Path, target: Path) -> tuple[list[str], list[str]]:
    sources, references = list(read_lines(source)), list(read_lines(target))
    if len(sources) != len(references):
        raise QkvError(
            f"{source}, {target}",
            _(
                "{n_sources:,} and {n_references:,} lines",
                n_sources=len(sources),
                n_references=len(references),
            ),
            _("line n of the target file must translate line n of the source file"),
        )
    return sources, references


def _outputs_of(
    baseline: Path, device: str, sources: list[str], config: TranslationConfig
) -> list[str]:
    """The baseline's translations: by a model, or from a file."""
    if baseline.is_dir():
        return _translated(Translator.load(baseline, device), sources, config)
    outputs = list(read_lines(baseline))
    if len(outputs) != len(sources):
        raise QkvError(
            baseline,
            _(
                "{n_outputs:,} lines for {n_sources:,} sentences",
                n_outputs=len(outputs),
                n_sources=len(sources),
            ),
            _("give one translation per line"),
        )
    return outputs


def _translated(translator: Translator, sources: list[str], config: TranslationConfig) -> list[str]:
    """The best translations, with progress on a terminal."""

    def progress(done: int, of: int) -> None:
        if sys.stderr.isatty():
            end = "\n" if done == of else ""
            print(f"\r{done:,} / {of:,}", end=end, file=sys.stderr, flush=True)

    found = translator.translate(sources, config, progress=progress)
    return [best[0].text for best in found]
