"""Read and validate a recipe: a YAML file, then `--set key=value`, then flags.

See docs/guides/training.md, "Recipes".
"""

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import MISSING, Field, fields
from pathlib import Path
from typing import Any, TypeVar, cast

from qkv.arguments import displayed
from qkv.dtypes import canonical_dtype
from qkv.errors import QkvError, expected_value, near_miss
from qkv.generate.config import TRANSLATION_LIMITS
from qkv.limits import MAX_BATCH_SIZE, MAX_TOKENS, NumberRange, format_number
from qkv.messages import _, cut
from qkv.model.model_option import arguments_of, rename_old_option
from qkv.model.presets import ARGUMENTS
from qkv.pydantic_errors import adapter
from qkv.text.lines import read_text
from qkv.text.tokenizer_json import MAX_VOCAB_SIZE
from qkv.threads import MAX_THREADS
from qkv.train.recipe import Recipe

__all__ = ["read_recipe"]

Kind = TypeVar("Kind", bound=Recipe)
Options = dict[str, Any]

COUNT, AMOUNT, FRACTION = NumberRange(1, 10**9), NumberRange(0, 1e38), NumberRange(0, 0.999999)
MAX_YAML_VALUES = 100_000  # of a recipe, which may contain a spec
LIMITS = {  # the range of each number; other types are validated by pydantic alone
    **dict.fromkeys(("steps", "save_every", "validate_every"), COUNT),
    **dict.fromkeys(("warmup_steps", "mlm_steps", "patience"), NumberRange(0, COUNT.most)),
    # Up to the largest float32: training reports a loss that is not finite.
    **dict.fromkeys(
        (
            "lr",
            "muon_lr",
            "weight_decay",
            "max_grad_norm",
            "router_aux_loss_coef",
            "r_drop",
            "guided_alignment_weight",
        ),
        AMOUNT,
    ),
    **dict.fromkeys(
        (
            "bpe_dropout",
            "beta1",
            "beta2",
            "label_smoothing",
            "ema_decay",
            "valid_fraction",
            "mlm_probability",
        ),
        FRACTION,
    ),
    **{name: TRANSLATION_LIMITS[name] for name in ("beam_size", "length_penalty")},
    "vocab_size": NumberRange(1, MAX_VOCAB_SIZE),
    "batch_tokens": NumberRange(1, 2**24),
    "gradient_accumulation_steps": NumberRange(1, 65_536),
    "context_length": NumberRange(1, MAX_TOKENS),
    "mini_batch_size": NumberRange(1, MAX_BATCH_SIZE),
    # A contrastive loss needs two groups (negatives) and two texts of a group (a positive pair).
    "batch_groups": NumberRange(2, 2**20),
    "texts_per_group": NumberRange(2, 1_024),
    "bpe_variants": NumberRange(1, 1_024),
    "average_checkpoints": NumberRange(0, 1_024),
    "max_minutes": NumberRange(0, 10**6),
    "eps": NumberRange(0, 1),
    "threads": NumberRange(0, MAX_THREADS),
    "decay_fraction": NumberRange(0, 1),
    "temperature": NumberRange(1e-4, 100),
    "seed": NumberRange(0, 2**31 - 1),
}


def read_recipe(
    kind: type[Kind],
    path: str | Path | None,
    settings: Sequence[str] = (),
    flags: Options | None = None,
) -> Kind:
    """Read a recipe; settings override the file, flags override settings.

    Args:
        kind: The recipe class of the task.
        path: A YAML file; options of earlier versions are renamed.
        settings: Lines such as "steps=100" or "model.layers=2".
        flags: Options by name; None means not given.
    """
    tree = rename_old(load_yaml(Path(path))) if path else {}
    for key, value in read_settings(settings):
        _set(tree, key, value)
    tree.update({key: value for key, value in (flags or {}).items() if value is not None})
    return validated(kind, tree, str(path or "--set"))


# Options, and values of options, in recipes of earlier versions.
OLD_OPTIONS = {
    "warmup": "warmup_steps",
    "accumulate": "gradient_accumulation_steps",
    "matrix_lr": "muon_lr",
    "clip": "max_grad_norm",
    "balance": "router_aux_loss_coef",
    "average": "average_checkpoints",
    "ema": "ema_decay",
    "best_by": "metric_for_best_model",
    "start_from": "init_from",
    "calm_start": "zero_init_residual",
    "decay_share": "decay_fraction",
    "valid_share": "valid_fraction",
    "mask_share": "mlm_probability",
    "context": "context_length",
    "masked_steps": "mlm_steps",
    "whole_words": "whole_word_mask",
    "batch_pairs": "batch_groups",
    "chunk": "mini_batch_size",
    "recompute": "gradient_checkpointing",
    "views": "texts_per_group",
}
OLD_VALUES = {("tokenizer", "bytes"): "byte_bpe"}


