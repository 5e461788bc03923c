"""Reading a recipe: a YAML file, then `--set key=value`, then flags; what cannot be meant is said in one line.

In: the kind of recipe, a path, settings, flags. Out: that recipe, checked; or all its options with their reasons.
Told in docs/training.md, "Recipes".
"""

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, fields
from functools import cache
from math import inf
from pathlib import Path
from typing import Any, TypeVar, cast

from qkv.errors import QkvError, expected_value, near_miss
from qkv.messages import _
from qkv.model.model_option import arguments_of
from qkv.model.presets import ARGUMENTS
from qkv.text.lines import read_text
from qkv.threads import MAX_THREADS
from qkv.train.recipe import Recipe

Kind = TypeVar("Kind", bound=Recipe)

# What the numbers may be, from least to most; the rest is right as soon as its type is.
COUNT, AMOUNT, SHARE = (1, inf), (0, inf), (0, 0.999999)
LIMITS = {
    **dict.fromkeys(
        (
            "vocab_size",
            "bpe_variants",
            "steps",
            "batch_tokens",
            "accumulate",
            "save_every",
            "validate_every",
            "beam_size",
            "context",
            "chunk",
        ),
        COUNT,
    ),
    **dict.fromkeys(
        (
            "lr",
            "matrix_lr",
            "eps",
            "weight_decay",
            "warmup",
            "clip",
            "balance",
            "r_drop",
            "average",
            "patience",
            "length_penalty",
            "masked_steps",
            "max_minutes",
            "guided_alignment_weight",
        ),
        AMOUNT,
    ),
    **dict.fromkeys(
        ("bpe_dropout", "beta1", "beta2", "label_smoothing", "ema", "valid_share", "mask_share"),
        SHARE,
    ),
    **dict.fromkeys(
        ("batch_pairs", "views"), (2, inf)
    ),  # a single one has nothing to be told apart from
    "threads": (0, MAX_THREADS),
    "decay_share": (0, 1),
    "temperature": (1e-4, 100),
    "seed": (0, 2**31 - 1),
}


def read_recipe(
    kind: type[Kind],
    path: str | Path | None,
    settings: Sequence[str] = (),
    flags: Mapping[str, Any] | None = None,
) -> Kind:
    """A YAML file, then `key=value` settings, then flags that were given: the later wins."""
    tree = _load(Path(path)) if path else {}
    for key, value in read_settings(settings):
        _put(tree, key, value)
    tree.update({key: value for key, value in (flags or {}).items() if value is not None})
    return _checked(kind, tree, str(path or "--set"))


def read_settings(settings: Sequence[str]) -> Iterator[tuple[str, Any]]:
    """`key=value` as (key, value); the value is YAML."""
    for setting in settings:
        key, sign, text = setting.partition("=")
        if not sign:
            raise QkvError(f"--set {setting}", _("no value"), _("write key=value"))
        yield key.strip(), _yaml(text, f"--set {setting}")


def explain(kind: type[Recipe]) -> list[tuple[str, str, str]]:
    """Every option as (name, default, reason)."""
    rows = []
    for one in sorted(fields(kind), key=lambda one: one.name not in kind.__annotations__):
        rows.append((one.name, _default(one, kind), _(one.metadata["why"])))
        if one.name == "model":
            known = arguments_of(kind.default_preset)
            rows += [
                (f"model.{name}", str(known[name].default), _(why))
                for name, why in ARGUMENTS.items()
            ]
    return rows


def _default(one: "Field[Any]", kind: type[Recipe]) -> str:
    if one.name == "model":
        return kind.default_preset
    return str(one.default if one.default_factory is MISSING else one.default_factory())


def _load(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise QkvError(path, _("no such recipe"), _("see recipes/"))
    tree = _yaml(read_text(path), str(path))
    if not isinstance(tree, dict):
        raise QkvError(path, _("is no list of options"), _("write key: value"))
    return tree


def _yaml(text: str, where: str) -> Any:
    import yaml

    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        line = str(error).splitlines()[0]
        wrong = _("is not YAML ({line})", line=line)
        raise QkvError(where, wrong, _("write key: value")) from None


def _put(tree: dict[str, Any], key: str, value: Any) -> None:
    """`model.layers=2` is one key of `model`, and so is a path: `model.decoder.layers.0.mixer.window=64`."""
    name, dot, path = key.partition(".")
    if name != "model" or not dot:
        tree[key] = value
        return
    model = tree.get(name, {})
    tree[name] = {**(model if isinstance(model, dict) else {"preset": model}), path: value}


@cache
def _reader(kind: Hashable) -> Any:
    from pydantic import TypeAdapter

    return TypeAdapter(cast(type, kind))


def _checked(kind: type[Kind], tree: dict[str, Any], where: str) -> Kind:
    from pydantic import ValidationError

    reader = _reader(cast(Hashable, kind))
    try:
        recipe: Kind = reader.validate_python(tree)
    except ValidationError as error:
        raise QkvError(where, *_explain(error.errors(), kind)) from None
    beyond = list(_beyond_limits(recipe))
    if beyond:
        raise QkvError(
            where, ", ".join(wrong for wrong, _ in beyond), ", ".join(right for _, right in beyond)
        )
    return recipe


def _beyond_limits(recipe: Recipe) -> Iterator[tuple[str, str]]:
    """Each number that cannot be meant, and what it may be."""
    for name, (least, most) in LIMITS.items():
        value = getattr(recipe, name, least)
        if not (least <= value <= most and value < inf):  # so that NaN is refused too
            right = (
                _("use {least} or more", least=least)
                if most == inf
                else _("use {least} to {most}", least=least, most=most)
            )
            yield _("{name} cannot be {value}", name=name, value=value), right


def _explain(errors: list[Any], kind: type[Recipe]) -> tuple[str, str]:
    """All that is wrong, in one line."""
    wrong, right = [], []
    for error in errors:
        name = ".".join(str(part) for part in error["loc"])
        if error["type"] == "unexpected_keyword_argument":
            wrong.append(_("no option '{name}'", name=name))
            right.append(near_miss(name, [one.name for one in fields(kind)]))
        else:
            wrong.append(_("{name} cannot be {input!r}", name=name, input=error["input"]))
            right.append(expected_value(error))
    return ", ".join(wrong), ", ".join(right)
