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

from qkv.errors import QkvError, near_miss
from qkv.language import say
from qkv.text.lines import read_text
from qkv.train.recipe import Recipe, Shape

Kind = TypeVar("Kind", bound=Recipe)

# What the numbers may be, from least to most; the rest is right as soon as its type is.
COUNT, AMOUNT, SHARE = (1, inf), (0, inf), (0, 0.999999)
LIMITS = {
    **dict.fromkeys(("layers", "d_model", "n_heads", "d_ff", "max_len", "vocab_size", "bpe_variants", "steps", "batch_tokens",
                     "accumulate", "save_every", "validate_every", "beam_size", "context", "chunk"), COUNT),
    **dict.fromkeys(("lr", "matrix_lr", "eps", "weight_decay", "warmup", "clip", "balance", "r_drop", "average", "patience",
                     "length_penalty", "masked_steps", "convolution", "guided_alignment_weight"), AMOUNT),
    **dict.fromkeys(("dropout", "bpe_dropout", "beta1", "beta2", "label_smoothing", "ema", "valid_share", "mask_share"), SHARE),
    **dict.fromkeys(("batch_pairs", "views"), (2, inf)),  # a single one has nothing to be told apart from
    "decay_share": (0, 1), "temperature": (1e-4, 100), "seed": (0, 2**31 - 1),
}  # fmt: skip


def read_recipe(
    kind: type[Kind], path: str | Path | None, settings: Sequence[str] = (), flags: Mapping[str, Any] | None = None
) -> Kind:
    """A YAML file, then `key=value` settings, then flags that were given: the later wins."""
    tree = _load(Path(path)) if path else {}
    for setting in settings:
        key, sign, text = setting.partition("=")
        if not sign:
            raise QkvError(f"--set {setting}", say("no value", "没有值"), say("write key=value", "请写 key=value"))
        _put(tree, key.strip(), _yaml(text, f"--set {setting}"))
    tree.update({key: value for key, value in (flags or {}).items() if value is not None})
    return _checked(kind, tree, str(path or "--set"))


def explain(kind: type[Recipe]) -> list[tuple[str, str, str]]:
    """Every option as (name, default, reason)."""
    rows = []
    for one in sorted(fields(kind), key=lambda one: one.name not in kind.__annotations__):
        if one.name == "model":
            rows += [(f"model.{part.name}", str(part.default), say(*part.metadata["why"])) for part in fields(Shape)]
        else:
            rows.append((one.name, _default(one), say(*one.metadata["why"])))
    return rows


def _default(one: "Field[Any]") -> str:
    return str(one.default if one.default_factory is MISSING else one.default_factory())


def _load(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise QkvError(path, say("no such recipe", "没有这个配方"), say("see recipes/", "见 recipes/"))
    tree = _yaml(read_text(path), str(path))
    if not isinstance(tree, dict):
        raise QkvError(path, say("is no list of options", "不是选项列表"), say("write key: value", "请写 key: value"))
    return tree


def _yaml(text: str, where: str) -> Any:
    import yaml

    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        line = str(error).splitlines()[0]
        wrong = say(f"is not YAML ({line})", f"不是 YAML（{line}）")
        raise QkvError(where, wrong, say("write key: value", "请写 key: value")) from None


def _put(tree: dict[str, Any], key: str, value: Any) -> None:
    *path, last = key.split(".")
    for part in path:
        below = tree.get(part, {})
        if not isinstance(below, dict):
            wrong = say(f"{part} is already {below!r}", f"{part} 已是 {below!r}")
            raise QkvError(f"--set {key}", wrong, say("give a name or sizes, not both", "请只给名字，或只给尺寸"))
        tree[part] = dict(below)
        tree = tree[part]
    tree[last] = value


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
    beyond = [*_beyond_limits(recipe), *_beyond_limits(recipe.model, "model.")]
    if beyond:
        raise QkvError(where, ", ".join(wrong for wrong, _ in beyond), ", ".join(right for _, right in beyond))
    return recipe


def _beyond_limits(part: Recipe | Shape | str, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Each number that cannot be meant, and what it may be."""
    for name, (least, most) in LIMITS.items():
        value = getattr(part, name, least)
        if not (least <= value <= most and value < inf):  # so that NaN is refused too
            right = say(f"use {least} or more", f"请用不小于 {least} 的数") if most == inf else say(
                f"use {least} to {most}", f"请用 {least} 到 {most} 的数")
            yield say(f"{prefix}{name} cannot be {value}", f"{prefix}{name} 不能是 {value}"), right


def _explain(errors: list[Any], kind: type[Recipe]) -> tuple[str, str]:
    """All that is wrong, in one line; of the choice 'text or sizes' only the sizes are worth a word."""
    wrong, right = [], []
    for error in errors:
        place = [str(part) for part in error["loc"] if part not in ("Shape", "str")]
        name = ".".join(place)
        if error["loc"][-1] == "str" and len(error["loc"]) > 1:
            continue
        if error["type"] == "unexpected_keyword_argument":
            wrong.append(say(f"no option '{name}'", f"没有选项 '{name}'"))
            known = fields(kind) if len(place) == 1 else fields(Shape)
            right.append(near_miss(place[-1], [one.name for one in known]))
        else:
            wrong.append(say(f"{name} cannot be {error['input']!r}", f"{name} 不能是 {error['input']!r}"))
            right.append(_right(error))
    return ", ".join(wrong), ", ".join(right)


def _right(error: Any) -> str:
    """What would be right, in the person's language; pydantic speaks English only."""
    match error["type"].partition("_")[0]:
        case "literal": return say(f"use {error['ctx']['expected']}", f"请用 {error['ctx']['expected']}")
        case "int": return say("use a whole number", "请用整数")
        case "float": return say("use a number", "请用数字")
        case "bool": return say("use true or false", "请用 true 或 false")
        case "string": return say("use text, in quotes if it looks like something else", "请用文本，必要时加引号")
        case "tuple": return say("use a list of files: [a.txt, b.txt]", "请用文件列表：[a.txt, b.txt]")
        case "dataclass": return say("use a preset's name, the path of a model.json, or sizes", "请用预设名、model.json 路径或尺寸")
        case _: return str(error["msg"])
