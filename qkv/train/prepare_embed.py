"""From files to the task of sentence vectors: groups read, a tokenizer learned, all sentences encoded and kept.

In: a recipe that names files. Out: an Embedding with its vocabulary and its ids on disk.
Told in docs/embedding.md, "Training".
"""

from collections.abc import Iterable, Iterator
from itertools import chain, islice
from pathlib import Path

from qkv.data.corpus import document_files, fingerprint_of, read_pieces, refuse_unreadable
from qkv.data.groups import Groups, GroupStore, groups_of, keep_groups
from qkv.data.hold_out import FEWEST, hold_out_every
from qkv.data.pairs import keep_ids
from qkv.data.store import Store, TextStore, reusable, write_store, write_texts
from qkv.errors import QkvError
from qkv.messages import _
from qkv.model.door import check
from qkv.text.pipeline import Choices
from qkv.text.special_tokens import encoder_template
from qkv.text.tokenizer import Tokenizer
from qkv.train.embedding import Embedding, GroupData
from qkv.train.recipe import EmbedRecipe
from qkv.train.task_specs import embedding_spec
from qkv.train.vocabulary import kept_tokenizer

FRAME = 2  # [CLS] before and [SEP] after each sentence
AT_ONCE = 4_096  # lines encoded at a time


def prepare_embedding(recipe: EmbedRecipe, folder: Path, resume: bool = False) -> Embedding:
    """All that training needs besides the model; what is there already and still right is used again."""
    refuse_impossible(recipe)
    read, held_out = _groups(recipe)
    train, valid = keep_groups(folder / "train", read), keep_groups(folder / "valid", held_out)
    plain = _plain_text(recipe, folder) if recipe.masked_steps else None
    tokenizer = _tokenizer(recipe, folder, [train.texts, *([plain] if plain else [])], resume)
    return Embedding(
        recipe,
        _encoded(folder / "train", train, tokenizer),
        _encoded(folder / "valid", valid, tokenizer),
        _pieces(recipe, folder, plain or train.texts, tokenizer) if recipe.masked_steps else None,
        tokenizer,
    )


def refuse_impossible(recipe: EmbedRecipe) -> None:
    """What the recipe alone shows to be wrong, said before any text is read; the vocabulary does not matter yet."""
    spec = embedding_spec(recipe.model, recipe.vocab_size, recipe.masked_steps > 0)
    check(spec, "model")
    if spec.max_len <= FRAME:
        wrong = _("{max_len} places leave none between [CLS] and [SEP]", max_len=spec.max_len)
        raise QkvError("model, max_len", wrong, _("use {frame} or more", frame=FRAME + 1))
    if recipe.masked_steps >= recipe.steps:
        wrong = _(
            "{masked_steps} of {steps} steps leave none for pairs",
            masked_steps=recipe.masked_steps,
            steps=recipe.steps,
        )
        raise QkvError("masked_steps", wrong, _("use fewer, or more steps"))
    if recipe.text and not recipe.masked_steps:
        wrong = _("plain text is for masked tokens, and masked_steps is 0")
        raise QkvError("text", wrong, _("give masked_steps, or leave out the text"))
    refuse_unreadable(document_files(recipe.text))


# ── reading ──────────────────────────────────────────────────────────────────────────────────────────────────────────
def _groups(recipe: EmbedRecipe) -> tuple[Groups, Groups]:
    """The groups to learn from and those held out; without files for the latter, some of the former are held out."""
    train = _named(recipe, "", recipe.pairs, recipe.source, recipe.target)
    if train is None:
        wrong = _("no pairs to learn from")
        raise QkvError("pairs", wrong, _("give --pairs, or --source and --target"))
    valid = _named(recipe, "valid_", recipe.valid_pairs, recipe.valid_source, recipe.valid_target)
    refuse_unreadable([*train.paths, *(valid.paths if valid else ())])
    if valid is not None:
        return train, valid
    count = sum(1 for _ in train)
    if count < FEWEST:
        wrong = _("only {count} groups, too few to hold some out", count=count)
        right = _("give {fewest} or more, or --valid-pairs", fewest=FEWEST)
        raise QkvError(", ".join(map(str, train.paths)), wrong, right)
    every = hold_out_every(count)
    return train.share(every, held_out=False), train.share(every, held_out=True)


