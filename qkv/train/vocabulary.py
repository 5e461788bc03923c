"""The tokenizer of a run: trained once on its text, then loaded from the run folder.

See docs/guides/training.md.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path

from qkv.data.store import TextStore
from qkv.errors import QkvError
from qkv.messages import _
from qkv.text.lines import write_text
from qkv.text.normalization import TokenizerOptions
from qkv.text.tokenizer import Tokenizer
from qkv.text.train_tokenizer import train_tokenizer
from qkv.train.recipe import EmbedRecipe, GenerateRecipe, TranslateRecipe
from qkv.train.recipe_reader import OLD_VALUES

TaskRecipe = TranslateRecipe | GenerateRecipe | EmbedRecipe

TRAINED_FROM = ".from"  # tokenizer.from: the options and texts of tokenizer.json
PREFIX_SPACE = "add_prefix_space"
BOS_EOS = TokenizerOptions(special_tokens=("<bos>", "<eos>"))  # WordPiece has none of its own


def train_or_load_tokenizer(
    recipe: TaskRecipe,
    path: Path,
    texts: Iterable[str],
    checksums: Sequence[str],
    resume: bool,
    options: TokenizerOptions = BOS_EOS,
) -> Tokenizer:
    """Train the tokenizer of a run, or load it if it was trained with the same options and texts.

    Args:
        recipe: The options of the run.
        path: The tokenizer.json.
        texts: The training texts.
        checksums: Checksums of the texts.
        resume: Load the tokenizer of the run, whatever the texts; other options are an error.
        options: Normalization and special tokens.
    """
    # byte_bpe is the only kind that has a prefix space.
    prefix_space = recipe.add_prefix_space and recipe.tokenizer == "byte_bpe"
    options = replace(options, add_prefix_space=prefix_space)
    wanted: dict[str, object] = {
        "kind": recipe.tokenizer,
        "vocab_size": recipe.vocab_size,
        PREFIX_SPACE: prefix_space,
    }
    if options.stored_form() != BOS_EOS.stored_form():
        wanted["choices"] = options.stored_form()
    file, record = path.with_suffix(TRAINED_FROM), json.dumps({**wanted, "texts": list(checksums)})
    stored = file.read_text(encoding="utf-8") if file.is_file() else None
    if resume and stored is not None:
        _check_same_options(json.loads(stored), wanted)
    if path.is_file() and (resume or stored == record):
        return Tokenizer.load(path)
    file.unlink(missing_ok=True)
    tokenizer = _trained(recipe, texts, options)
    tokenizer.save(path)
    write_text(file, record)  # after the tokenizer: it confirms that the tokenizer is complete
    return tokenizer


def tokenizer_of_stores(
    recipe: TaskRecipe,
    path: Path,
    stores: Sequence[TextStore],
    resume: bool,
    options: TokenizerOptions = BOS_EOS,
) -> Tokenizer:
    """The tokenizer of a run whose training texts are stored."""
    checksums = [store.rows.checksum for store in stores]
    texts = chain.from_iterable(stores)
    return train_or_load_tokenizer(recipe, path, texts, checksums, resume, options)


def _check_same_options(stored: dict[str, object], wanted: dict[str, object]) -> None:
    """A resumed run keeps its tokenizer, so the recipe must have its options."""
    stored = {PREFIX_SPACE: wanted[PREFIX_SPACE], **stored}  # older files do not have it
    stored["kind"] = OLD_VALUES.get(("tokenizer", str(stored["kind"])), stored["kind"])
    if any(stored.get(name) != value for name, value in wanted.items()):
        wrong = _("the run uses another tokenizer")
        right = _("keep both options as they were, or choose another --out")
        raise QkvError("tokenizer, vocab_size", wrong, right)


def store_tokenizer(path: Path, tokenizer: Tokenizer) -> None:
    """Store a given tokenizer, without a record that it was trained."""
    path.with_suffix(TRAINED_FROM).unlink(missing_ok=True)
    tokenizer.save(path)


def _trained(recipe: TaskRecipe, texts: Iterable[str], options: TokenizerOptions) -> Tokenizer:
    kind, vocab_size = recipe.tokenizer, recipe.vocab_size
    try:
        tokenizer = train_tokenizer(kind, texts, vocab_size, options)
    except QkvError as error:
        where = {"--vocab-size": "vocab_size", "--kind": "tokenizer"}.get(error.where, error.where)
        raise QkvError(where, error.wrong, error.right) from None
    # The text limits words and characters; BPE and WordPiece must reach the given size.
    if kind not in ("word", "char") and tokenizer.vocab_size < vocab_size:
        sizes = {"found": tokenizer.vocab_size, "vocab_size": vocab_size}
        wrong = _("the text yields only {found:,} tokens, not {vocab_size:,}", **sizes)
        raise QkvError("vocab_size", wrong, _("use at most {found:,}", **sizes))
    return tokenizer
