"""`qkv check`: tests on a user's own model the invariants of every Transformer.

In: a model folder, ours or Hugging Face's. Out: a line for each check, with a tick or an explanation; exit code 1 if one fails.
Told in docs/check.md.
"""

import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from qkv.messages import _

if TYPE_CHECKING:
    from qkv.check.checked_model import Subject
    from qkv.check.invariants import Finding

MARKS = {True: "✓", False: "✗", None: "–"}


def check(
    folder: Path = typer.Argument(help=_("A model folder, ours or Hugging Face's.")),
    as_json: bool = typer.Option(False, "--json", help=_("Print JSON, for programs.")),
) -> int:
    """Check a model: causality, KV cache, padding and batch invariance, tied weights."""
    from qkv.check.checked_model import Subject
    from qkv.check.invariants import prove_subject
    from qkv.checkpoint.load import load_folder

    loaded = load_folder(folder, only_finite=False)
    subject = Subject(loaded.model, loaded.tokenizers, saved_and_loaded)
    findings = prove_subject(subject)
    print(
        as_text(folder, findings)
        if as_json
        else "\n".join([headline(folder, subject), *map(line, findings)])
    )
    return int(any(finding.holds is False for finding in findings))


def saved_and_loaded(model: Any, tokenizers: Any) -> tuple[Any, Any]:
    """The model after a trip to the disk."""
    from tempfile import TemporaryDirectory

    from qkv.checkpoint.folder import load_model, save_model

    with TemporaryDirectory() as folder:
        save_model(folder, model, tokenizers)
        loaded = load_model(folder, only_finite=False)
    return loaded.model, loaded.tokenizers


def headline(folder: Path, subject: "Subject") -> str:
    numbers = sum(weight.numel() for weight in subject.original.parameters())
    dtype, tolerance = str(subject.dtype).removeprefix("torch."), f"{subject.tolerance:.0e}"
    return _(
        "{folder}: {numbers:,} parameters, tried in {dtype}, differences up to {tolerance} are rounding",
        folder=folder,
        numbers=numbers,
        dtype=dtype,
        tolerance=tolerance,
    )


def line(finding: "Finding") -> str:
    return _(
        "{mark} {title}: {words}",
        mark=MARKS[finding.holds],
        title=finding.title,
        words=finding.words,
    )


def as_text(folder: Path, findings: "list[Finding]") -> str:
    """JSON that any program can read: a difference that is no number is null."""
    rows = [asdict(finding) for finding in findings]
    for row in rows:
        if row["difference"] is not None and not math.isfinite(row["difference"]):
            row["difference"] = None
    holds = all(finding.holds is not False for finding in findings)
    return json.dumps(
        {"model": str(folder), "holds": holds, "findings": rows}, indent=2, ensure_ascii=False
    )
