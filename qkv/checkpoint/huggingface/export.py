"""Write a Hugging Face folder that transformers loads without custom code.

config.json, weights, tokenizer files, generation config and a model card; a spec that no family
supports is an error. See docs/guides/import-export.md, "Export".
"""

import json
from functools import partial
from pathlib import Path

from qkv.checkpoint import disk
from qkv.checkpoint.durable import json_bytes, packed, write_new_folder
from qkv.checkpoint.families import FAMILIES
from qkv.checkpoint.families.config import Config
from qkv.checkpoint.huggingface.reader import TARGET
from qkv.checkpoint.huggingface.sentence_transformers_format import pooling_files
from qkv.checkpoint.loaded_model import LoadedModel
from qkv.checkpoint.names import Fields, NotExpressible, resolve_rows, to_foreign
from qkv.checkpoint.target_spec import is_absorbable, nearest, target_weights
from qkv.errors import QkvError
from qkv.messages import N_, _, listed
from qkv.model.spec import LmHead, MaskedHead, Spec
from qkv.text.special_tokens import (
    Template,
    encoder_template,
    generation_tokens,
    translation_template,
)
from qkv.text.tokenizer import Tokenizer

sorted_json = partial(json_bytes, sort_keys=True)
ROLES = ("bos", "eos", "unk", "pad", "cls", "sep", "mask")


def save_huggingface(folder: str | Path, loaded: LoadedModel) -> str:
    """Write the folder; return the model_type of its family."""
    path, spec = Path(folder), loaded.model.spec
    disk.refuse_occupied(path)
    config, target = choose_family(spec)
    model_type, ids = config["model_type"], special_ids(loaded)
    weights = target_weights(loaded.model.state_dict(), spec, target)
    table = resolve_rows(FAMILIES[model_type].rows(target), weights)
    dtype = str(next(iter(weights.values())).dtype).removeprefix("torch.")
    config |= {k: v for k, v in ids.items() if k != "pad_token_id" or model_type != "roberta"}
    files: disk.Files = {
        "model.safetensors": packed(to_foreign(table, weights), {"format": "pt"}),
        "config.json": sorted_json(config | {"dtype": dtype, "torch_dtype": dtype}),
        "README.md": model_card(loaded, model_type).encode(),
        **tokenizer_files(loaded),
    }
    if spec.decoder is not None:
        files["generation_config.json"] = sorted_json(ids)
    elif loaded.pooling:
        files |= pooling_files(loaded.pooling, spec.d_model)
    write_new_folder(path, partial(disk.fill_folder, files=files))
    return model_type


# ── Choosing the family ─────────────────────────────────────────────────────────────────────────
def choose_family(spec: Spec) -> tuple[Fields, Spec]:
    """The config.json of the family that, reading it again, gives this spec; and that spec."""
    configs, targets, errors = {}, {}, []
    for model_type, family in FAMILIES.items():
        try:
            configs[model_type] = write_config(model_type, spec)
            config = Config("config.json", configs[model_type], _head_names(spec))
            targets[model_type] = family.read(config)
        except NotExpressible:
            continue
        except QkvError as error:
            errors.append(error)
    if errors and not targets:
        raise errors[0]
    if not targets:
        right = _("supported: {names}", names=listed(FAMILIES, None))
        raise QkvError("model.json", _("no Hugging Face architecture fits this model"), right)
    wrong = N_("the nearest Hugging Face architecture, {name}, does not support {parts}")
    chosen = nearest(spec, targets, is_absorbable, wrong)
    return configs[chosen], targets[chosen]


def write_config(model_type: str, spec: Spec) -> Fields:
    """The config.json of a family."""
    family = FAMILIES[model_type]
    head = family.head if isinstance(spec.head, LmHead | MaskedHead) else "Model"
    names = {"model_type": model_type, "architectures": [family.architecture + head]}
    return family.write(spec) | names


def _head_names(spec: Spec) -> list[str]:
    """Weight names that identify the head where config.json does not (BERT)."""
    return {
        "masked": ["cls.predictions.bias", "lm_head.bias", "vocab_projector.bias"],
        "pooler": ["pooler.dense.weight"],
    }.get(getattr(spec.head, "kind", ""), [])


# ── Files ───────────────────────────────────────────────────────────────────────────────────────
def special_ids(loaded: LoadedModel) -> Fields:
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


def tokenizer_files(loaded: LoadedModel) -> disk.Files:
    """tokenizer.json, the roles of its special tokens, and a separate target tokenizer."""
    tokenizers, spec, first = loaded.tokenizers, loaded.model.spec, loaded.tokenizer("source")
    if first is None:
        return {}
    ids = {role: getattr(first, f"{role}_id") for role in ROLES}
    tokenizer_config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": spec.max_len,
        **{f"{role}_token": first.tokens([id])[0] for role, id in ids.items() if id is not None},
    }
    files: disk.Files = {
        "tokenizer.json": with_template(first, template_for(loaded, first)).save,
        "tokenizer_config.json": sorted_json(tokenizer_config),
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
    """The tokenizer with this post-processing template, unless it has a post-processor.

    `before A after`, and for a pair `before A after B after`.
    """
    if tokenizer.config.get("post_processor") is not None or not added.size:
        return tokenizer
    before, after = tokenizer.tokens(added.before), tokenizer.tokens(added.after)
    ids = dict(zip((*before, *after), (*added.before, *added.after), strict=True))
    first = parts("SpecialToken", before, 0) + parts("Sequence", ["A"], 0)
    single = first + parts("SpecialToken", after, 0)
    rule = {
        "type": "TemplateProcessing",
        "single": single,
        "pair": single + parts("Sequence", ["B"], 1) + parts("SpecialToken", after, 1),
        "special_tokens": {
            piece: {"id": piece, "ids": [id], "tokens": [piece]} for piece, id in ids.items()
        },
    }
    return Tokenizer.from_json(
        json.dumps(tokenizer.config | {"post_processor": rule}, ensure_ascii=False)
    )


def parts(kind: str, names: list[str], type_id: int) -> list[Fields]:
    """Parts of a template in tokenizer.json."""
    return [{kind: {"id": name, "type_id": type_id}} for name in names]


def model_card(loaded: LoadedModel, model_type: str) -> str:
    """A short README.md."""
    kind = (
        "feature-extraction"
        if loaded.model.spec.decoder is None
        else ("translation" if loaded.model.spec.encoder else "text-generation")
    )
    return (
        f"---\nlibrary_name: transformers\npipeline_tag: {kind}\n---\n"
        f"# A {model_type} model\n\n"
        f"{loaded.metadata.parameters:,} parameters, written by `qkv export --to huggingface`. "
        "Load it with `transformers`; no custom code.\n"
    )
