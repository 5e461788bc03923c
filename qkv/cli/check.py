"""`qkv check`: check the invariants of a Transformer on a model folder.

See docs/guides/inspect.md.
"""

import math
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qkv.cli.options import Json
from qkv.cli.output import print_json
from qkv.cli.parameters import argument, option
from qkv.messages import _

if TYPE_CHECKING:
    from qkv.check.checked_model import CheckedModel
    from qkv.check.result import CheckResult

SYMBOLS = {True: "✓", False: "✗", None: "–"}


def check(
    folder: Path = argument(..., "a model folder (qkv or Hugging Face format)"),
    allow_nonfinite: bool = option(
        False, "check a model with NaN or infinity in its weights too", "--allow-nonfinite"
    ),
    as_json: Json = False,
) -> int:
    """Check a model: causality, KV cache, padding and batch invariance, tied weights."""
    from qkv.check.checked_model import CheckedModel
    from qkv.check.invariants import check_model
    from qkv.checkpoint.load import load_folder

    loaded = load_folder(folder, only_finite=not allow_nonfinite, check_vocabulary=False)
    checked = CheckedModel(loaded.model, loaded.tokenizers, saved_and_loaded)
    results = check_model(checked)
    passed = all(result.passed is not False for result in results)
    if as_json:
        rows = list(map(json_row, results))
        print_json({"model": str(folder), "passed": passed, "results": rows}, indent=2)
    else:
        print("\n".join([headline(folder, checked), *map(line, results)]))
    return int(not passed)


def saved_and_loaded(model: Any, tokenizers: Any) -> tuple[Any, Any]:
    """Save the model in a temporary folder and load it from there."""
    from tempfile import TemporaryDirectory

    from qkv.checkpoint.folder import load_model, save_model

    with TemporaryDirectory() as folder:
        save_model(folder, model, tokenizers)
        loaded = load_model(folder, only_finite=False)
    return loaded.model, loaded.tokenizers


def headline(folder: Path, checked: "CheckedModel") -> str:
    return _(
        "{folder}: {n_parameters:,} parameters, checked in {dtype}, tolerance {tolerance}",
        folder=folder,
        n_parameters=sum(weight.numel() for weight in checked.original.parameters()),
        dtype=str(checked.dtype).removeprefix("torch."),
        tolerance=f"{checked.tolerance:.0e}",
    )


def line(result: "CheckResult") -> str:
    return _("{symbol} {title} ({message})", symbol=SYMBOLS[result.passed], **asdict(result))


def json_row(result: "CheckResult") -> dict[str, Any]:
    """JSON has no NaN or infinity: such a difference is null."""
    finite = math.isfinite(result.difference or 0.0)
    return asdict(result) | ({} if finite else {"difference": None})
