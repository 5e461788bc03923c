"""From files to a task: tokenizers learned, text encoded, everything kept for the next time.

In: a recipe that names files. Out: a Translation with its vocabularies and its ids on disk.
Told in docs/training.md, "Your own files".
"""

import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain
from pathlib import Path

from qkv.data.alignments import keep_token_links, read_alignment, token_links
from qkv.data.corpus import Pairs, refuse_unreadable
from qkv.data.hold_out import FEWEST, hold_out_every
from qkv.data.pairs import Share, keep_ids, keep_pairs
from qkv.data.store import Store, TextStore
from qkv.errors import QkvError
from qkv.evaluate.scores import bleu_by
from qkv.generate.alignment import id_spans
from qkv.generate.config import TranslationConfig
from qkv.messages import _
from qkv.model.door import check
from qkv.text.tokenizer import Tokenizer
from qkv.text.words import word_spans
from qkv.train.recipe import TranslateRecipe
from qkv.train.task_specs import translation_spec
from qkv.train.translation import PairData, Translation
from qkv.train.vocabulary import kept_tokenizer, run_choices

Texts = tuple[TextStore, TextStore]
MERGING = ("bpe", "bytes")  # tokenizers that have merges
SAMPLE = 2_000  # lines looked at to see whether two files are of one language
WORD = re.compile(r"[^\W\d_一-鿿]+|[一-鿿]")


def prepare_translation(recipe: TranslateRecipe, folder: Path, resume: bool = False) -> Translation:
    """All that training needs besides the model; what is there already and still right is used again."""
    refuse_impossible(recipe)
    train, valid, shares = _read(recipe, folder)
    if recipe.valid_source:
        _refuse_strangers(train[0], valid[0], recipe.valid_source)
        _refuse_strangers(train[1], valid[1], recipe.valid_target or recipe.valid_source)
    source, target = _tokenizers(recipe, folder, train, resume)
    variants = recipe.bpe_variants if recipe.bpe_dropout else 1
    data = _encoded(folder / "train", train, (source, target), recipe.bpe_dropout, variants)
    if recipe.alignment:
        data = replace(
            data,
            token_links=tuple(
                _token_links(recipe, folder / "train", data, shares, (source, target))
            ),
        )
    return Translation(
        recipe, data, _encoded(folder / "valid", valid, (source, target), 0.0, 1), source, target
    )


def refuse_impossible(recipe: TranslateRecipe) -> None:
    """What the recipe alone shows to be wrong, said before any text is read; the vocabularies do not matter yet."""
    check(
        translation_spec(
            recipe.model, recipe.vocab_size, None if recipe.shared_vocab else recipe.vocab_size
        ),
        "model",
    )
    if recipe.bpe_dropout and recipe.tokenizer not in MERGING:
        wrong = _("'{tokenizer}' has no merges to leave out", tokenizer=recipe.tokenizer)
        raise QkvError("bpe_dropout", wrong, _("use 0, or tokenizer bpe or bytes"))
    TranslationConfig(
        beam_size=recipe.beam_size, length_penalty=recipe.length_penalty
    )  # of the final score
    if recipe.bleu_tokenize:
        bleu_by(recipe.bleu_tokenize, "bleu_tokenize")


def _read(recipe: TranslateRecipe, folder: Path) -> tuple[Texts, Texts, Pairs | Share]:
    """The training and the held-out pairs; without files for the latter, some of the former are held out."""
    if recipe.source is None:
        wrong = _("no text to learn from")
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
    refuse_unreadable(
        [
            *pairs.paths,
            *(held_out.paths if held_out else ()),
            *([recipe.alignment] if recipe.alignment else ()),
        ]
    )
    if held_out:
        return keep_pairs(folder / "train", pairs), keep_pairs(folder / "valid", held_out), pairs
    count = sum(1 for _ in pairs)
    if count < FEWEST:
        wrong = _("only {count} pairs, too few to hold some out", count=count)
        raise QkvError(
            recipe.source, wrong, _("give {fewest} or more, or --valid-source", fewest=FEWEST)
        )
    every = hold_out_every(count)
    share = Share(pairs, every, False)
    return (
        keep_pairs(folder / "train", share),
        keep_pairs(folder / "valid", Share(pairs, every, True)),
        share,
    )


def _refuse_strangers(train: TextStore, valid: TextStore, name: str) -> None:
    """Held-out text that shares not one word with the training text is of another language, or swapped."""
    known, asked = _words(train), _words(valid)
    if asked and not known & asked:
        wrong = _("shares no word with the training text")
        raise QkvError(name, wrong, _("are source and target swapped?"))


def _words(texts: TextStore) -> set[str]:
    step = max(1, len(texts) // SAMPLE)
    return {word for i in range(0, len(texts), step) for word in WORD.findall(texts[i].lower())}


def _tokenizers(
    recipe: TranslateRecipe, folder: Path, train: Texts, resume: bool
) -> tuple[Tokenizer, Tokenizer]:
    if recipe.shared_vocab:
        both = _kept(recipe, folder / "tokenizer.json", train, resume)
        return both, both
    source, target = (
        _kept(recipe, folder / f"{('source', 'target')[side]}.json", (train[side],), resume)
        for side in (0, 1)
    )
    return source, target


def _kept(
    recipe: TranslateRecipe, path: Path, texts: tuple[TextStore, ...], resume: bool
) -> Tokenizer:
    checksums = [one.rows.checksum for one in texts]
    choices = run_choices(recipe.tokenizer, recipe.add_prefix_space)
    return kept_tokenizer(
        path,
        recipe.tokenizer,
        recipe.vocab_size,
        chain.from_iterable(texts),
        checksums,
        resume,
        choices,
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
            yield keep_ids(
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
    pairs: Pairs | Share,
    tokenizers: tuple[Tokenizer, Tokenizer],
) -> Iterator[Store]:
    """The word alignments as token links, once for each encoding of the pairs."""
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

        yield keep_token_links(folder / f"alignment-{number}", rows(), recipe.alignment, stores)


def _token_spans(
    tokenizer: Tokenizer, text: str, ids: list[int], dropout: float
) -> list[tuple[int, int]]:
    """The characters of each token; with BPE-dropout the ids are not those of encode(text), so they are decoded one by one."""
    if not dropout:
        return tokenizer.offsets(text)
    return id_spans(tokenizer, ids)
