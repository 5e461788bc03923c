"""From files to a task: tokenizers learned, text encoded, everything kept for the next time.

In: a recipe that names files. Out: a Translation with its vocabularies and its ids on disk.
Told in docs/training.md, "Your own files".
"""

import re
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

from qkv.data.corpus import Pairs
from qkv.data.pairs import Share, keep_ids, keep_pairs
from qkv.data.store import Store, TextStore
from qkv.errors import QkvError
from qkv.language import say
from qkv.text.learn import learn
from qkv.text.tokenizer import Tokenizer
from qkv.train.recipe import Recipe
from qkv.train.translation import PairData, Translation

Texts = tuple[TextStore, TextStore]
SAMPLE = 2_000  # lines looked at to see whether two files are of one language
WORD = re.compile(r"[^\W\d_一-鿿]+|[一-鿿]")


def prepare_translation(recipe: Recipe, folder: Path) -> Translation:
    """All that training needs besides the model; what is there already and still right is used again."""
    train, valid = _read(recipe, folder)
    for side, name in enumerate(("source", "target")):
        _refuse_strangers(train[side], valid[side], getattr(recipe, f"valid_{name}") or name)
    source, target = _tokenizers(recipe, folder, train)
    variants = recipe.bpe_variants if recipe.bpe_dropout else 1
    return Translation(
        recipe,
        _encoded(folder / "train", train, (source, target), recipe.bpe_dropout, variants),
        _encoded(folder / "valid", valid, (source, target), 0.0, 1),
        source, target,
    )  # fmt: skip


def _read(recipe: Recipe, folder: Path) -> tuple[Texts, Texts]:
    """The training and the held-out pairs; without files for the latter, some of the former are held out."""
    if recipe.source is None:
        wrong = say("no text to learn from", "没有训练文本")
        raise QkvError("source", wrong, say("give --source and --target, or a recipe", "请给 --source 与 --target，或一个配方"))
    pairs = Pairs(*(file for file in (recipe.source, recipe.target) if file))
    if recipe.valid_source:
        held_out = Pairs(*(file for file in (recipe.valid_source, recipe.valid_target) if file))
        return keep_pairs(folder / "train", pairs), keep_pairs(folder / "valid", held_out)
    count = sum(1 for _ in pairs)
    every = max(100, -(-count // 1_000)) if count >= 200 else 10
    return keep_pairs(folder / "train", Share(pairs, every, False)), keep_pairs(folder / "valid", Share(pairs, every, True))


def _refuse_strangers(train: TextStore, valid: TextStore, name: str) -> None:
    """Held-out text that shares not one word with the training text is of another language, or swapped."""
    known, asked = _words(train), _words(valid)
    if asked and not known & asked:
        wrong = say("shares no word with the training text", "与训练文本没有任何共同的词")
        raise QkvError(name, wrong, say("are source and target swapped?", "源与目标是否对调了？"))


def _words(texts: TextStore) -> set[str]:
    step = max(1, len(texts) // SAMPLE)
    return {word for i in range(0, len(texts), step) for word in WORD.findall(texts[i].lower())}


def _tokenizers(recipe: Recipe, folder: Path, train: Texts) -> tuple[Tokenizer, Tokenizer]:
    if recipe.shared_vocab:
        both = _learned(recipe, folder / "tokenizer.json", train)
        return both, both
    return _learned(recipe, folder / "source.json", train[:1]), _learned(recipe, folder / "target.json", train[1:])


def _learned(recipe: Recipe, path: Path, texts: tuple[TextStore, ...]) -> Tokenizer:
    """Learned once and kept: resuming must not depend on learning again."""
    if path.is_file():
        return Tokenizer.load(path)
    tokenizer = learn(recipe.tokenizer, chain.from_iterable(texts), recipe.vocab_size)
    # Words and characters are what there is; merges were asked for by number and must not silently be fewer.
    if recipe.tokenizer not in ("word", "char") and tokenizer.vocab_size < recipe.vocab_size:
        found, asked = tokenizer.vocab_size, recipe.vocab_size
        wrong = say(f"this text supports only {found:,} pieces, not {asked:,}", f"这些文本只够 {found:,} 个片段，而不是 {asked:,} 个")
        raise QkvError("vocab_size", wrong, say(f"use at most {found:,}", f"最多用 {found:,}"))
    tokenizer.save(path)
    return tokenizer


def _encoded(folder: Path, texts: Texts, tokenizers: tuple[Tokenizer, Tokenizer], dropout: float, variants: int) -> PairData:
    def stores(side: int) -> Iterator[Store]:
        for number in range(variants):
            yield keep_ids(folder / f"{('source', 'target')[side]}-ids-{number}", texts[side], tokenizers[side], dropout)

    return PairData(tuple(stores(0)), tuple(stores(1)), *texts)


