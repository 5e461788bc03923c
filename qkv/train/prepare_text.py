"""From text files to a task: a tokenizer, ids on disk, a part held out, a model to begin with.

In: a recipe that names files. Out: a Generation; all it made is kept in the run's folder and used again.
Told in docs/language-models.md, "Data".
"""

import json
from pathlib import Path

import tokenizers
import torch
from tokenizers.processors import TemplateProcessing

from qkv.checkpoint.load import load_folder
from qkv.checkpoint.loaded_model import GENERATION, LoadedModel, read_generation, stored_files
from qkv.data.corpus import document_files, refuse_unreadable
from qkv.data.documents import Documents, Part, count_bytes, keep_documents
from qkv.data.windows import DocumentWindows, PackedWindows, Windows, refuse_short, rows_of
from qkv.errors import QkvError, near_miss
from qkv.messages import _
from qkv.model.door import check, from_json, to_json
from qkv.model.spec import Spec
from qkv.model.transformer import longest
from qkv.text.blocks import blocks
from qkv.text.files import read_tokenizer
from qkv.text.learn import KINDS
from qkv.text.lines import write_text
from qkv.text.tokenizer import Tokenizer
from qkv.train.generation import Generation, HeldOut, Start
from qkv.train.recipe import GenerateRecipe
from qkv.train.task_specs import generation_spec
from qkv.train.vocabulary import keep_given, kept_tokenizer, run_choices

Texts = Documents | Part


def prepare_generation(recipe: GenerateRecipe, folder: Path, resume: bool = False) -> Generation:
    """All that training needs; what is there already and still right is used again."""
    refuse_impossible(recipe, resume)
    train, valid = _texts(recipe)
    if recipe.start_from:
        tokenizer, start = _gone_on_from(recipe.start_from, folder, resume)
    else:
        tokenizer = _tokenizer(recipe, folder, train, resume)
        if recipe.separate_documents:
            tokenizer = with_start(tokenizer)
        start = Start(generation_spec(recipe.model, tokenizer.vocab_size, recipe.context), None)
    _refuse_long(recipe.context, start.spec)
    if tokenizer.eos_id is None:
        raise QkvError("tokenizer", _("has no <eos>"), _("documents need one between them"))
    held = keep_documents(folder / "valid-ids", valid, tokenizer, tokenizer.eos_id).ids[
        :-1
    ]  # the end itself is no text
    if not len(held):
        wrong = _("no text held out")
        raise QkvError("valid_text", wrong, _("give more text, or --valid-text"))
    windows = _windows(recipe, folder, train, tokenizer)
    return Generation(recipe, windows, HeldOut(held, count_bytes(valid)), tokenizer, start)


def refuse_impossible(recipe: GenerateRecipe, resume: bool) -> None:
    """What the recipe alone shows to be wrong, said before any text is read; the vocabulary does not matter yet."""
    if not recipe.text:
        wrong = _("no text to learn from")
        raise QkvError("text", wrong, _("give --text, or a recipe"))
    if not recipe.valid_text and not recipe.valid_share:
        wrong = _("0: nothing is held out")
        raise QkvError("valid_share", wrong, _("give a share such as 0.05, or --valid-text"))
    rows_of(recipe.batch_tokens, recipe.context)
    if not recipe.start_from:
        check(generation_spec(recipe.model, recipe.vocab_size, recipe.context), "model")
    kept = (
        recipe.start_from or resume
    )  # then the run has its tokenizer, and this name is not looked at
    if not kept and recipe.tokenizer not in KINDS and not Path(recipe.tokenizer).exists():
        wrong = _("no kind of tokenizer '{tokenizer}'", tokenizer=recipe.tokenizer)
        raise QkvError("tokenizer", wrong, near_miss(recipe.tokenizer, KINDS))
    refuse_unreadable(document_files([*recipe.text, *recipe.valid_text]))


def _texts(recipe: GenerateRecipe) -> tuple[Texts, Texts]:
    """What is learned from and what is held out: files of its own, or the last characters of all."""
    documents = Documents(recipe.text)
    if not documents.characters:
        raise QkvError(", ".join(recipe.text), _("no text in it"), _("give a file with some"))
    if recipe.valid_text:
        return documents, Documents(recipe.valid_text)
    cut = int(documents.characters * (1 - recipe.valid_share))
    return Part(documents, 0, cut), Part(documents, cut, documents.characters)


