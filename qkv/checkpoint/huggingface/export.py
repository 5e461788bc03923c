"""Our models in other people's software: a folder that transformers loads without custom code.

In: a model with its tokenizer. Out: config.json, weights under their names, tokenizer files, generation config and a
card; or one line that says which part their format cannot express. Told in docs/convert.md, "Export".
"""

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from qkv.checkpoint import disk
from qkv.checkpoint.durable import packed, write_new_folder
from qkv.checkpoint.families import FAMILIES
from qkv.checkpoint.families.config import Config, grouped
from qkv.checkpoint.huggingface.reader import TARGET
from qkv.checkpoint.huggingface.sentence_transformers_format import pooling_files
from qkv.checkpoint.loaded_model import LoadedModel
from qkv.checkpoint.names import Family, links, to_theirs
from qkv.errors import QkvError
from qkv.messages import _, listed
from qkv.model.spec import Sinusoidal, Spec
from qkv.model.transformer import Transformer
from qkv.text.special_tokens import (
    Template,
    encoder_template,
    generation_tokens,
    translation_template,
)
from qkv.text.tokenizer import Tokenizer

Kind = TypeVar("Kind")  # what a spec is written as
ROLES = ("bos", "eos", "unk", "pad", "cls", "sep", "mask")


def save_huggingface(folder: str | Path, loaded: LoadedModel) -> str:
    """Write the folder; the family it was written as comes back."""
    path, spec = Path(folder), loaded.model.spec
    refuse_occupied(path)
    family, config, target = choose_family(spec)
    weights = expressed(loaded.model.state_dict(), spec, target)
    table, nameless = links(family.rows(target), weights)
    assert not nameless, nameless
    files: dict[str, disk.Content] = {
        "model.safetensors": packed(to_theirs(table, weights), {"format": "pt"})
    }
    ids = special_ids(loaded)
    kind = next(iter(weights.values())).dtype
    config = (
        config
        | {k: v for k, v in ids.items() if k != "pad_token_id" or family.model_type != "roberta"}
        | {
            "dtype": str(kind).removeprefix("torch."),
            "torch_dtype": str(kind).removeprefix("torch."),
        }
    )
    files["config.json"] = as_json(config)
    files["README.md"] = card(loaded, family).encode()
    if spec.decoder is not None:
        files["generation_config.json"] = as_json(ids)
    files |= tokenizer_files(loaded)
    if spec.decoder is None and loaded.pooling:
        files |= pooling_files(loaded.pooling, spec.d_model)
    write(path, files)
    return family.model_type


# ── Which family, and what it cannot say ─────────────────────────────────────────────────────────────────────────
def choose_family(spec: Spec) -> tuple[Family, dict[str, Any], Spec]:
    """The family whose config.json, read again, gives this spec; the nearest one's misfits are named if none does."""
    targets, reasons = [], []
    for family in FAMILIES.values():
        written = family.write(spec)
        try:
            if written:
                targets.append(
                    (
                        (family, written),
                        family.read(Config("config.json", written, _head_names(spec))),
                    )
                )
        except QkvError as error:
            reasons.append(error)
    if reasons and not targets:
        raise reasons[0]
    if not targets:
        raise QkvError(
            "model.json",
            _("no family of Hugging Face has this shape"),
            _("we write {families}", families=listed(FAMILIES)),
        )
    (family, config), target, parts = nearest(spec, targets, mendable)
    refuse_inexpressible(
        parts, _("the nearest family, {model_type},", model_type=family.model_type)
    )
    return family, config, target


def nearest(
    spec: Spec, targets: Iterable[tuple[Kind, Spec]], mendable: Callable[[str, Any, Any], bool]
) -> tuple[Kind, Spec, list[str]]:
    """The format whose spec differs least, that spec, and the parts of ours that it cannot express."""
    tries = []
    for kind, target in targets:
        gaps = list(differences(asdict(canonical(spec)), asdict(canonical(target))))
        tries.append(
            (
                kind,
                target,
                [f"{gap[0]} {gap[1]!r}" for gap in gaps if not mendable(*gap)],
                len(gaps),
            )
        )
    kind, target, parts, _distance = min(tries, key=lambda one: (len(one[2]), one[3]))
    return kind, target, parts


