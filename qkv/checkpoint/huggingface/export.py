"""Our models in other people's software: a folder that transformers loads without custom code.

In: a model with its tokenizer. Out: config.json, weights under their names, tokenizer files, generation config and a
card; or one line that says which part their format cannot express. Told in docs/convert.md, "Export".
"""

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from qkv.checkpoint import disk
from qkv.checkpoint.durable import separate
from qkv.checkpoint.families import FAMILIES
from qkv.checkpoint.families.config import Config, grouped
from qkv.checkpoint.folder import LoadedModel
from qkv.checkpoint.huggingface.reader import TARGET
from qkv.checkpoint.huggingface.sentence_transformers_format import pooling_files
from qkv.checkpoint.names import Family, links, to_theirs
from qkv.errors import QkvError
from qkv.language import say
from qkv.model.spec import Sinusoidal, Spec
from qkv.model.transformer import Transformer
from qkv.text.frame import Frame, frame_of, pair_frame
from qkv.text.marks import marks_of
from qkv.text.tokenizer import Tokenizer

ROLES = ("bos", "eos", "unk", "pad", "cls", "sep", "mask")


def save_huggingface(folder: str | Path, loaded: LoadedModel) -> str:
    """Write the folder; the family it was written as comes back."""
    path, spec = Path(folder), loaded.model.spec
    refuse_occupied(path)
    family, config, target = choose_family(spec)
    weights = expressed(loaded.model.state_dict(), spec, target)
    table, nameless = links(family.rows(target), weights)
    assert not nameless, nameless
    files: dict[str, disk.Content] = {"model.safetensors": packed(to_theirs(table, weights))}
    ids = special_ids(loaded)
    kind = next(iter(weights.values())).dtype
    config = config | {k: v for k, v in ids.items() if k != "pad_token_id" or family.model_type != "roberta"} | {
        "dtype": str(kind).removeprefix("torch."), "torch_dtype": str(kind).removeprefix("torch.")}
    files["config.json"] = as_json(config)
    files["README.md"] = card(loaded, family).encode()
    if spec.decoder is not None:
        files["generation_config.json"] = as_json(ids)
    files |= tokenizer_files(loaded)
    if spec.decoder is None and loaded.facts.get("pooling"):
        files |= pooling_files(loaded.facts["pooling"], spec.d_model)
    write(path, files)
    return family.model_type


# ── Which family, and what it cannot say ─────────────────────────────────────────────────────────────────────────
def choose_family(spec: Spec) -> tuple[Family, dict[str, Any], Spec]:
    """The family whose config.json, read again, gives this spec; the nearest one's misfits are named if none does."""
    tries, reasons = [], []
    for family in FAMILIES.values():
        config = family.write(spec)
        try:
            target = family.read(Config("config.json", config, _head_names(spec))) if config else None
        except QkvError as error:
            reasons.append(error)
            continue
        if config is not None and target is not None:
            gaps = list(differences(asdict(canonical(spec)), asdict(canonical(target))))
            tries.append((sum(not mendable(*gap) for gap in gaps), len(gaps), family, config, target, gaps))
    if reasons and not tries:
        raise reasons[0]
    if not tries:
        raise QkvError("model.json", say("no family of Hugging Face has this shape", "Hugging Face 没有这种结构的模型族"),
                       say(f"we write {', '.join(FAMILIES)}", f"可写：{'、'.join(FAMILIES)}"))
    wrong, _, family, config, target, gaps = min(tries, key=lambda one: one[:2])
    if wrong:
        parts = ", ".join(f"{path} {ours!r}" for path, ours, theirs in gaps if not mendable(path, ours, theirs))
        raise QkvError("model.json", say(f"the nearest family, {family.model_type}, has no way to say {parts}",
                                         f"最接近的模型族 {family.model_type} 无法表达 {parts}"),
                       say("such a model stays in our own format", "这样的模型请保留我们的格式"))
    return family, config, target