def _tokenizer(recipe: GenerateRecipe, folder: Path, train: Texts, resume: bool) -> Tokenizer:
    """Learned from the training text alone; or, where the recipe names a file, read from it and kept too."""
    path = folder / "tokenizer.json"
    if recipe.tokenizer in KINDS or not Path(recipe.tokenizer).exists():
        parts = (block for text, _ in train for block in blocks(text))
        choices = run_choices(recipe.tokenizer, recipe.add_prefix_space)
        return kept_tokenizer(
            path,
            recipe.tokenizer,
            recipe.vocab_size,
            parts,
            list(train.fingerprint.values()),
            resume,
            choices,
        )
    if resume and path.is_file():
        return read_tokenizer(path)
    tokenizer = read_tokenizer(recipe.tokenizer)
    keep_given(path, tokenizer)
    return tokenizer


def with_start(tokenizer: Tokenizer) -> Tokenizer:
    """The tokenizer with a template that puts <eos> before every prompt: documents learned separately all begin after one."""
    eos = next((name for name, id in tokenizer.special_ids.items() if id == tokenizer.eos_id), None)
    if eos is None or tokenizer.rules["post_processor"] is not None:
        return tokenizer
    core = tokenizers.Tokenizer.from_str(json.dumps(tokenizer.rules))
    core.post_processor = TemplateProcessing(
        single=f"{eos} $A", pair=f"{eos} $A {eos} $B", special_tokens=[(eos, tokenizer.eos_id)]
    )
    return Tokenizer(core)


def _windows(recipe: GenerateRecipe, folder: Path, train: Texts, tokenizer: Tokenizer) -> Windows:
    assert tokenizer.eos_id is not None
    ids = keep_documents(folder / "train-ids", train, tokenizer, tokenizer.eos_id).ids
    refuse_short(len(ids), recipe.context)
    if recipe.separate_documents:
        return DocumentWindows(
            ids, tokenizer.eos_id, recipe.context, recipe.batch_tokens, recipe.seed
        )
    return PackedWindows(ids, recipe.context, recipe.batch_tokens, recipe.seed)


# ── going on from a model ────────────────────────────────────────────────────────────────────────────────────────
def _gone_on_from(name: str, folder: Path, resume: bool) -> tuple[Tokenizer, Start]:
    """The model of a folder, ours or Hugging Face's; a resumed run has its own copy of all but the weights."""
    kept, spec_file = folder / "tokenizer.json", folder / "model.json"
    if resume and kept.is_file() and spec_file.is_file():
        spec = from_json(spec_file.read_text(encoding="utf-8"), str(spec_file))
        return Tokenizer.load(kept), Start(spec, None, read_generation(folder / GENERATION))
    loaded = load_folder(name, dtype=torch.float32)
    tokenizer = _writer_of(loaded, name)
    keep_given(kept, tokenizer)
    stored = stored_files(loaded.generation).get(
        GENERATION, b"{}\n"
    )  # a file of an earlier attempt must not stay
    write_text(folder / GENERATION, stored.decode())
    write_text(spec_file, to_json(loaded.model.spec))
    return tokenizer, Start(loaded.model.spec, loaded.model, loaded.generation)


def _writer_of(loaded: LoadedModel, name: str) -> Tokenizer:
    """Its tokenizer, if this is a language model that has one."""
    spec, tokenizer = loaded.model.spec, loaded.tokenizers.get("tokenizer")
    if spec.encoder is not None or spec.decoder is None or spec.decoder.sees != "past":
        raise QkvError(
            name, _("not a language model"), _("one has a decoder alone, which sees the past")
        )
    if tokenizer is None or tokenizer.vocab_size > spec.vocab_size:
        raise QkvError(name, _("no tokenizer that fits the model"), _("is the copy complete?"))
    return tokenizer


def _refuse_long(context: int, spec: Spec) -> None:
    assert spec.decoder is not None
    limit = longest(spec, spec.decoder)
    if limit is not None and context > limit:
        wrong = _(
            "{context:,} is longer than the model's {limit:,} places", context=context, limit=limit
        )
        raise QkvError("context", wrong, _("use {limit:,} or less", limit=limit))
