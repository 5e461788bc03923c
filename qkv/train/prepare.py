"""Prepare the translation task: train tokenizers, encode the pairs, store them in the run folder.

See docs/training.md, "Input files".
"""

import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain
from pathlib import Path

from qkv.data.alignments import read_alignment, store_token_links, token_links
from qkv.data.corpus import Pairs, check_readable
from qkv.data.hold_out import MIN_LINES, hold_out_every
from qkv.data.pairs import Subset, store_ids, store_pairs
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
from qkv.train.vocabulary import run_options, train_or_load_tokenizer

Texts = tuple[TextStore, TextStore]
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
    source, target = _tokenizers(recipe, folder, train, resume)
    variants = recipe.bpe_variants if recipe.bpe_dropout else 1
    data = _encoded(folder / "train", train, (source, target), recipe.bpe_dropout, variants)
    if recipe.alignment:
        data = replace(
            data,
            token_links=tuple(
                _token_links(recipe, folder / "train", data, pairs, (source, target))
            ),
        )
    return TranslationTask(
        recipe, data, _encoded(folder / "valid", valid, (source, target), 0.0, 1), source, target
    )


def check_recipe(recipe: TranslateRecipe) -> None:
    """Check what can be checked before any text is read."""
    check_spec(
        translation_spec(
            recipe.model, recipe.vocab_size, None if recipe.shared_vocab else recipe.vocab_size
        ),
        "model",
    )
    if recipe.bpe_dropout and recipe.tokenizer not in BPE_KINDS:
        wrong = _("'{tokenizer}' has no merges to skip", tokenizer=recipe.tokenizer)
        raise QkvError("bpe_dropout", wrong, _("use 0, or tokenizer bpe or byte_bpe"))
    TranslationConfig(beam_size=recipe.beam_size, length_penalty=recipe.length_penalty)
    if recipe.bleu_tokenize:
        make_bleu(recipe.bleu_tokenize, "bleu_tokenize")


def _read(recipe: TranslateRecipe, folder: Path) -> tuple[Texts, Texts, Pairs | Subset]:
    """The training pairs, the held-out pairs, and the files of the training pairs."""
    if recipe.source is None:
        wrong = _("no training text")
        raise QkvError("source", wrong, _("give --source and --target, or a recipe"))
    if recipe.valid_target and not recipe.valid_source:
        wrong = _("given without valid_source")
        raise QkvError("valid_target", wrong, _("give both files"))
    pairs = Pairs(*(file for file in (recipe.source, recipe.target) if file))
    held_out = (
        Pairs(*(file for file in (recipe.valid_source, recipe.valid_target) if file))
        if recipe.valid_source
        else None
    )
    check_readable(
        [
            *pairs.paths,
            *(held_out.paths if held_out else ()),
            *([recipe.alignment] if recipe.alignment else ()),
        ]
    )
    if held_out:
        return store_pairs(folder / "train", pairs), store_pairs(folder / "valid", held_out), pairs
    count = sum(1 for _ in pairs)
    if count < MIN_LINES:
        wrong = _("only {count} pairs, too few to hold some out for validation", count=count)
        right = _("give at least {min_pairs}, or --valid-source", min_pairs=MIN_LINES)
        raise QkvError(recipe.source, wrong, right)
    every = hold_out_every(count)
    train, valid = Subset(pairs, every, False), Subset(pairs, every, True)
    return store_pairs(folder / "train", train), store_pairs(folder / "valid", valid), train


def _check_shared_words(train: TextStore, valid: TextStore, name: str) -> None:
    """Held-out text without a word of the training text is in another language, or swapped."""
    known, held_out = _words(train), _words(valid)
    if held_out and not known & held_out:
        wrong = _("has no word in common with the training text")
        raise QkvError(name, wrong, _("are source and target swapped?"))


def _words(texts: TextStore) -> set[str]:
    step = max(1, len(texts) // SAMPLED_LINES)
    return {word for i in range(0, len(texts), step) for word in WORD.findall(texts[i].lower())}


def _tokenizers(
    recipe: TranslateRecipe, folder: Path, train: Texts, resume: bool
) -> tuple[Tokenizer, Tokenizer]:
    if recipe.shared_vocab:
        shared = _run_tokenizer(recipe, folder / "tokenizer.json", train, resume)
        return shared, shared
    source, target = (
        _run_tokenizer(
            recipe, folder / f"{('source', 'target')[side]}.json", (train[side],), resume
        )
        for side in (0, 1)
    )
    return source, target


def _run_tokenizer(
    recipe: TranslateRecipe, path: Path, texts: tuple[TextStore, ...], resume: bool
) -> Tokenizer:
    checksums = [store.rows.checksum for store in texts]
    options = run_options(recipe.tokenizer, recipe.add_prefix_space)
    return train_or_load_tokenizer(
        path,
        recipe.tokenizer,
        recipe.vocab_size,
        chain.from_iterable(texts),
        checksums,
        resume,
        options,
    )


def _encoded(
    folder: Path,
    texts: Texts,
    tokenizers: tuple[Tokenizer, Tokenizer],
    dropout: float,
    variants: int,
) -> PairData:
    def stores(side: int) -> Iterator[Store]:
        for number in range(variants):
            yield store_ids(
                folder / f"{('source', 'target')[side]}-ids-{number}",
                texts[side],
                tokenizers[side],
                dropout,
            )

    return PairData(tuple(stores(0)), tuple(stores(1)), *texts)


def _token_links(
    recipe: TranslateRecipe,
    folder: Path,
    data: PairData,
    pairs: Pairs | Subset,
    tokenizers: tuple[Tokenizer, Tokenizer],
) -> Iterator[Store]:
    """The word alignments as token links, for each encoding of the pairs."""
    assert recipe.alignment is not None
    for number, stores in enumerate(zip(data.sources, data.targets, strict=True)):

        def rows(stores: tuple[Store, Store] = stores) -> Iterator[list[list[int]]]:
            texts = data.source_texts, data.target_texts
            for index, links in enumerate(read_alignment(pairs, str(recipe.alignment))):
                pair = texts[0][index], texts[1][index]
                spans = [
                    _token_spans(
                        tokenizers[side],
                        pair[side],
                        stores[side][index].tolist(),
                        recipe.bpe_dropout,
                    )
                    for side in (0, 1)
                ]
                yield token_links(
                    links, (word_spans(pair[0]), word_spans(pair[1])), (spans[0], spans[1])
                )

        yield store_token_links(folder / f"alignment-{number}", rows(), recipe.alignment, stores)


def _token_spans(
    tokenizer: Tokenizer, text: str, ids: list[int], dropout: float
) -> list[tuple[int, int]]:
    """The character span of each token; ids of BPE-dropout differ from encode(text)."""
    if not dropout:
        return tokenizer.offsets(text)
    return id_spans(tokenizer, ids)
