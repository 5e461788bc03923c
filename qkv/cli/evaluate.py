"""`qkv evaluate`: how good a model is, in the numbers of its field; what is given says which numbers are meant.

In: a model folder and sentences with their translations, a text, or pairs with scores. Out: BLEU and chrF; perplexity and
bits per byte; similarity and retrieval. Told in docs/translation.md, docs/generation.md and docs/embedding.md, "Scores".
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from qkv.cli.translate import BatchSize, BeamSize, Device, Folder, Json, LengthPenalty
from qkv.errors import QkvError
from qkv.messages import _

Source = Annotated[Path | None, typer.Option(help=_("sentences, one a line"))]
Target = Annotated[Path | None, typer.Option(help=_("their right translations"))]
Language = Annotated[str, typer.Option(help=_("of the target, such as zh; else guessed"))]
Tokenize = Annotated[str, typer.Option(help=_("BLEU's tokenizer; none for tokenised files"))]
Against = Annotated[
    Path | None, typer.Option(help=_("a model folder or a file of outputs to compare with"))
]
Output = Annotated[Path | None, typer.Option(help=_("write the translations here"))]
Text = Annotated[Path | None, typer.Option(help=_("a text, for a model that writes"))]
Int8 = Annotated[
    bool, typer.Option("--int8", help=_("with 8-bit matrices; of a text, what they cost"))
]
Pairs = Annotated[
    Path | None, typer.Option(help=_("two sentences and a score a line, for an embedder"))
]


def evaluate(
    folder: Folder,
    source: Source = None,
    target: Target = None,
    text: Text = None,
    int8: Int8 = False,
    pairs: Pairs = None,
    language: Language = "",
    tokenize: Tokenize = "",
    beam_size: BeamSize = 4,
    length_penalty: LengthPenalty = 0.6,
    batch_size: BatchSize = 32,
    against: Against = None,
    output: Output = None,
    device: Device = "cpu",
    as_json: Json = False,
) -> None:
    """One kind of files, one kind of score."""
    _refuse_mixtures(source, target, text, pairs)
    of_vectors = bool(pairs) or (not text and _is_embedder(folder))
    if text or of_vectors:
        _refuse_idle(
            {
                "--language": language,
                "--tokenize": tokenize,
                "--against": against,
                "--output": output,
            }
        )
    if text:
        from qkv.cli.evaluate_text import evaluate_text

        return evaluate_text(folder, text, device, as_json, int8)
    if int8 and of_vectors:
        raise QkvError("--int8", _("vectors are made in float32"), _("leave it out"))
    if pairs:
        from qkv.cli.evaluate_pairs import evaluate_pairs

        return evaluate_pairs(folder, pairs, device, as_json)
    assert source and target
    if of_vectors:
        from qkv.cli.evaluate_pairs import evaluate_retrieval

        return evaluate_retrieval(folder, source, target, device, as_json)
    from qkv.cli.evaluate_translation import evaluate_translation
    from qkv.generate.config import TranslationConfig

    config = TranslationConfig(beam_size, length_penalty, batch_size=batch_size, details=False)
    return evaluate_translation(
        folder,
        (source, target),
        (language, tokenize),
        config,
        against,
        output,
        device,
        as_json,
        int8,
    )


def _refuse_mixtures(
    source: Path | None, target: Path | None, text: Path | None, pairs: Path | None
) -> None:
    kinds = [bool(source or target), bool(text), bool(pairs)]
    right = _("give --source and --target, or --text, or --pairs")
    if not any(kinds):
        raise QkvError("qkv evaluate", _("nothing to measure on"), right)
    if sum(kinds) > 1 or bool(source) != bool(target):
        raise QkvError("qkv evaluate", _("half a question, or two at once"), right)


def _refuse_idle(options: Mapping[str, object]) -> None:
    """What would be given and do nothing."""
    for name, given in options.items():
        if given:
            raise QkvError(
                name, _("only for a translator's --source and --target"), _("leave it out")
            )


def _is_embedder(folder: Path) -> bool:
    """Two aligned files are translations for a translator, and pairs to be found for an encoder alone."""
    from qkv.allocator import keep_pages

    keep_pages()  # before torch is imported
    from qkv.checkpoint.load import load_spec

    return load_spec(folder).decoder is None