def _named(
    recipe: EmbedRecipe, prefix: str, pairs: str | None, source: str | None, target: str | None
) -> Groups | None:
    """The groups of one file, or of two aligned ones; None where none is named."""
    if pairs is not None and (source is not None or target is not None):
        wrong = _("given beside {prefix}source or {prefix}target", prefix=prefix)
        raise QkvError(f"{prefix}pairs", wrong, _("give one or the other"))
    if pairs is not None:
        return groups_of(pairs, hard_negatives=recipe.hard_negatives)
    if (source is None) != (target is None):
        given, missing = ("source", "target") if target is None else ("target", "source")
        raise QkvError(
            f"{prefix}{given}",
            _("given without {prefix}{missing}", prefix=prefix, missing=missing),
            _("give both files"),
        )
    if source is None or target is None:
        return None
    if recipe.hard_negatives:
        wrong = _("{prefix}source and {prefix}target have no third column", prefix=prefix)
        raise QkvError("hard_negatives", wrong, _("give {prefix}pairs", prefix=prefix))
    return groups_of(source, target)


def _plain_text(recipe: EmbedRecipe, folder: Path) -> TextStore | None:
    """The lines of the plain text; None: the sentences of the groups serve."""
    if not recipe.text:
        return None
    fingerprint = {"files": fingerprint_of(document_files(recipe.text)), "lines": "1"}
    stored = reusable(folder / "plain", fingerprint)
    return (
        TextStore(stored)
        if stored
        else write_texts(folder / "plain", _lines(recipe.text), fingerprint)
    )


def _lines(paths: Iterable[str]) -> Iterator[str]:
    return (
        line.strip()
        for piece, _ in read_pieces(paths)
        for line in piece.split("\n")
        if line.strip()
    )


# ── encoding ─────────────────────────────────────────────────────────────────────────────────────────────────────────
def _tokenizer(
    recipe: EmbedRecipe, folder: Path, texts: list[TextStore], resume: bool
) -> Tokenizer:
    """One vocabulary for all languages, with [CLS], [SEP] and [MASK] under the name that its kind gives them."""
    special = () if recipe.tokenizer == "wordpiece" else ("<cls>", "<sep>", "<mask>")
    choices = Choices(
        lowercase=recipe.lowercase,
        special_tokens=special,
        add_prefix_space=recipe.add_prefix_space and recipe.tokenizer == "bytes",
    )
    checksums = [one.rows.checksum for one in texts]
    return kept_tokenizer(
        folder / "tokenizer.json",
        recipe.tokenizer,
        recipe.vocab_size,
        chain.from_iterable(texts),
        checksums,
        resume,
        choices,
    )


def _encoded(folder: Path, groups: GroupStore, tokenizer: Tokenizer) -> GroupData:
    return GroupData(groups, keep_ids(folder / "ids", groups.texts, tokenizer))


def _pieces(recipe: EmbedRecipe, folder: Path, texts: TextStore, tokenizer: Tokenizer) -> Store:
    """Lines as ids, those that are too long cut into pieces that fit; nothing of the text is lost."""
    room = (
        embedding_spec(recipe.model, tokenizer.vocab_size, True).max_len
        - encoder_template(tokenizer).size
    )
    fingerprint = {
        "text": texts.rows.checksum,
        "tokenizer": tokenizer.fingerprint,
        "room": str(room),
    }
    stored = reusable(folder / "pieces", fingerprint)
    return stored or write_store(
        folder / "pieces", _cut(texts, tokenizer, room), tokenizer.vocab_size, fingerprint
    )


def _cut(texts: TextStore, tokenizer: Tokenizer, room: int) -> Iterator[list[int]]:
    lines = iter(texts)
    while some := list(islice(lines, AT_ONCE)):
        for row in tokenizer.encode_batch(some):
            yield from (row[start : start + room] for start in range(0, len(row), room))
