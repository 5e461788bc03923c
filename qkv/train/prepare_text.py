"""Prepare the generation task: tokenizer, ids on disk, held-out text, initial model.

See docs/guides/training.md, "Data".
"""

import json
from pathlib import Path

import tokenizers
import torch
from tokenizers.processors import TemplateProcessing

from qkv.checkpoint.load import load_folder
from qkv.checkpoint.loaded_model import GENERATION, LoadedModel, read_generation, stored_files
from qkv.data.corpus import check_readable, document_files
from qkv.data.documents import Documents, DocumentSlice, NewDocuments, count_bytes, store_documents
from qkv.data.windows import (
    DocumentWindows,
    PackedWindows,
    Windows,
    check_text_length,
    windows_per_batch,
)
from qkv.errors import QkvError, near_miss
from qkv.messages import _
from qkv.model.check_spec import check_spec
from qkv.model.positions import max_positions
from qkv.model.spec import Spec
from qkv.model.spec_io import from_json, to_json
from qkv.text.chunking import split_chunks
from qkv.text.files import read_tokenizer
from qkv.text.lines import write_text
from qkv.text.tokenizer import Tokenizer
from qkv.text.train_tokenizer import KINDS
from qkv.train.generation import GenerationTask, HeldOut, InitialModel
from qkv.train.recipe import GenerateRecipe
from qkv.train.task_specs import generation_spec
from qkv.train.vocabulary import store_tokenizer, train_or_load_tokenizer

Texts = Documents | DocumentSlice


def prepare_generation(
    recipe: GenerateRecipe, folder: Path, resume: bool = False
) -> GenerationTask:
    """The task with its tokenizer and ids; files that are up to date are reused."""
    check_recipe(recipe, resume)
    train, valid = _texts(recipe)
    if recipe.init_from:
        tokenizer, initial = _init_from(recipe.init_from, folder, resume)
    else:
        tokenizer = _tokenizer(recipe, folder, train, resume)
        if recipe.separate_documents:
            tokenizer = with_eos_prefix(tokenizer)
        spec = generation_spec(recipe.model, tokenizer.vocab_size, recipe.context_length)
        initial = InitialModel(spec)
    _check_context_length(recipe.context_length, initial.spec)
    if tokenizer.eos_id is None:
        raise QkvError(
            "tokenizer", _("has no <eos>"), _("use one with <eos>: it separates documents")
        )
    stored = store_documents(folder / "valid-ids", valid, tokenizer, tokenizer.eos_id)
    held_out = HeldOut(stored.ids[:-1], count_bytes(valid))  # without the last <eos>
    if not len(held_out.ids):
        wrong = _("no text held out")
        raise QkvError("valid_text", wrong, _("give more text, or --valid-text"))
    windows = _windows(recipe, folder, train, tokenizer)
    return GenerationTask(recipe, windows, held_out, tokenizer, initial)


def check_recipe(recipe: GenerateRecipe, resume: bool) -> None:
    """Check what can be checked before any text is read."""
    if not recipe.text:
        wrong = _("no training text")
        raise QkvError("text", wrong, _("give --text, or a recipe"))
    if not recipe.valid_text and not recipe.valid_fraction:
        wrong = _("0: no text is held out for validation")
        raise QkvError(
            "valid_fraction", wrong, _("use a fraction such as 0.05, or give --valid-text")
        )
    windows_per_batch(recipe.batch_tokens, recipe.context_length)
    if not recipe.init_from:
        check_spec(generation_spec(recipe.model, recipe.vocab_size, recipe.context_length), "model")
    has_tokenizer = recipe.init_from or resume
    if not has_tokenizer and recipe.tokenizer not in KINDS and not Path(recipe.tokenizer).exists():
        wrong = _("no tokenizer kind '{kind}'", kind=recipe.tokenizer)
        raise QkvError("tokenizer", wrong, near_miss(recipe.tokenizer, KINDS))
    check_readable(document_files([*recipe.text, *recipe.valid_text]))


def _texts(recipe: GenerateRecipe) -> tuple[Texts, Texts | NewDocuments]:
    """The training text and the held-out text: its own files, or the end of the training text.

    Documents of the end that are training documents too are not held out.
    """
    documents = Documents(recipe.text)
    if not documents.characters:
        raise QkvError(", ".join(recipe.text), _("contains no text"), _("give a file with text"))
    if recipe.valid_text:
        return documents, Documents(recipe.valid_text)
    cut = int(documents.characters * (1 - recipe.valid_fraction))
    train = DocumentSlice(documents, 0, cut)
    return train, NewDocuments(DocumentSlice(documents, cut, documents.characters), train)