def refuse_inexpressible(parts: list[str], who: str) -> None:
    if parts:
        raise QkvError(
            "model.json",
            _("{who} has no way to say {parts}", who=who, parts=listed(parts)),
            _("such a model stays in our own format"),
        )


def _head_names(spec: Spec) -> list[str]:
    """Where the weights tell which head there is (BERT), these names stand for them."""
    return {
        "masked": ["cls.predictions.bias", "lm_head.bias", "vocab_projector.bias"],
        "pooler": ["pooler.dense.weight"],
    }.get(getattr(spec.head, "kind", ""), [])


def canonical(spec: Spec) -> Spec:
    """Equal models written equally: layers grouped, no dropout, which a finished model does not use."""
    sides = {
        side: stack
        and replace(stack, layers=grouped(replace(one, repeat=1) for one in stack.each_layer()))
        for side, stack in (("encoder", spec.encoder), ("decoder", spec.decoder))
    }
    return replace(spec, dropout=0.0, **sides)  # type: ignore[arg-type]


def differences(ours: Any, theirs: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Every leaf in which two trees differ."""
    if isinstance(ours, dict) and isinstance(theirs, dict) and ours.keys() == theirs.keys():
        for name in ours:
            yield from differences(ours[name], theirs[name], f"{path}.{name}".lstrip("."))
    elif (
        isinstance(ours, list | tuple)
        and isinstance(theirs, list | tuple)
        and len(ours) == len(theirs)
    ):
        for index, (a, b) in enumerate(zip(ours, theirs, strict=True)):
            yield from differences(a, b, f"{path}.{index}")
    elif ours != theirs and not (
        isinstance(ours, float) and isinstance(theirs, float) and math.isclose(ours, theirs)
    ):
        yield path, ours, theirs


def mendable(path: str, ours: Any, theirs: Any) -> bool:
    """What other weights can say: a bias we lack is one of zeros; sines in another order are a stream in another one."""
    bias = (
        path.endswith(("bias", "out_bias"))
        and ours is False
        and theirs is True
        and "balance" not in path
    )
    types = path == "token_types" and ours == 0
    return bias or types or path == "positions.layout"


def expressed(weights: Mapping[str, Tensor], spec: Spec, target: Spec) -> dict[str, Tensor]:
    """The weights of the target spec that compute the same."""
    with torch.device("meta"):
        slots = Transformer(target).state_dict()
    kind = next(iter(weights.values())).dtype
    missing = {
        name: torch.zeros(slot.shape, dtype=kind)
        for name, slot in slots.items()
        if name not in weights
    }
    whole = {name: (missing if name in missing else weights)[name].cpu() for name in slots}
    differs = isinstance(spec.positions, Sinusoidal) and spec.positions != target.positions
    return reordered(whole, spec.d_model) if differs else whole


def reordered(weights: Mapping[str, Tensor], d_model: int) -> dict[str, Tensor]:
    """The stream's dimensions, even ones first: sin, cos, sin, cos become all sines, then all cosines."""
    order = torch.cat([torch.arange(0, d_model, 2), torch.arange(1, d_model, 2)])
    reads = (
        "embed.weight",
        "q_proj.weight",
        "k_proj.weight",
        "v_proj.weight",
        "up_proj.weight",
        "gate_proj.weight",
    )
    writes = (
        "o_proj.weight",
        "o_proj.bias",
        "down_proj.weight",
        "down_proj.bias",
        "norm.weight",
        "norm.bias",
    )
    new = dict(weights)
    for name, weight in weights.items():
        if name.endswith(reads) or name == "lm_head.weight":
            new[name] = weight[:, order]
        elif name.endswith(writes):
            new[name] = weight[order]
    return new


# ── Files ────────────────────────────────────────────────────────────────────────────────────────────────────────
def special_ids(loaded: LoadedModel) -> dict[str, Any]:
    """bos, eos, pad and, for a translator, the token that begins."""
    tokenizer = loaded.tokenizer("target")
    stored = loaded.generation
    ids = {
        f"{role}_token_id": getattr(tokenizer, f"{role}_id", None) for role in ("bos", "eos", "pad")
    }
    start = ids["bos_token_id"] if stored.start_id is None else stored.start_id
    ends: list[int | None] = [*stored.eos_ids] or [ids["eos_token_id"]]
    pad = ids["pad_token_id"] if stored.pad_id is None else stored.pad_id
    ids |= {"pad_token_id": pad, "eos_token_id": ends if len(ends) > 1 else ends[0]}
    if (
        loaded.model.spec.encoder and loaded.model.spec.decoder
    ):  # without a start our Translator's is <pad>, MarianConfig's 58100
        ids["decoder_start_token_id"] = ids["pad_token_id"] if start is None else start
    else:
        ids["bos_token_id"] = start
    return {name: id for name, id in ids.items() if id is not None}


def tokenizer_files(loaded: LoadedModel) -> dict[str, disk.Content]:
    """tokenizer.json and which of its tokens does what; a second vocabulary stands beside it."""
    tokenizers, spec, first = loaded.tokenizers, loaded.model.spec, loaded.tokenizer("source")
    if first is None:
        return {}
    ids = {role: getattr(first, f"{role}_id") for role in ROLES}
    named = {f"{role}_token": first.tokens([id])[0] for role, id in ids.items() if id is not None}
    about = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": spec.max_len,
        **named,
    }
    templated = with_template(first, template_for(loaded, first))
    files: dict[str, disk.Content] = {
        "tokenizer.json": templated.save,
        "tokenizer_config.json": as_json(about),
    }
    return files | ({TARGET: tokenizers["target"].save} if "target" in tokenizers else {})