def _head_names(spec: Spec) -> list[str]:
    """Where the weights tell which head there is (BERT), these names stand for them."""
    return {"masked": ["cls.predictions.bias", "lm_head.bias", "vocab_projector.bias"],
            "pooler": ["pooler.dense.weight"]}.get(getattr(spec.head, "kind", ""), [])


def canonical(spec: Spec) -> Spec:
    """Equal models written equally: layers grouped, no dropout, which a finished model does not use."""
    sides = {side: stack and replace(stack, layers=grouped(replace(one, repeat=1) for one in stack.each_layer()))
             for side, stack in (("encoder", spec.encoder), ("decoder", spec.decoder))}
    return replace(spec, dropout=0.0, **sides)  # type: ignore[arg-type]


def differences(ours: Any, theirs: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Every leaf in which two trees differ."""
    if isinstance(ours, dict) and isinstance(theirs, dict) and ours.keys() == theirs.keys():
        for name in ours:
            yield from differences(ours[name], theirs[name], f"{path}.{name}".lstrip("."))
    elif isinstance(ours, list | tuple) and isinstance(theirs, list | tuple) and len(ours) == len(theirs):
        for index, (a, b) in enumerate(zip(ours, theirs, strict=True)):
            yield from differences(a, b, f"{path}.{index}")
    elif ours != theirs and not (isinstance(ours, float) and isinstance(theirs, float) and math.isclose(ours, theirs)):
        yield path, ours, theirs


def mendable(path: str, ours: Any, theirs: Any) -> bool:
    """What other weights can say: a bias we lack is one of zeros; sines in another order are a stream in another one."""
    bias = path.endswith(("bias", "out_bias")) and ours is False and theirs is True and "balance" not in path
    types = path == "token_types" and ours == 0
    return bias or types or path == "positions.layout"


def expressed(weights: Mapping[str, Tensor], spec: Spec, target: Spec) -> dict[str, Tensor]:
    """The weights of the target spec that compute the same."""
    with torch.device("meta"):
        slots = Transformer(target).state_dict()
    kind = next(iter(weights.values())).dtype
    missing = {name: torch.zeros(slot.shape, dtype=kind) for name, slot in slots.items() if name not in weights}
    whole = {name: (missing if name in missing else weights)[name].cpu() for name in slots}
    differs = isinstance(spec.positions, Sinusoidal) and spec.positions != target.positions
    return reordered(whole, spec.d_model) if differs else whole


def reordered(weights: Mapping[str, Tensor], d_model: int) -> dict[str, Tensor]:
    """The stream's dimensions, even ones first: sin, cos, sin, cos become all sines, then all cosines."""
    order = torch.cat([torch.arange(0, d_model, 2), torch.arange(1, d_model, 2)])
    reads = ("embed.weight", "q_proj.weight", "k_proj.weight", "v_proj.weight", "up_proj.weight", "gate_proj.weight")
    writes = ("o_proj.weight", "o_proj.bias", "down_proj.weight", "down_proj.bias", "norm.weight", "norm.bias")
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
    tokenizer = loaded.tokenizers.get("target") or loaded.tokenizers.get("tokenizer")
    known = loaded.facts.get("generation") or {}
    ids = {f"{role}_token_id": getattr(tokenizer, f"{role}_id", None) for role in ("bos", "eos", "pad")}
    start, ends = known.get("start_id", ids["bos_token_id"]), known.get("eos_ids") or [ids["eos_token_id"]]
    ids |= {"pad_token_id": known.get("pad_id", ids["pad_token_id"]), "eos_token_id": ends if len(ends) > 1 else ends[0]}
    if loaded.model.spec.encoder and loaded.model.spec.decoder:  # without a start our Translator's is <pad>, MarianConfig's 58100
        ids["decoder_start_token_id"] = ids["pad_token_id"] if start is None else start
    else:
        ids["bos_token_id"] = start
    return {name: id for name, id in ids.items() if id is not None}


def tokenizer_files(loaded: LoadedModel) -> dict[str, disk.Content]:
    """tokenizer.json and which of its tokens does what; a second vocabulary stands beside it."""
    tokenizers, spec = loaded.tokenizers, loaded.model.spec
    first = tokenizers.get("tokenizer") or tokenizers.get("source")
    if first is None:
        return {}
    ids = {role: getattr(first, f"{role}_id") for role in ROLES}
    named = {f"{role}_token": first.tokens([id])[0] for role, id in ids.items() if id is not None}
    about = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": spec.max_len, **named}
    framed = with_frame(first, frame_for(loaded, first))
    files: dict[str, disk.Content] = {"tokenizer.json": framed.save, "tokenizer_config.json": as_json(about)}
    return files | ({TARGET: tokenizers["target"].save} if "target" in tokenizers else {})


def frame_for(loaded: LoadedModel, tokenizer: Tokenizer) -> Frame:
    """What our own pipelines put around a text that the model reads; other software knows it only from tokenizer.json."""
    spec = loaded.model.spec
    if spec.decoder is None:
        return frame_of(tokenizer)
    if spec.encoder is None:
        return Frame(marks_of(tokenizer, loaded.facts.get("generation") or {}).begin)
    return pair_frame(tokenizer)


def with_frame(tokenizer: Tokenizer, frame: Frame) -> Tokenizer:
    """The same tokenizer, which puts these tokens around a text by itself; one that has a rule of its own keeps it."""
    if tokenizer.rules.get("post_processor") is not None or not frame.size:
        return tokenizer
    name = dict(zip(ids := (*frame.before, *frame.after), tokenizer.tokens(ids), strict=True))

    def template(*sequences: str) -> list[dict[str, Any]]:
        """before A after, and for a pair: before A after B after."""
        parts: list[dict[str, Any]] = [{"SpecialToken": {"id": name[id], "type_id": 0}} for id in frame.before]
        for kind, sequence in enumerate(sequences):
            parts += [{"Sequence": {"id": sequence, "type_id": kind}}]
            parts += [{"SpecialToken": {"id": name[id], "type_id": kind}} for id in frame.after]
        return parts
    rule = {"type": "TemplateProcessing", "single": template("A"), "pair": template("A", "B"),
            "special_tokens": {piece: {"id": piece, "ids": [id], "tokens": [piece]} for id, piece in name.items()}}
    return Tokenizer.from_json(json.dumps(tokenizer.rules | {"post_processor": rule}, ensure_ascii=False))


def card(loaded: LoadedModel, family: Family) -> str:
    """A short README.md."""
    numbers = sum(weight.numel() for weight in loaded.model.parameters())
    kind = "feature-extraction" if loaded.model.spec.decoder is None else (
        "translation" if loaded.model.spec.encoder else "text-generation")
    return (f"---\nlibrary_name: transformers\npipeline_tag: {kind}\n---\n# A {family.model_type} model\n\n"
            f"{numbers:,} parameters, written by `qkv export --to huggingface`. Load it with `transformers`; no custom code.\n")


def packed(weights: Mapping[str, Tensor]) -> Any:
    """The weights as the content of a file; transformers asks for the word "pt"."""
    def fill(path: Path) -> None:
        save_file(separate(weights), path, metadata={"format": "pt"})
        path.chmod(path.parent.stat().st_mode & 0o666)  # the library writes 0600: a server may be another user
    return fill


def as_json(fields: Mapping[str, Any]) -> bytes:
    return (json.dumps(fields, indent=2, sort_keys=True) + "\n").encode()


def refuse_occupied(path: Path) -> None:
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise QkvError(path, say("is there already", "已存在"), say("choose another --out", "请另选 --out"))


def write(path: Path, files: Mapping[str, disk.Content]) -> None:
    """The folder with all its files, or none of it."""
    with disk.scratch(path) as folder:
        for name, content in files.items():
            (folder / name).parent.mkdir(exist_ok=True)
            disk.fill(folder / name, content)
            disk.sync(folder / name)
        disk.sync(folder)
        disk.put(folder, path)
        disk.sync(path.parent)
