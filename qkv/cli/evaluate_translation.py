"""`qkv evaluate FOLDER --source --target`: how good a model's translations are, in the field's own numbers.

In: a model folder, sentences and their right translations. Out: BLEU and chrF as sacrebleu prints them, perplexity and
sentences/s; against a second system, whether the two really differ. Told in docs/translation.md, "Scores".
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
class Report:
    """All that was measured."""

    scores: "Scores"
    perplexity: "Perplexity"
    seconds: float
    comparison: "Comparison | None" = None

    def __str__(self) -> str:
        p, n = self.perplexity, self.scores.sentences
        left_out = _(", {left_out:,} pairs too long", left_out=p.left_out) if p.left_out else ""
        lines = [
            str(self.scores),
            _("exact match {exact:.1%}", exact=self.scores.exact),
            _(
                "perplexity {value:.3f} ({nats_per_token:.4f} nats/token, {tokens:,} tokens{left_out})",
                value=p.value,
                nats_per_token=p.nats_per_token,
                tokens=p.tokens,
                left_out=left_out,
            ),
            _(
                "{n:.1f} sentences/s ({n2:,} in {seconds:.2f} s)",
                n=n / self.seconds,
                n2=n,
                seconds=self.seconds,
            ),
        ]
        return "\n".join([*lines, "", str(self.comparison)] if self.comparison else lines)

    def as_json(self) -> dict[str, Any]:
        p = self.perplexity
        facts = self.scores.as_json() | {
            "perplexity": p.value,
            "nats_per_token": p.nats_per_token,
            "tokens": p.tokens,
            "left_out": p.left_out,
            "seconds": self.seconds,
            "sentences_per_second": self.scores.sentences / self.seconds,
        }
        if self.comparison:
            facts["against"] = self.comparison.scores[0].as_json()
            facts |= {"p_bleu": self.comparison.p_bleu, "p_chrf": self.comparison.p_chrf}
        return facts


def evaluate_translation(
    folder: Path,
    files: tuple[Path, Path],
    kind: tuple[str, str],
    config: TranslationConfig,
    against: Path | None = None,
    output: Path | None = None,
    device: str = "cpu",
    as_json: bool = False,
    int8: bool = False,
) -> None:
    """BLEU and chrF with their signatures, perplexity, sentences/s; with `against`, a paired bootstrap test."""
    from qkv.evaluate.scores import score
    from qkv.files import refuse_unwritable
    from qkv.text.lines import write_text

    if output:
        refuse_unwritable(output)
    sources, references = aligned(*files)
    score(references[:1], references[:1], *kind)  # a mistake in an option is told before the work
    translator = Translator.load(folder, device, int8)
    others = _outputs_of(against, device, sources, config) if against else None
    start = time.perf_counter()
    outputs = _translated(translator, sources, config)
    seconds = time.perf_counter() - start
    if output:
        write_text(output, "".join(f"{line}\n" for line in outputs))
    report = _report(translator, outputs, (sources, references), kind, seconds)
    if others is not None:
        report = _compared(report, (others, outputs, references), kind, (str(against), str(folder)))
    print(json.dumps(report.as_json(), ensure_ascii=False, indent=2) if as_json else report)


def _report(
    translator: Translator,
    outputs: list[str],
    pairs: tuple[list[str], list[str]],
    kind: tuple[str, str],
    seconds: float,
) -> Report:
    from qkv.evaluate.perplexity import translation_perplexity
    from qkv.evaluate.scores import score

    sources, references = pairs
    perplexity = translation_perplexity(
        translator.model,
        [translator.encode_source(one) for one in sources],
        [translator.encode_target(one) for one in references],
    )
    return Report(score(outputs, references, *kind), perplexity, seconds)


def _compared(
    report: Report,
    lines: tuple[list[str], list[str], list[str]],
    kind: tuple[str, str],
    names: tuple[str, str],
) -> Report:
    from qkv.evaluate.scores import compare

    return Report(
        report.scores, report.perplexity, report.seconds, compare(*lines, *kind, names=names)
    )


def aligned(source: Path, target: Path) -> tuple[list[str], list[str]]:
    from qkv.text.lines import read_lines

    sources, references = list(read_lines(source)), list(read_lines(target))
    if len(sources) != len(references):
        raise QkvError(
            f"{source}, {target}",
            _(
                "{n_sources:,} lines against {n_references:,}",
                n_sources=len(sources),
                n_references=len(references),
            ),
            _("line n of one must translate line n of the other"),
        )
    return sources, references


def _outputs_of(
    against: Path, device: str, sources: list[str], config: TranslationConfig
) -> list[str]:
    """The other system's translations: of a model, or read from a file."""
    from qkv.text.lines import read_lines

    if against.is_dir():
        return _translated(Translator.load(against, device), sources, config)
    outputs = list(read_lines(against))
    if len(outputs) != len(sources):
        raise QkvError(
            against,
            _(
                "{n_outputs:,} lines for {n_sources:,} sentences",
                n_outputs=len(outputs),
                n_sources=len(sources),
            ),
            _("give one translation a line"),
        )
    return outputs


def _translated(translator: Translator, sources: list[str], config: TranslationConfig) -> list[str]:
    """The best translations; a person at a terminal sees how far it is."""

    def tell(done: int, of: int) -> None:
        if sys.stderr.isatty():
            end = "\n" if done == of else ""
            print(f"\r{done:,} / {of:,}", end=end, file=sys.stderr, flush=True)

    found = translator.translate(sources, config, progress=tell)
    return [best[0].text for best in found]
