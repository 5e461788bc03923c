"""Write a Hugging Face folder that transformers loads without custom code.

config.json, weights, tokenizer files, generation config and a model card; a spec that no family
supports is an error. See docs/convert.md, "Export".
"""

import json
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from qkv.checkpoint import disk
from qkv.checkpoint.durable import packed, write_new_folder
from qkv.checkpoint.families import FAMILIES
from qkv.checkpoint.families.config import Config
from qkv.checkpoint.huggingface.reader import TARGET
from qkv.checkpoint.huggingface.sentence_transformers_format import pooling_files
from qkv.checkpoint.loaded_model import LoadedModel
from qkv.checkpoint.names import Family, resolve_rows, to_foreign
from qkv.checkpoint.target_spec import is_absorbable, nearest, refuse_unsupported, target_weights
from qkv.errors import QkvError
from qkv.messages import _, listed
from qkv.model.spec import Spec
from qkv.text.special_tokens import (
    Template,
    encoder_template,
    generation_tokens,
    translation_template,
)
from qkv.text.tokenizer import Tokenizer

ROLES = ("bos", "eos", "unk", "pad", "cls", "sep", "mask")


def save_huggingface(folder: str | Path, loaded: LoadedModel) -> str:
    """Write the folder; return the model_type of its family."""
    path, spec = Path(folder), loaded.model.spec
    refuse_occupied(path)
    family, config, target = choose_family(spec)
    weights = target_weights(loaded.model.state_dict(), spec, target)
    table, unmapped = resolve_rows(family.rows(target), weights)
    assert not unmapped, unmapped
    files: dict[str, disk.Content] = {
        "model.safetensors": packed(to_foreign(table, weights), {"format": "pt"})
    }
    ids = special_ids(loaded)
    dtype = str(next(iter(weights.values())).dtype).removeprefix("torch.")
    config = (
        config
        | {k: v for k, v in ids.items() if k != "pad_token_id" or family.model_type != "roberta"}
        | {"dtype": dtype, "torch_dtype": dtype}
    )
    files["config.json"] = as_json(config)
    files["README.md"] = model_card(loaded, family).encode()
    if spec.decoder is not None:
        files["generation_config.json"] = as_json(ids)
    files |= tokenizer_files(loaded)
    if spec.decoder is None and loaded.pooling:
        files |= pooling_files(loaded.pooling, spec.d_model)
    write(path, files)
    return family.model_type


# ── Choosing the family ─────────────────────────────────────────────────────────────────────────
def choose_family(spec: Spec) -> tuple[Family, dict[str, Any], Spec]:
    """The family whose config.json, read again, gives this spec; its config and that spec."""
    targets, errors = [], []
    for family in FAMILIES.values():
        written = family.write(spec)
        try:
            if written:
                config = Config("config.json", written, _head_names(spec))
                targets.append(((family, written), family.read(config)))
        except QkvError as error:
            errors.append(error)
    if errors and not targets:
        raise errors[0]
    if not targets:
        raise QkvError(
            "model.json",
            _("no Hugging Face architecture fits this model"),
            _("supported: {names}", names=listed(FAMILIES)),
        )
    (family, fields), target, parts = nearest(spec, targets, is_absorbable)
    wrong = _(
        "the nearest Hugging Face architecture, {name}, does not support {parts}",
        name=family.model_type,
        parts=listed(parts),
    )
    refuse_unsupported(parts, wrong)
    return family, fields, target


def _head_names(spec: Spec) -> list[str]:
    """Weight names that identify the head where config.json does not (BERT)."""
    return {
        "masked": ["cls.predictions.bias", "lm_head.bias", "vocab_projector.bias"],
        "pooler": ["pooler.dense.weight"],
    }.get(getattr(spec.head, "kind", ""), [])


# ── Files ───────────────────────────────────────────────────────────────────────────────────────
def special_ids(loaded: LoadedModel) -> dict[str, Any]:
    """The ids of bos, eos, pad and, for encoder-decoder models, the decoder start token."""
    tokenizer = loaded.tokenizer("target")
    stored = loaded.generation
    ids = {
        f"{role}_token_id": getattr(tokenizer, f"{role}_id", None) for role in ("bos", "eos", "pad")
    }
    start = ids["bos_token_id"] if stored.start_id is None else stored.start_id
    ends: list[int | None] = [*stored.eos_ids] or [ids["eos_token_id"]]
    pad = ids["pad_token_id"] if stored.pad_id is None else stored.pad_id
    ids |= {"pad_token_id": pad, "eos_token_id": ends if len(ends) > 1 else ends[0]}
    if loaded.model.spec.encoder and loaded.model.spec.decoder:
        # The default is <pad> in Translator, but 58100 in MarianConfig.
        ids["decoder_start_token_id"] = ids["pad_token_id"] if start is None else start
    else:
        ids["bos_token_id"] = start
    return {name: id for name, id in ids.items() if id is not None}