def _tokenizer(recipe: GenerateRecipe, folder: Path, train: Texts, resume: bool) -> Tokenizer:
    """Trained on the training text, or read from the file that the recipe names."""
    path = folder / "tokenizer.json"
    if recipe.tokenizer in KINDS or not Path(recipe.tokenizer).exists():
        chunks = (chunk for text, _ends in train for chunk in split_chunks(text))
        checksums = list(train.fingerprint.values())
        return train_or_load_tokenizer(recipe, path, chunks, checksums, resume)
    if resume and path.is_file():
        return read_tokenizer(path)
    tokenizer = read_tokenizer(recipe.tokenizer)
    store_tokenizer(path, tokenizer)
    return tokenizer


def with_eos_prefix(tokenizer: Tokenizer) -> Tokenizer:
    """Add a template that puts <eos> before every prompt: separate documents begin after <eos>."""
    eos = next((name for name, id in tokenizer.special_ids.items() if id == tokenizer.eos_id), None)
    if eos is None or tokenizer.config["post_processor"] is not None:
        return tokenizer
    core = tokenizers.Tokenizer.from_str(json.dumps(tokenizer.config))
    core.post_processor = TemplateProcessing(
        single=f"{eos} $A", pair=f"{eos} $A {eos} $B", special_tokens=[(eos, tokenizer.eos_id)]
    )
    return Tokenizer(core)


def _windows(recipe: GenerateRecipe, folder: Path, train: Texts, tokenizer: Tokenizer) -> Windows:
    assert tokenizer.eos_id is not None
    ids = store_documents(folder / "train-ids", train, tokenizer, tokenizer.eos_id).ids
    check_text_length(len(ids), recipe.context_length)
    if recipe.separate_documents:
        return DocumentWindows(
            ids, tokenizer.eos_id, recipe.context_length, recipe.batch_tokens, recipe.seed
        )
    return PackedWindows(ids, recipe.context_length, recipe.batch_tokens, recipe.seed)


# ── fine-tuning ──────────────────────────────────────────────────────────────────────────────────
def _init_from(name: str, folder: Path, resume: bool) -> tuple[Tokenizer, InitialModel]:
    """The tokenizer and model of a qkv or Hugging Face folder; a resumed run has copies."""
    tokenizer_file, spec_file = folder / "tokenizer.json", folder / "model.json"
    if resume and tokenizer_file.is_file() and spec_file.is_file():
        spec = from_json(spec_file.read_text(encoding="utf-8"), str(spec_file))
        initial = InitialModel(spec, None, read_generation(folder / GENERATION))
        return Tokenizer.load(tokenizer_file), initial
    loaded = load_folder(name, dtype=torch.float32)
    tokenizer = _lm_tokenizer(loaded, name)
    store_tokenizer(tokenizer_file, tokenizer)
    # Written even if empty: a file of an earlier attempt must not stay.
    stored = stored_files(loaded.generation).get(GENERATION, b"{}\n")
    write_text(folder / GENERATION, stored.decode())
    write_text(spec_file, to_json(loaded.model.spec))
    return tokenizer, InitialModel(loaded.model.spec, loaded.model, loaded.generation)


def _lm_tokenizer(loaded: LoadedModel, name: str) -> Tokenizer:
    """The tokenizer of a causal language model."""
    spec, tokenizer = loaded.model.spec, loaded.tokenizers.get("tokenizer")
    if spec.encoder is not None or spec.decoder is None or not spec.decoder.causal:
        wrong = _("not a causal language model")
        raise QkvError(name, wrong, _("use a causal decoder without an encoder"))
    if tokenizer is None or tokenizer.vocab_size > spec.vocab_size:
        raise QkvError(name, _("no tokenizer that matches the model"), _("is the copy complete?"))
    return tokenizer


def _check_context_length(context_length: int, spec: Spec) -> None:
    assert spec.decoder is not None
    limit = max_positions(spec, spec.decoder)
    if limit is not None and context_length > limit:
        wrong = _(
            "{context_length:,} exceeds the model's {limit:,} positions",
            context_length=context_length,
            limit=limit,
        )
        raise QkvError("context_length", wrong, _("use {limit:,} or less", limit=limit))
