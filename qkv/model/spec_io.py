"""Read and write model.json: JSON to a checked Spec, or one error that names every problem.

Files of earlier versions are read with their old field names.
See docs/model.md, "Checking a spec".
"""

import json
from collections.abc import Iterator
from dataclasses import asdict, fields
from functools import cache
from typing import Any, get_args

from qkv.errors import expected_value, near_miss
from qkv.messages import _
from qkv.model import spec as s
from qkv.model.check_spec import SpecProblem, problems_of, spec_error


def to_json(spec: s.Spec) -> str:
    """The spec as JSON; from_json(to_json(spec)) == spec."""
    return json.dumps(asdict(spec), indent=2) + "\n"


def from_json(text: str, where: str = "model.json") -> s.Spec:
    """The spec in `text`; one error names all unknown, missing and invalid fields."""
    from pydantic import ValidationError

    text = with_new_names(text)
    try:
        spec = _reader().validate_json(text, strict=True)
    except ValidationError as error:
        raise spec_error(where, _explain_all(error.errors(), text)) from None
    problems = [*_wrong_kinds(json.loads(text)), *problems_of(spec)]
    if problems:
        raise spec_error(where, problems)
    return spec


@cache
def _reader() -> Any:
    from pydantic import TypeAdapter

    return TypeAdapter(s.Spec)


# ── Files of earlier versions ─────────────────────────────────────────────────────────────────────
OLD_FIELDS = {
    "kv_rank": "kv_lora_rank", "q_rank": "q_lora_rank", "d_nope": "qk_nope_head_dim",
    "d_rope": "qk_rope_head_dim", "d_value": "v_head_dim", "n_active": "n_experts_per_token",
    "each": "expert", "shared": "shared_expert", "normalised": "norm_topk_prob",
    "scale": "routed_scaling_factor", "balance_bias": "score_correction_bias",
    "sees": "causal", "place": "placement", "base": "theta", "share": "partial_rotary_factor",
    "pairs": "interleaved", "first_len": "original_max_len", "low_factor": "low_freq_factor",
    "high_factor": "high_freq_factor", "sharpness": "attention_factor", "score_sharpness": "mscale",
}  # fmt: skip
OLD_VALUES: dict[str, dict[object, object]] = {
    "kind": {"heads": "attention", "latent": "latent_attention", "experts": "mixture_of_experts"},
    "causal": {"past": True, "all": False},
    "interleaved": {"adjacent": True, "halves": False},
}


def with_new_names(text: str) -> str:
    """The text of model.json with the current names; invalid JSON is returned unchanged."""
    try:
        tree = json.loads(text)
    except json.JSONDecodeError:
        return text
    return json.dumps(rename_old(tree))


def rename_old(tree: Any) -> Any:
    """A part of a spec, as JSON, with the fields and values of earlier versions renamed."""
    if isinstance(tree, list):
        return [rename_old(part) for part in tree]
    if not isinstance(tree, dict):
        return tree
    renamed: dict[str, Any] = {}
    for key, part in tree.items():
        new = OLD_FIELDS.get(str(key), str(key))
        name = str(key) if new in tree else new  # with both names, the old one is an unknown field
        if isinstance(part, dict | list):
            renamed[name] = rename_old(part)
        else:
            renamed[name] = OLD_VALUES.get(name, {}).get(part, part)
    return renamed


# ── Errors ────────────────────────────────────────────────────────────────────────────────────────
def _explain_all(errors: list[Any], text: str) -> list[SpecProblem]:
    """Pydantic's errors as problems; of a union, only those of the kind that the file names."""
    if errors[0]["type"] == "json_invalid":
        return [("", _("is not JSON"), str(errors[0]["ctx"]["error"]))]
    tree = json.loads(text)
    problems = [_explain(error) for error in errors if _concerns(error["loc"], tree)]
    return list(dict.fromkeys([*_wrong_kinds(tree), *problems]))  # without duplicates


def _wrong_kinds(tree: Any, location: tuple[Any, ...] = ()) -> Iterator[SpecProblem]:
    """Where there is a choice of types, the file must name a known kind."""
    parts = dict(enumerate(tree)) if isinstance(tree, list) else tree
    for key, part in parts.items() if isinstance(parts, dict) else ():
        here = (*location, key)
        yield from _wrong_kinds(part, here)
        if key in CHOICES and isinstance(part, dict) and part.get("kind") not in list(CHOICES[key]):
            kind = part.get("kind", "")
            wrong = _("no kind '{kind}'", kind=kind) if "kind" in part else _("the kind is missing")
            yield _path(here), wrong, near_miss(str(kind), CHOICES[key])


def _explain(error: Any) -> SpecProblem:
    """One of pydantic's errors as a problem."""
    kind, location = error["type"], error["loc"]
    name, path = str(location[-1]) if location else "", _path(location)
    if kind == "unexpected_keyword_argument":
        wrong = _("no field '{name}'", name=name)
        return _path(location[:-1]), wrong, near_miss(name, _field_names())
    if kind in ("missing", "missing_argument"):
        return path, _("is missing"), _("write it down")
    return path, _("cannot be {value!r}", value=error["input"]), expected_value(error)


def _path(location: tuple[Any, ...]) -> str:
    """The path in the file, such as decoder.0.mixer, without the type names pydantic adds."""
    parts = [part for part in location if part not in _KIND_OF]
    last = len(parts) - 1
    return ".".join(str(part) for i, part in enumerate(parts) if part != "layers" or i == last)


def _concerns(location: tuple[Any, ...], tree: Any) -> bool:
    """Whether the types in pydantic's location are those that the file names by their kind."""
    for part in location:
        if isinstance(tree, dict) and (part in tree or part not in _KIND_OF):
            tree = tree.get(part)
        elif isinstance(tree, dict) and _KIND_OF[part] not in (None, tree.get("kind")):
            return False
        elif isinstance(tree, list) and isinstance(part, int):
            tree = tree[part]
    return True


_TYPES = (
    s.Sinusoidal, s.Learned, s.LinearScaling, s.LlamaScaling, s.YarnScaling, s.Rotary,
    s.NoPositions, s.Attention, s.LatentAttention, s.Recurrent, s.Convolution, s.TokenMlp,
    s.Pooling, s.Dense, s.Gated, s.MixtureOfExperts, s.Norm, s.Layer, s.Stack, s.LmHead,
    s.MaskedHead, s.Pooler, s.Spec,
)  # fmt: skip
# pydantic adds the types it tried to the location of an error.
_KIND_OF = {t.__name__: getattr(t, "kind", None) if t is not s.Norm else None for t in _TYPES}


# Where there is a choice of types: field -> kind -> type.
CHOICES: dict[str, dict[str, type]] = {
    field: {t.kind: t for t in get_args(union)}
    for field, union in (
        ("positions", s.Positions), ("scaling", s.Scaling), ("mixer", s.Mixer),
        ("feed_forward", s.FeedForward), ("expert", s.Dense | s.Gated),
        ("shared_expert", s.Dense | s.Gated), ("head", s.Head),
    )
}  # fmt: skip


def _field_names() -> list[str]:
    return sorted({field.name for t in _TYPES for field in fields(t)})
