"""Read and write model.json: JSON to a checked Spec, or one error that names every problem.

Files of earlier versions are read with their old field names.
See docs/explanation/model.md, "Checking a spec".
"""

import json
from dataclasses import asdict, fields, is_dataclass
from functools import cache
from typing import Any, get_args

from qkv.errors import QkvError, near_miss
from qkv.messages import N_, _
from qkv.model import spec as s
from qkv.model.check_spec import SpecProblems, problems_of
from qkv.pydantic_errors import dotted, explain, to_error

__all__ = ["from_json", "to_json"]


def to_json(spec: s.Spec) -> str:
    """The spec as JSON; from_json(to_json(spec)) == spec."""
    return json.dumps(asdict(spec), indent=2) + "\n"


def from_json(text: str, where: str = "model.json") -> s.Spec:
    """The spec in `text`; one error names all unknown, missing and invalid fields."""
    from pydantic import ValidationError
    from pydantic_core import from_json as parse

    try:
        tree = rename_old(parse(text))
    except ValueError as error:
        raise QkvError(where, _("is not JSON"), str(error)) from None
    problems = list(_wrong_kinds(tree))
    try:
        spec = _adapter().validate_json(json.dumps(tree), strict=True)
        problems += problems_of(spec)
    except ValidationError as error:
        problems += _explain_all(error.errors(), tree)
    if problems:
        raise to_error(where, problems)
    return spec


@cache
def _adapter() -> Any:
    from pydantic import TypeAdapter  # here, because its import takes a tenth of a second

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
OLD_VALUES: dict[tuple[str, object], object] = {
    ("kind", "heads"): "attention", ("kind", "latent"): "latent_attention",
    ("kind", "experts"): "mixture_of_experts",
    ("causal", "past"): True, ("causal", "all"): False,
    ("interleaved", "adjacent"): True, ("interleaved", "halves"): False,
}  # fmt: skip


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
        if name == "arguments":  # of a custom part: its own names
            renamed[name] = part
        elif isinstance(part, dict | list):
            renamed[name] = rename_old(part)
        else:
            renamed[name] = OLD_VALUES.get((name, part), part)
    return renamed


# ── Errors ────────────────────────────────────────────────────────────────────────────────────────
# Where there is a choice of types: field -> kind -> type.
CHOICES: dict[str, dict[str, type]] = {
    field: {t.kind: t for t in get_args(union)}
    for field, union in (
        ("positions", s.Positions), ("scaling", s.Scaling), ("mixer", s.Mixer),
        ("feed_forward", s.FeedForward), ("expert", s.Dense | s.Gated),
        ("shared_expert", s.Dense | s.Gated), ("head", s.Head),
    )
}  # fmt: skip
# pydantic adds the types it tried to the location of an error.
_KIND_OF = {t.__name__: kind for types in CHOICES.values() for kind, t in types.items()}


def _wrong_kinds(tree: Any, location: tuple[Any, ...] = ()) -> SpecProblems:
    """Where there is a choice of types, the file must name a known kind."""
    parts = dict(enumerate(tree)) if isinstance(tree, list) else tree
    for key, part in parts.items() if isinstance(parts, dict) else ():
        here = (*location, key)
        yield from _wrong_kinds(part, here)
        if key in CHOICES and isinstance(part, dict) and part.get("kind") not in list(CHOICES[key]):
            kind = part.get("kind", "")
            wrong = _("no kind '{kind}'", kind=kind) if "kind" in part else _("the kind is missing")
            yield _path(here), wrong, near_miss(str(kind), CHOICES[key])


def _explain_all(errors: list[Any], tree: Any) -> SpecProblems:
    """Pydantic's errors as problems; of a union, only those of the kind that the file names."""
    names = sorted({f.name for t in vars(s).values() if is_dataclass(t) for f in fields(t)})
    for error in errors:
        if _concerns(error["loc"], tree):
            yield explain(error, names, _path, N_("write it down"))


def _path(location: tuple[Any, ...]) -> str:
    """The path in the file, such as decoder.0.mixer, without the type names pydantic adds."""
    *parents, last = [part for part in location if part not in _KIND_OF] or [""]
    return dotted([*(part for part in parents if part != "layers"), last])


def _concerns(location: tuple[Any, ...], tree: Any) -> bool:
    """Whether the types in pydantic's location are those that the file names by their kind."""
    for part in location:
        if isinstance(tree, dict) and (part in tree or part not in _KIND_OF):
            tree = tree.get(part)
        elif isinstance(tree, dict) and _KIND_OF[part] != tree.get("kind"):
            return False
        elif isinstance(tree, list) and isinstance(part, int):
            tree = tree[part]
    return True
