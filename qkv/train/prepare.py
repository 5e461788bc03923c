"""From files to a task: tokenizers learned, text encoded, everything kept for the next time.

In: a recipe that names files. Out: a Translation with its vocabularies and its ids on disk.
Told in docs/training.md, "Your own files".
"""

import json
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
from qkv.text.lines import write_text
from qkv.text.pipeline import Choices
from qkv.text.tokenizer import Tokenizer
from qkv.train.recipe import TranslateRecipe
from qkv.train.translation import PairData, Translation

Texts = tuple[TextStore, TextStore]
FEWEST = 10     # pairs of which one can be held out
SAMPLE = 2_000  # lines looked at to see whether two files are of one language
WORD = re.compile(r"[^\W\d_一-鿿]+|[一-鿿]")


def prepare_translation(recipe: TranslateRecipe, folder: Path, resume: bool = False) -> Translation:
    """All that training needs besides the model; what is there already and still right is used again."""
    train, valid = _read(recipe, folder)
    if recipe.valid_source:
        _refuse_strangers(train[0], valid[0], recipe.valid_source)
        _refuse_strangers(train[1], valid[1], recipe.valid_target or recipe.valid_source)
    source, target = _tokenizers(recipe, folder, train, resume)
    variants = recipe.bpe_variants if recipe.bpe_dropout else 1
    return Translation(
        recipe,
        _encoded(folder / "train", train, (source, target), recipe.bpe_dropout, variants),
        _encoded(folder / "valid", valid, (source, target), 0.0, 1),
        source, target,
    )  # fmt: skip


def _read(recipe: TranslateRecipe, folder: Path) -> tuple[Texts, Texts]:
    """The training and the held-out pairs; without files for the latter, some of the former are held out."""
    if recipe.source is None:
        wrong = say("no text to learn from", "没有训练文本")
        raise QkvError("source", wrong, say("give --source and --target, or a recipe", "请给 --source 与 --target，或一个配方"))
    if recipe.valid_target and not recipe.valid_source:
        wrong = say("given without valid_source", "没有相应的 valid_source")
        raise QkvError("valid_target", wrong, say("give both files", "请给出两个文件"))
    pairs = Pairs(*(file for file in (recipe.source, recipe.target) if file))
    if recipe.valid_source:
        held_out = Pairs(*(file for file in (recipe.valid_source, recipe.valid_target) if file))
        return keep_pairs(folder / "train", pairs), keep_pairs(folder / "valid", held_out)
    count = sum(1 for _ in pairs)
    if count < FEWEST:
        wrong = say(f"only {count} pairs, too few to hold some out", f"只有 {count} 对，不够留出验证集")
        raise QkvError(recipe.source, wrong, say(f"give {FEWEST} or more, or --valid-source", f"请给至少 {FEWEST} 对，或给 --valid-source"))
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


def _tokenizers(recipe: TranslateRecipe, folder: Path, train: Texts, resume: bool) -> tuple[Tokenizer, Tokenizer]:
    if recipe.shared_vocab:
        both = _kept(recipe, folder / "tokenizer.json", train, resume)
        return both, both
    source, target = (_kept(recipe, folder / f"{('source', 'target')[side]}.json", (train[side],), resume) for side in (0, 1))
    return source, target


def _kept(recipe: TranslateRecipe, path: Path, texts: tuple[TextStore, ...], resume: bool) -> Tokenizer:
    """Learned once and kept: a resumed run reads what it read before, a new one only what it would learn itself."""
    wishes = {"kind": recipe.tokenizer, "vocab_size": recipe.vocab_size}
    note, asked = path.with_suffix(".from"), json.dumps({**wishes, "texts": [one.rows.checksum for one in texts]})
    found = note.read_text(encoding="utf-8") if note.is_file() else None
    if resume and found is not None and any(json.loads(found)[name] != wish for name, wish in wishes.items()):
        wrong = say("the run learned another tokenizer", "该训练用的是另一个分词器")
        raise QkvError("tokenizer, vocab_size", wrong, say("leave both as they were, or choose another --out", "请保持原样，或另选 --out"))
    if path.is_file() and (resume or found == asked):
        return Tokenizer.load(path)
    note.unlink(missing_ok=True)
    tokenizer = _learned(recipe, texts)
    tokenizer.save(path)
    write_text(note, asked)  # after the tokenizer: it vouches for it
    return tokenizer


def _learned(recipe: TranslateRecipe, texts: tuple[TextStore, ...]) -> Tokenizer:
    begin_and_end = Choices(special_tokens=("<bos>", "<eos>"))  # WordPiece has none of its own
    try:
        tokenizer = learn(recipe.tokenizer, chain.from_iterable(texts), recipe.vocab_size, begin_and_end)
    except QkvError as error:
        raise QkvError("vocab_size" if error.where == "--vocab-size" else error.where, error.wrong, error.right) from None
    # Words and characters are what there is; merges were asked for by number and must not silently be fewer.
    if recipe.tokenizer not in ("word", "char") and tokenizer.vocab_size < recipe.vocab_size:
        found, asked = tokenizer.vocab_size, recipe.vocab_size
        wrong = say(f"this text supports only {found:,} pieces, not {asked:,}", f"这些文本只够 {found:,} 个片段，而不是 {asked:,} 个")
        raise QkvError("vocab_size", wrong, say(f"use at most {found:,}", f"最多用 {found:,}"))
    return tokenizer


def _encoded(folder: Path, texts: Texts, tokenizers: tuple[Tokenizer, Tokenizer], dropout: float, variants: int) -> PairData:
    def stores(side: int) -> Iterator[Store]:
        for number in range(variants):
            yield keep_ids(folder / f"{('source', 'target')[side]}-ids-{number}", texts[side], tokenizers[side], dropout)

    return PairData(tuple(stores(0)), tuple(stores(1)), *texts)