def rename_old(tree: Options) -> Options:
    """A parsed recipe with the options of earlier versions renamed."""
    renamed = {}
    for key, value in tree.items():
        name = OLD_OPTIONS.get(key, key)
        name = key if name in tree else name  # a recipe with both names has an unknown option
        value = rename_old_option(value) if name == "model" else value
        renamed[name] = OLD_VALUES.get((name, value), value) if isinstance(value, str) else value
    return renamed


def read_settings(settings: Sequence[str]) -> Iterator[tuple[str, Any]]:
    """`key=value` as (key, value); the value is YAML."""
    for setting in settings:
        key, sign, text = setting.partition("=")
        if not sign:
            raise QkvError(f"--set {setting}", _("no value"), _("write key=value"))
        yield key.strip(), _yaml(text, f"--set {setting}")


def explain(kind: type[Recipe]) -> list[tuple[str, str, str]]:
    """Every option as (name, default, explanation)."""
    rows = []
    for option in sorted(fields(kind), key=lambda option: option.name not in kind.__annotations__):
        rows.append((option.name, _default(option, kind), _(option.metadata["explanation"])))
        if option.name == "model":
            known = arguments_of(kind.default_preset)
            rows += [
                (f"model.{name}", str(known[name].default), _(explanation))
                for name, explanation in ARGUMENTS.items()
            ]
    return rows


def _default(option: "Field[Any]", kind: type[Recipe]) -> str:
    if option.name == "model":
        return kind.default_preset
    return str(option.default if option.default_factory is MISSING else option.default_factory())


def load_yaml(path: Path) -> Options:
    if not path.is_file():
        raise QkvError(path, _("no such recipe"), _("see recipes/"))
    tree = _yaml(read_text(path), str(path))
    if not isinstance(tree, dict):
        raise QkvError(path, _("not a mapping of options"), _("write key: value"))
    return tree


def _yaml(text: str, where: str) -> Any:
    import yaml

    try:
        tree = yaml.safe_load(text)
    except yaml.YAMLError as error:
        wrong = _("not valid YAML ({line})", line=str(error).splitlines()[0])
        raise QkvError(where, wrong, _("write key: value")) from None
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        # Of the constructors of numbers and dates, and of deep nesting.
        wrong = _("not valid YAML ({line})", line=error)
        raise QkvError(where, wrong, _("write key: value")) from None
    if _has_more_values(tree, MAX_YAML_VALUES):
        wrong = _("more than {count:,} values, aliases (*name) included", count=MAX_YAML_VALUES)
        raise QkvError(where, wrong, _("write the values without aliases"))
    return tree


def _has_more_values(tree: Any, limit: int) -> bool:
    """Whether there are more values than `limit`, which an alias inside itself always exceeds."""
    waiting, count = [tree], 0
    while waiting and count <= limit:
        part, count = waiting.pop(), count + 1
        waiting += (
            part.values() if isinstance(part, dict) else part if isinstance(part, list) else []
        )
    return count > limit


def _set(tree: Options, key: str, value: Any) -> None:
    """Set an option; keys such as `model.layers` and longer paths extend `model`."""
    name, dot, path = key.partition(".")
    if name != "model" or not dot:
        tree[key] = value
        return
    model = tree.get(name, {})
    tree[name] = {**(model if isinstance(model, dict) else {"preset": model}), path: value}


def validated(kind: type[Kind], tree: Options, where: str) -> Kind:
    """The recipe with these options; one error names all that are wrong."""
    from pydantic import ValidationError

    if isinstance(tree.get("dtype"), str):
        tree = {**tree, "dtype": canonical_dtype(tree["dtype"])}
    try:
        recipe: Kind = adapter(cast(Hashable, kind)).validate_python(tree)
    except ValidationError as error:
        raise _joined(where, [_explain(problem, kind) for problem in error.errors()]) from None
    if problems := list(_out_of_range(recipe)):
        raise _joined(where, problems)
    return recipe


def _out_of_range(recipe: Recipe) -> Iterator[tuple[str, str]]:
    """Each number outside its range, and the range."""
    for name, limit in LIMITS.items():
        value = getattr(recipe, name, limit.least)
        if value not in limit:
            yield (
                _("{name} cannot be {value}", name=name, value=format_number(value)),
                limit.right(),
            )


def _explain(error: Any, kind: type[Recipe]) -> tuple[str, str]:
    """A validation error, and what would be right."""
    name = ".".join(map(str, error["loc"]))
    if error["type"] == "unexpected_keyword_argument":
        known = [option.name for option in fields(kind)]
        return _("no option '{name}'", name=name), near_miss(name, known)
    wrong = _("{name} cannot be {input}", name=name, input=displayed(error["input"]))
    return wrong, expected_value(error)


def _joined(where: str, problems: Sequence[tuple[str, str]]) -> QkvError:
    """All problems in one line, and what would be right."""
    return QkvError(where, *(", ".join(cut([*texts])) for texts in zip(*problems, strict=True)))
