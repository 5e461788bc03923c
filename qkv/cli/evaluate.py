"""`qkv evaluate`: the metrics of a model on files; the options choose the metrics.

--source and --target: BLEU and chrF, or retrieval of an embedding model; --text: perplexity and
bits per byte; --pairs: similarity. See docs/guides/translation.md, docs/guides/generation.md,
docs/guides/embeddings.md.
"""

from collections.abc import Mapping
from pathlib import Path

from qkv.allocator import keep_pages
from qkv.cli.options import BatchSize, BeamSize, Device, Folder, Json, LengthPenalty
from qkv.cli.output import print_json
from qkv.cli.parameters import option
from qkv.errors import QkvError
from qkv.files import check_output
from qkv.messages import _


def evaluate(
    folder: Folder,
    source: Path | None = option(None, "source sentences, one per line"),
    target: Path | None = option(
        None, "reference translations (for an embedder: the matching sentences)"
    ),
    text: Path | None = option(
        None, "a text file, folder or JSONL: perplexity of a language model"
    ),
    context_length: int | None = option(
        None, "with --text: tokens of a window, also more than in training; default: as the model"
    ),
    int8: bool = option(
        False, "int8 quantization; with --text, compares its perplexity with float32", "--int8"
    ),
    pairs: Path | None = option(
        None, "two sentences and a similarity score per line, for an embedding model"
    ),
    language: str = option("", "target language, such as zh; default: detected"),
    tokenize: str = option("", "sacrebleu tokenizer; none for tokenized files"),
    beam_size: BeamSize = 4,
    length_penalty: LengthPenalty = 0.6,
    batch_size: BatchSize = 32,
    baseline: Path | None = option(
        None, "a model folder or a file of outputs, compared by paired bootstrap"
    ),
    out: Path | None = option(None, "file for the translations"),
    device: Device = "cpu",
    as_json: Json = False,
) -> None:
    """Evaluate a model: BLEU/chrF, perplexity, retrieval and similarity."""
    _check_data_options(source, target, text, pairs)
    if out:
        check_output(out, [folder, source, target, text, pairs, baseline])
    keep_pages()  # before torch is imported
    embedding = bool(pairs) or (not text and _is_embedder(folder))
    if text or embedding:
        _check_unused(
            {"--language": language, "--tokenize": tokenize, "--baseline": baseline, "--out": out}
        )
    if context_length is not None and not text:
        raise QkvError("--context-length", _("only for a language model with --text"), _("omit it"))
    if int8 and embedding:
        raise QkvError("--int8", _("embeddings are computed in float32"), _("omit it"))
    if text:
        from qkv.cli.evaluate_text import evaluate_text

        report, output = evaluate_text(folder, text, device, int8, context_length)
    elif pairs:
        from qkv.cli.evaluate_pairs import evaluate_pairs

        report, output = evaluate_pairs(folder, pairs, device)
    elif embedding:
        from qkv.cli.evaluate_pairs import evaluate_retrieval

        assert source and target
        report, output = evaluate_retrieval(folder, source, target, device)
    else:
        from qkv.cli.evaluate_translation import evaluate_translation
        from qkv.generate.config import TranslationConfig

        config = TranslationConfig(beam_size, length_penalty, batch_size=batch_size, details=False)
        assert source and target
        files, metric_options = (source, target), (language, tokenize)
        report, output = evaluate_translation(
            folder, files, metric_options, config, baseline, out, device, int8
        )
    if as_json:
        print_json(report, indent=None if text else 2)
    else:
        print(output)


def _check_data_options(
    source: Path | None, target: Path | None, text: Path | None, pairs: Path | None
) -> None:
    kinds = [bool(source or target), bool(text), bool(pairs)]
    if not any(kinds) or sum(kinds) > 1 or bool(source) != bool(target):
        wrong = _("mixed or incomplete data options") if any(kinds) else _("no data")
        right = _("give --source with --target, or --text, or --pairs; not a mixture")
        raise QkvError("qkv evaluate", wrong, right)


def _check_unused(options: Mapping[str, object]) -> None:
    """Reject options that would have no effect."""
    for name, value in options.items():
        if value:
            raise QkvError(
                name, _("only for a translation model with --source and --target"), _("omit it")
            )


def _is_embedder(folder: Path) -> bool:
    """Whether the model is encoder-only: then --source and --target are evaluated by retrieval."""
    from qkv.checkpoint.load import load_spec

    return load_spec(folder).decoder is None
