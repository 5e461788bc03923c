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
from qkv.language import say

Source = Annotated[Path | None, typer.Option(help=say("sentences, one a line", "原文，每行一句"))]
Target = Annotated[Path | None, typer.Option(help=say("their right translations", "参考译文"))]
Language = Annotated[str, typer.Option(help=say("of the target, such as zh; else guessed", "目标语言，如 zh；不给则猜"))]
Tokenize = Annotated[str, typer.Option(help=say("BLEU's tokenizer; none for tokenised files", "BLEU 分词方式；已分词文件用 none"))]
Against = Annotated[Path | None, typer.Option(help=say("a model folder or a file of outputs to compare with", "用来比较的模型文件夹或译文文件"))]
Output = Annotated[Path | None, typer.Option(help=say("write the translations here", "译文写入此文件"))]
Text = Annotated[Path | None, typer.Option(help=say("a text, for a model that writes", "供续写模型评测的文本"))]
Int8 = Annotated[bool, typer.Option("--int8", help=say("with 8-bit matrices; of a text, what they cost", "用 8 位矩阵；对文本则给出其代价"))]
Pairs = Annotated[Path | None, typer.Option(help=say("two sentences and a score a line, for an embedder", "每行两句与一个分数，供句向量模型"))]


def evaluate(
    folder: Folder, source: Source = None, target: Target = None, text: Text = None, int8: Int8 = False, pairs: Pairs = None,
    language: Language = "", tokenize: Tokenize = "",
    beam_size: BeamSize = 4, length_penalty: LengthPenalty = 0.6, batch_size: BatchSize = 32,
    against: Against = None, output: Output = None, device: Device = "cpu", as_json: Json = False,
) -> None:
    """One kind of files, one kind of score."""
    _refuse_mixtures(source, target, text, pairs)
    of_vectors = bool(pairs) or (not text and _is_embedder(folder))
    if text or of_vectors:
        _refuse_idle({"--language": language, "--tokenize": tokenize, "--against": against, "--output": output})
    if text:
        from qkv.cli.evaluate_text import evaluate_text

        return evaluate_text(folder, text, device, as_json, int8)
    if int8 and of_vectors:
        raise QkvError("--int8", say("vectors are made in float32", "句向量用 float32 计算"), say("leave it out", "请去掉"))
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
    return evaluate_translation(folder, (source, target), (language, tokenize), config, against, output, device, as_json, int8)


def _refuse_mixtures(source: Path | None, target: Path | None, text: Path | None, pairs: Path | None) -> None:
    kinds = [bool(source or target), bool(text), bool(pairs)]
    right = say("give --source and --target, or --text, or --pairs", "请给 --source 与 --target，或 --text，或 --pairs")
    if not any(kinds):
        raise QkvError("qkv evaluate", say("nothing to measure on", "没有可供评测的文件"), right)
    if sum(kinds) > 1 or bool(source) != bool(target):
        raise QkvError("qkv evaluate", say("half a question, or two at once", "只给了一半，或同时给了两种"), right)


def _refuse_idle(options: Mapping[str, object]) -> None:
    """What would be given and do nothing."""
    for name, given in options.items():
        if given:
            raise QkvError(name, say("only for a translator's --source and --target", "只用于翻译模型的 --source 与 --target"),
                           say("leave it out", "请去掉"))


def _is_embedder(folder: Path) -> bool:
    """Two aligned files are translations for a translator, and pairs to be found for an encoder alone."""
    from qkv.allocator import keep_pages

    keep_pages()  # before torch is imported
    from qkv.checkpoint.load import load_spec

    return load_spec(folder).decoder is None
