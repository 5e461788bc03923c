"""Prepare the translation task: train tokenizers, encode the pairs, store them in the run folder.

See docs/guides/training.md, "Input files".
"""

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from qkv.data.alignments import read_alignment, store_token_links, token_links
from qkv.data.corpus import Pairs, check_readable
from qkv.data.hold_out import MIN_LINES, hold_out_every
from qkv.data.pairs import store_ids, store_pairs
from qkv.data.store import Store, TextStore
from qkv.errors import QkvError
from qkv.evaluate.scores import make_bleu
from qkv.generate.alignment import id_spans
from qkv.generate.config import TranslationConfig
from qkv.messages import _
from qkv.model.check_spec import check_spec
from qkv.text.tokenizer import Tokenizer
from qkv.text.word_boundaries import word_spans
from qkv.train.recipe import TranslateRecipe
from qkv.train.task_specs import translation_spec
from qkv.train.translation import PairData, TranslationTask
from qkv.train.vocabulary import tokenizer_of_stores

__all__ = ["prepare_translation"]

Texts = tuple[TextStore, TextStore]
Tokenizers = tuple[Tokenizer, Tokenizer]
SIDES = ("source", "target")
BPE_KINDS = ("bpe", "byte_bpe")
SAMPLED_LINES = 2_000  # compared to check that two files have the same language
WORD = re.compile(r"[^\W\d_一-鿿]+|[一-鿿]")


def prepare_translation(
    recipe: TranslateRecipe, folder: Path, resume: bool = False
) -> TranslationTask:
    """The task with its tokenizers and ids; files that are up to date are reused."""
    check_recipe(recipe)
    train, valid, pairs = _read(recipe, folder)
    if recipe.valid_source:
        _check_shared_words(train[0], valid[0], recipe.valid_source)
        _check_shared_words(train[1], valid[1], recipe.valid_target or recipe.valid_source)
    tokenizers = _tokenizers(recipe, folder, train, resume)
    variants = recipe.bpe_variants if recipe.bpe_dropout else 1
    data = _encoded(folder / "train", train, tokenizers, recipe.bpe_dropout, variants)
    if recipe.alignment:
        links = _token_links(recipe, folder / "train", data, pairs, tokenizers)
        data = replace(data, token_links=tuple(links))
    held_out = _encoded(folder / "valid", valid, tokenizers)
    return TranslationTask(recipe, data, held_out, *tokenizers)


def check_recipe(recipe: TranslateRecipe) -> None:
    """Check what can be checked before any text is read."""
    source_vocab_size = None if recipe.shared_vocab else recipe.vocab_size
    check_spec(translation_spec(recipe.model, recipe.vocab_size, source_vocab_size), "model")
    if recipe.bpe_dropout and recipe.tokenizer not in BPE_KINDS:
        wrong = _("'{tokenizer}' has no merges to skip", tokenizer=recipe.tokenizer)
        raise QkvError("bpe_dropout", wrong, _("use 0, or tokenizer bpe or byte_bpe"))
    TranslationConfig(beam_size=recipe.beam_size, length_penalty=recipe.length_penalty)
    if recipe.bleu_tokenize:
        make_bleu(recipe.bleu_tokenize, "bleu_tokenize")


def _read(recipe: TranslateRecipe, folder: Path) -> tuple[Texts, Texts, Pairs]:
    """The training pairs, the held-out pairs, and the files of the training pairs."""
    if recipe.source is None:
        wrong = _("no training text")
        raise QkvError("source", wrong, _("give --source and --target, or a recipe"))
    if recipe.valid_target and not recipe.valid_source:
        wrong = _("given without valid_source")
        raise QkvError("valid_target", wrong, _("give both files"))
    pairs = Pairs(*filter(None, (recipe.source, recipe.target)))
    valid_files = list(filter(None, (recipe.valid_source, recipe.valid_target)))
    check_readable(filter(None, [*pairs.paths, *map(Path, valid_files), recipe.alignment]))
    train, valid = (pairs, Pairs(*valid_files)) if valid_files else _split(pairs, recipe.source)
    return store_pairs(folder / "train", train), store_pairs(folder / "valid", valid), train


def _split(pairs: Pairs, name: str) -> tuple[Pairs, Pairs]:
    """The pairs to train on and the held-out pairs."""
    count = sum(1 for _ in pairs)
    if count < MIN_LINES:
        wrong = _("only {count} pairs, too few to hold some out for validation", count=count)
        right = _("give at least {min_pairs}, or --valid-source", min_pairs=MIN_LINES)
        raise QkvError(name, wrong, right)
    every = hold_out_every(count)
    return pairs.subset(every, held_out=False), pairs.subset(every, held_out=True)


def _check_shared_words(train: TextStore, valid: TextStore, name: str) -> None:
    """Held-out text without a word of the training text is in another language, or swapped."""
    known, held_out = _words(train), _words(valid)
    if held_out and not known & held_out:
        wrong = _("has no word in common with the training text")
        raise QkvError(name, wrong, _("are source and target swapped?"))


def _words(texts: TextStore) -> set[str]:
    step = max(1, len(texts) // SAMPLED_LINES)
    return {word for i in range(0, len(texts), step) for word in WORD.findall(texts[i].lower())}


def _tokenizers(recipe: TranslateRecipe, folder: Path, train: Texts, resume: bool) -> Tokenizers:
    if recipe.shared_vocab:
        shared = tokenizer_of_stores(recipe, folder / "tokenizer.json", train, resume)
        return shared, shared
    source, target = (
        tokenizer_of_stores(recipe, folder / f"{side}.json", [texts], resume)
        for side, texts in zip(SIDES, train, strict=True)
    )
    return source, target


def _encoded(
    folder: Path, texts: Texts, tokenizers: Tokenizers, dropout: float = 0.0, variants: int = 1
) -> PairData:
    sources, targets = (
        tuple(
            store_ids(folder / f"{side}-ids-{number}", lines, tokenizer, dropout)
            for number in range(variants)
        )
        for side, lines, tokenizer in zip(SIDES, texts, tokenizers, strict=True)
    )
    return PairData(sources, targets, *texts)


def _token_links(
    recipe: TranslateRecipe, folder: Path, data: PairData, pairs: Pairs, tokenizers: Tokenizers
) -> Iterator[Store]:
    """The word alignments as token links, for each encoding of the pairs."""
    assert recipe.alignment is not None
    for number, stores in enumerate(zip(data.sources, data.targets, strict=True)):
        sides = list(zip((data.source_texts, data.target_texts), stores, tokenizers, strict=True))
        rows = (
            token_links(
                links,
                [word_spans(texts[index]) for texts, _ids, _tokenizer in sides],
                # The ids of BPE-dropout differ from encode(text).
                [
                    id_spans(tokenizer, ids[index].tolist())
                    if recipe.bpe_dropout
                    else tokenizer.offsets(texts[index])
                    for texts, ids, tokenizer in sides
                ],
            )
            for index, links in enumerate(read_alignment(pairs, recipe.alignment))
        )
        yield store_token_links(folder / f"alignment-{number}", rows, recipe.alignment, stores)