def template_for(loaded: LoadedModel, tokenizer: Tokenizer) -> Template:
    """The special tokens that our own pipelines add to a text; other software knows them only from tokenizer.json."""
    spec = loaded.model.spec
    if spec.decoder is None:
        return encoder_template(tokenizer)
    if spec.encoder is None:
        return Template(generation_tokens(tokenizer, loaded.generation).begin)
    return translation_template(tokenizer)


def with_template(tokenizer: Tokenizer, added: Template) -> Tokenizer:
    """The same tokenizer with this post-processing template; one that has a post-processor keeps its own."""
    if tokenizer.rules.get("post_processor") is not None or not added.size:
        return tokenizer
    name = dict(zip(ids := (*added.before, *added.after), tokenizer.tokens(ids), strict=True))

    def template(*sequences: str) -> list[dict[str, Any]]:
        """before A after, and for a pair: before A after B after."""
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
        json.dumps(tokenizer.rules | {"post_processor": rule}, ensure_ascii=False)
    )


def card(loaded: LoadedModel, family: Family) -> str:
    """A short README.md."""
    numbers = sum(weight.numel() for weight in loaded.model.parameters())
    kind = (
        "feature-extraction"
        if loaded.model.spec.decoder is None
        else ("translation" if loaded.model.spec.encoder else "text-generation")
    )
    return (
        f"---\nlibrary_name: transformers\npipeline_tag: {kind}\n---\n# A {family.model_type} model\n\n"
        f"{numbers:,} parameters, written by `qkv export --to huggingface`. Load it with `transformers`; no custom code.\n"
    )


def as_json(fields: Mapping[str, Any]) -> bytes:
    return (json.dumps(fields, indent=2, sort_keys=True) + "\n").encode()


def refuse_not_installed(name: str) -> None:
    if find_spec(name) is None:
        raise QkvError(name, _("is not installed"), "pip install 'qkv[convert]'")


def refuse_occupied(path: Path) -> None:
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise QkvError(path, _("is there already"), _("choose another --out"))


def write(path: Path, files: Mapping[str, disk.Content]) -> None:
    """The folder with all its files, or none of it."""

    def fill(folder: Path) -> None:
        for name, content in files.items():
            (folder / name).parent.mkdir(exist_ok=True)
            disk.fill(folder / name, content)

    write_new_folder(path, fill)