def tokenizer_files(loaded: LoadedModel) -> dict[str, disk.Content]:
    """tokenizer.json, the roles of its special tokens, and a separate target tokenizer."""
    tokenizers, spec, first = loaded.tokenizers, loaded.model.spec, loaded.tokenizer("source")
    if first is None:
        return {}
    ids = {role: getattr(first, f"{role}_id") for role in ROLES}
    named = {f"{role}_token": first.tokens([id])[0] for role, id in ids.items() if id is not None}
    tokenizer_config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": spec.max_len,
        **named,
    }
    templated = with_template(first, template_for(loaded, first))
    files: dict[str, disk.Content] = {
        "tokenizer.json": templated.save,
        "tokenizer_config.json": as_json(tokenizer_config),
    }
    return files | ({TARGET: tokenizers["target"].save} if "target" in tokenizers else {})


def template_for(loaded: LoadedModel, tokenizer: Tokenizer) -> Template:
    """The special tokens that qkv's pipelines add to a text; others find them in tokenizer.json."""
    spec = loaded.model.spec
    if spec.decoder is None:
        return encoder_template(tokenizer)
    if spec.encoder is None:
        return Template(generation_tokens(tokenizer, loaded.generation).begin)
    return translation_template(tokenizer)


def with_template(tokenizer: Tokenizer, added: Template) -> Tokenizer:
    """The tokenizer with this post-processing template, unless it has a post-processor."""
    if tokenizer.config.get("post_processor") is not None or not added.size:
        return tokenizer
    name = dict(zip(ids := (*added.before, *added.after), tokenizer.tokens(ids), strict=True))

    def template(*sequences: str) -> list[dict[str, Any]]:
        """`before A after`, and for a pair `before A after B after`."""
        parts: list[dict[str, Any]] = [
            {"SpecialToken": {"id": name[id], "type_id": 0}} for id in added.before
        ]
        for kind, sequence in enumerate(sequences):
            parts += [{"Sequence": {"id": sequence, "type_id": kind}}]
            parts += [{"SpecialToken": {"id": name[id], "type_id": kind}} for id in added.after]
        return parts

    rule = {
        "type": "TemplateProcessing",
        "single": template("A"),
        "pair": template("A", "B"),
        "special_tokens": {
            piece: {"id": piece, "ids": [id], "tokens": [piece]} for id, piece in name.items()
        },
    }
    return Tokenizer.from_json(
        json.dumps(tokenizer.config | {"post_processor": rule}, ensure_ascii=False)
    )


def model_card(loaded: LoadedModel, family: Family) -> str:
    """A short README.md."""
    n_parameters = sum(weight.numel() for weight in loaded.model.parameters())
    kind = (
        "feature-extraction"
        if loaded.model.spec.decoder is None
        else ("translation" if loaded.model.spec.encoder else "text-generation")
    )
    return (
        f"---\nlibrary_name: transformers\npipeline_tag: {kind}\n---\n"
        f"# A {family.model_type} model\n\n"
        f"{n_parameters:,} parameters, written by `qkv export --to huggingface`. "
        "Load it with `transformers`; no custom code.\n"
    )


def as_json(fields: Mapping[str, Any]) -> bytes:
    return (json.dumps(fields, indent=2, sort_keys=True) + "\n").encode()


def refuse_not_installed(name: str) -> None:
    if find_spec(name) is None:
        raise QkvError(name, _("is not installed"), "pip install 'qkv[convert]'")


def refuse_occupied(path: Path) -> None:
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise QkvError(path, _("already exists"), _("choose another --out"))


def write(path: Path, files: Mapping[str, disk.Content]) -> None:
    """Write a folder with all its files, atomically."""

    def fill(folder: Path) -> None:
        for name, content in files.items():
            (folder / name).parent.mkdir(exist_ok=True)
            disk.fill(folder / name, content)

    write_new_folder(path, fill)
