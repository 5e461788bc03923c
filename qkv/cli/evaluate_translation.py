"""`qkv evaluate --source --target` of a translation model: BLEU, chrF, perplexity, throughput.

With --baseline, a paired bootstrap test of the two systems. See docs/translation.md.
"""

import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qkv.errors import QkvError
from qkv.generate.config import TranslationConfig
from qkv.messages import _
from qkv.pipeline import Translator

if TYPE_CHECKING:
    from qkv.evaluate.perplexity import Perplexity
    from qkv.evaluate.scores import Comparison, Scores


@dataclass(frozen=True)
class TranslationReport:
    """The metrics of a translation model."""

    scores: "Scores"
    perplexity: "Perplexity"
    seconds: float
    comparison: "Comparison | None"

    def __str__(self) -> str:
        figures = self.as_json()
        lines = [
            str(self.scores),
            _("exact match {exact:.1%}", **figures),
            _(
                "perplexity {value:.3f} ({nats_per_token:.4f} nats/token, {tokens:,} tokens)",
                value=figures["perplexity"],
                **figures,
            ),
        ]
        if self.perplexity.skipped:
            lines.append(_("{skipped:,} pairs skipped: longer than the context", **figures))
        lines.append(
            _(
                "throughput {rate:.1f} sentences/s ({n_sentences:,} in {seconds:.2f} s)",
                rate=figures["sentences_per_second"],
                n_sentences=figures["sentences"],
                **figures,
            )
        )
        return "\n".join([*lines, "", str(self.comparison)] if self.comparison else lines)

    def as_json(self) -> dict[str, Any]:
        p = self.perplexity
        report = self.scores.as_json() | {
            "perplexity": p.value,
            "nats_per_token": p.nats_per_token,
            "tokens": p.tokens,
            "skipped": p.skipped,
            "seconds": self.seconds,
            "sentences_per_second": self.scores.sentences / self.seconds,
        }
        if self.comparison:
            report["baseline"] = self.comparison.scores[0].as_json()
            report |= {"p_bleu": self.comparison.p_bleu, "p_chrf": self.comparison.p_chrf}
        return report


def evaluate_translation(
    folder: Path,
    files: tuple[Path, Path],
    metric_options: tuple[str, str],
    config: TranslationConfig,
    baseline: Path | None,
    out: Path | None,
    device: str,
    as_json: bool,
    int8: bool,
) -> None:
    """Evaluate a translation model; `metric_options` are its target language and BLEU tokenizer."""
    from qkv.evaluate.scores import compare, score
    from qkv.files import refuse_unwritable
    from qkv.text.lines import write_text

    if out:
        refuse_unwritable(out)
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
    scores, comparison = score(outputs, references, *metric_options), None
    if baseline_outputs is not None:
        names = str(baseline), str(folder)
        comparison = compare(baseline_outputs, outputs, references, *metric_options, names=names)
    perplexity = _perplexity(translator, sources, references)
    report = TranslationReport(scores, perplexity, seconds, comparison)
    print(json.dumps(report.as_json(), ensure_ascii=False, indent=2) if as_json else report)


def _perplexity(translator: Translator, sources: list[str], references: list[str]) -> "Perplexity":
    from qkv.evaluate.perplexity import translation_perplexity

    source_ids = list(map(translator.encode_source, sources))
    target_ids = list(map(translator.encode_target, references))
    return translation_perplexity(translator.model, source_ids, target_ids)


def aligned(source: Path, target: Path) -> tuple[list[str], list[str]]:
    from qkv.text.lines import read_lines

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
    from qkv.text.lines import read_lines

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
