"""Prepare the embedding task: read groups, train a tokenizer, encode and store all sentences.

See docs/guides/embeddings.md, "Training".
"""

from pathlib import Path

from qkv.data.corpus import check_readable, document_files, fingerprint_of, read_pieces
from qkv.data.groups import Groups, GroupStore, read_groups, store_groups
from qkv.data.hold_out import held_out_rows
from qkv.data.pairs import encoded, store_ids
from qkv.data.store import TEXT_VOCAB_SIZE, Store, TextStore, reuse_or_write
from qkv.errors import QkvError
from qkv.messages import _
from qkv.model.check_spec import check_spec
from qkv.text.normalization import TokenizerOptions
from qkv.text.special_tokens import encoder_template
from qkv.text.tokenizer import Tokenizer
from qkv.train.embedding import EmbeddingTask, GroupData
from qkv.train.recipe import EmbedRecipe
from qkv.train.task_specs import embedding_spec
from qkv.train.vocabulary import tokenizer_of_stores

N_SPECIAL_TOKENS = 2  # [CLS] before and [SEP] after each sentence


def prepare_embedding(recipe: EmbedRecipe, folder: Path, resume: bool = False) -> EmbeddingTask:
    """The task with its tokenizer and ids; files that are up to date are reused."""
    check_recipe(recipe)
    groups, held_out = _groups(recipe)
    train, valid = store_groups(folder / "train", groups), store_groups(folder / "valid", held_out)
    plain = _plain_text(recipe, folder, valid.texts) if recipe.mlm_steps else None
    tokenizer = _tokenizer(recipe, folder, [train.texts, *([plain] if plain else [])], resume)
    return EmbeddingTask(
        recipe,
        _encoded(folder / "train", train, tokenizer),
        _encoded(folder / "valid", valid, tokenizer),
        _pieces(recipe, folder, plain or train.texts, tokenizer) if recipe.mlm_steps else None,
        tokenizer,
    )


def check_recipe(recipe: EmbedRecipe) -> None:
    """Check what can be checked before any text is read."""
    spec = embedding_spec(recipe.model, recipe.vocab_size, recipe.mlm_steps > 0)
    check_spec(spec, "model")
    if spec.max_len <= N_SPECIAL_TOKENS:
        wrong = _(
            "max_len {max_len} leaves no position for tokens between [CLS] and [SEP]",
            max_len=spec.max_len,
        )
        right = _("use {least} or more", least=N_SPECIAL_TOKENS + 1)
        raise QkvError("model, max_len", wrong, right)
    if recipe.mlm_steps >= recipe.steps:
        wrong = _(
            "{mlm_steps} of {steps} steps leave none for contrastive learning", **vars(recipe)
        )
        raise QkvError("mlm_steps", wrong, _("use a smaller number, or more steps"))
    if recipe.text and not recipe.mlm_steps:
        wrong = _("plain text is used for MLM only, and mlm_steps is 0")
        raise QkvError("text", wrong, _("set mlm_steps, or leave out text"))
    check_readable(document_files(recipe.text))


# ── reading ──────────────────────────────────────────────────────────────────────────────────────
def _groups(recipe: EmbedRecipe) -> tuple[Groups, Groups]:
    """The training groups and the held-out groups, which may be a subset of the same file."""
    train = _named(recipe, "")
    if train is None:
        wrong = _("no training pairs")
        raise QkvError("pairs", wrong, _("give --pairs, or --source and --target"))
    valid = _named(recipe, "valid_")
    check_readable([*train.paths, *(valid.paths if valid else ())])
    if valid is not None:
        return train, valid
    texts = (filter(None, (*group.texts, group.negative)) for group in train)
    held_out = held_out_rows(texts, ", ".join(map(str, train.paths)), "--valid-pairs")
    return train.subset(~held_out), train.subset(held_out)


def _named(recipe: EmbedRecipe, prefix: str) -> Groups | None:
    """The groups of one file or of two aligned files; None if the recipe names none."""
    pairs, source, target = (
        getattr(recipe, f"{prefix}{name}") for name in ("pairs", "source", "target")
    )
    if pairs is not None and (source is not None or target is not None):
        wrong = _("given together with {prefix}source or {prefix}target", prefix=prefix)
        raise QkvError(f"{prefix}pairs", wrong, _("give one or the other"))
    if pairs is not None:
        return read_groups(pairs, hard_negatives=recipe.hard_negatives)
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
    return read_groups(source, target)


def _plain_text(recipe: EmbedRecipe, folder: Path, valid: TextStore) -> TextStore | None:
    """The lines of the plain text without the held-out sentences.

    None: MLM uses the sentences of the groups.
    """
    if not recipe.text:
        return None
    fingerprint = {"files": fingerprint_of(document_files(recipe.text)), "lines": "1"}
    fingerprint["without"] = valid.rows.checksum
    held_out = {"", *valid}
    pieces = (piece for piece, _ends in read_pieces(recipe.text))
    lines = (line.strip() for piece in pieces for line in piece.split("\n"))
    lines = (line for line in lines if line not in held_out)
    return TextStore(reuse_or_write(folder / "plain", lines, TEXT_VOCAB_SIZE, fingerprint))


# ── encoding ─────────────────────────────────────────────────────────────────────────────────────
def _tokenizer(
    recipe: EmbedRecipe, folder: Path, texts: list[TextStore], resume: bool
) -> Tokenizer:
    """One vocabulary for all languages, with special tokens for [CLS], [SEP] and [MASK]."""
    special = () if recipe.tokenizer == "wordpiece" else ("<cls>", "<sep>", "<mask>")
    options = TokenizerOptions(lowercase=recipe.lowercase, special_tokens=special)
    return tokenizer_of_stores(recipe, folder / "tokenizer.json", texts, resume, options)


def _encoded(folder: Path, groups: GroupStore, tokenizer: Tokenizer) -> GroupData:
    return GroupData(groups, store_ids(folder / "ids", groups.texts, tokenizer))


def _pieces(recipe: EmbedRecipe, folder: Path, texts: TextStore, tokenizer: Tokenizer) -> Store:
    """Lines as ids; lines that are too long for the model are split."""
    spec = embedding_spec(recipe.model, tokenizer.vocab_size, with_mlm_head=True)
    max_tokens = spec.max_len - encoder_template(tokenizer).size
    fingerprint = {
        "text": texts.rows.checksum,
        "tokenizer": tokenizer.fingerprint,
        "room": str(max_tokens),
    }
    rows = (
        row[start : start + max_tokens]
        for row in encoded(texts, tokenizer)
        for start in range(0, len(row), max_tokens)
    )
    return reuse_or_write(folder / "pieces", rows, tokenizer.vocab_size, fingerprint)
