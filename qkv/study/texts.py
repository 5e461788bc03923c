"""Data of a study: the built-in corpus or the person's files, copied into the study's folder."""

from pathlib import Path

from qkv.data.builtin import builtin_pairs
from qkv.errors import QkvError
from qkv.files import atomic_path
from qkv.messages import _
from qkv.study.config import StudyConfig
from qkv.study.question import Question
from qkv.text.train_tokenizer import train_tokenizer

VALID_FRACTION = 0.05  # of a person's files, at the end
MIN_CHARACTERS = 2_000  # of a text: training and held-out windows must exist
MIN_PAIRS = 100
VOCAB_SIZE = 1_000  # of the tokenizer of both languages


def check_data(question: Question, config: StudyConfig) -> None:
    """Raise an error for a file that the study does not read."""
    reads = {"text": ("text",), "pairs": ("source", "target"), "none": ()}[question.data]
    for option in ("text", "source", "target"):
        if getattr(config, option) is not None and option not in reads:
            known = ", ".join(f"--{name}" for name in reads)
            right = _("it reads {known}", known=known) if known else _("omit it")
            raise QkvError(f"--{option}", _("this study does not read it"), right)
    for path in (config.text, config.source, config.target):
        if path is not None and not Path(path).is_file():
            raise QkvError(path, _("no such file"), _("check the path"))


def write_data(question: Question, config: StudyConfig, folder: Path) -> None:
    """Write train.txt and valid.txt, or train.tsv and valid.tsv, as the study needs."""
    if question.data == "none":
        return
    split = split_text(config) if question.data == "text" else split_pairs(config)
    suffix = "txt" if question.data == "text" else "tsv"
    for name, content in zip(("train", "valid"), split, strict=True):
        with atomic_path(folder / f"{name}.{suffix}") as path:
            path.write_text(content, encoding="utf-8")
    if question.data == "pairs":
        lines = split[0].replace("\t", "\n").splitlines()
        train_tokenizer("byte_bpe", lines, VOCAB_SIZE).save(folder / "tokenizer.json")


def split_text(config: StudyConfig) -> tuple[str, str]:
    """Training and held-out text."""
    if config.text is None:
        train, valid = builtin_pairs()
        return tuple("".join(f"{pair.target}\n" for pair in part) for part in (train, valid))  # type: ignore[return-value]
    text = read_text(config.text)
    if len(text) < MIN_CHARACTERS:
        wrong = _("{n} characters are too few", n=len(text))
        raise QkvError(config.text, wrong, _("give at least {n}", n=f"{MIN_CHARACTERS:,}"))
    held_out = int(VALID_FRACTION * len(text))
    return text[:-held_out], text[-held_out:]


def split_pairs(config: StudyConfig) -> tuple[str, str]:
    """Training and held-out sentence pairs, tab-separated."""
    if config.source is None or config.target is None:
        train, valid = builtin_pairs()
        return tuple(  # type: ignore[return-value]
            "".join(f"{pair.source}\t{pair.target}\n" for pair in part) for part in (train, valid)
        )
    sources, targets = (read_text(path).splitlines() for path in (config.source, config.target))
    if len(sources) != len(targets):
        wrong = _("{n_source} lines for {n_target}", n_source=len(sources), n_target=len(targets))
        raise QkvError(config.target, wrong, _("give files aligned by line"))
    if len(sources) < MIN_PAIRS:
        wrong = _("{n} pairs are too few", n=len(sources))
        raise QkvError(config.source, wrong, _("give at least {n}", n=MIN_PAIRS))
    rows = ["\t".join(" ".join(part.split()) for part in pair) + "\n"
            for pair in zip(sources, targets, strict=True)]  # fmt: skip
    held_out = int(VALID_FRACTION * len(rows))
    return "".join(rows[:-held_out]), "".join(rows[-held_out:])


def read_text(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        wrong = _("0x{byte:02x} is not UTF-8", byte=error.object[error.start])
        raise QkvError(path, wrong, _("convert the file to UTF-8")) from None
