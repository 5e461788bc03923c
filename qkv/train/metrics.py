"""metrics.jsonl: one JSON line per report or validation of a run; and curves.png drawn from it.

See docs/guides/training.md.
"""

import json
import math
import os
from pathlib import Path
from typing import Any

from qkv.errors import QkvError
from qkv.messages import _
from qkv.train.state import OLD_METRICS

Entry = dict[str, Any]  # a line of the file
Curves = dict[str, dict[str, list[tuple[int, float]]]]  # panel -> line -> (step, value)

METRICS, CURVES = "metrics.jsonl", "curves.png"
MEASURED = ("cross_entropy", "contrastive_loss", "mlm_loss")  # in training and validation
TIMING_FIELDS = ("seconds", "tokens_per_second")  # all that differs between two equal runs


def read_metrics(path: Path) -> list[Entry]:
    """All complete lines of a metrics.jsonl; a line that is being written is left out."""
    if not path.is_file():
        raise QkvError(path, _("no such file"), _("give the metrics.jsonl of a run"))
    return list(filter(None, map(_parse, path.read_bytes().splitlines(keepends=True))))


def append_metrics(path: Path, entry: Entry) -> None:
    """Append one line; JSON has no NaN and no infinity, so they become null."""
    finite = {name: _finite(value) for name, value in entry.items()}
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(finite, ensure_ascii=False, allow_nan=False) + "\n")
    except OSError as error:
        wrong = _("cannot be written ({strerror})", strerror=error.strerror)
        raise QkvError(path, wrong, _("free disk space, then continue with --resume")) from error


def truncate_after(path: Path, step: int) -> set[tuple[int, str]]:
    """Remove lines after `step` and an incomplete line; returns (step, kind) of the others."""
    kept, size = set(), 0
    for line in path.read_bytes().splitlines(keepends=True) if path.exists() else []:
        entry = _parse(line)
        if entry is None or entry["step"] > step:
            os.truncate(path, size)
            break
        kept.add((entry["step"], entry["kind"]))
        size += len(line)
    return kept


def _parse(line: bytes) -> Entry | None:
    """A line with the names of today's metrics, None if it is incomplete or not a report."""
    try:
        match json.loads(line):
            case {"step": int(), "kind": str()} as entry if line.endswith(b"\n"):
                return {OLD_METRICS.get(name, name): value for name, value in entry.items()}
    except ValueError:
        pass
    return None


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


# ── curves ───────────────────────────────────────────────────────────────────────────────────────
def draw_curves(metrics: Path) -> Path:
    """Draw curves.png beside metrics.jsonl: losses, BLEU or recall, learning rate.

    A panel has one quantity: the training objective has its own, where it is not the cross-entropy.
    """
    from matplotlib.figure import Figure  # slow to import, and training does not need it

    from qkv.evaluate.figures import fonts_with, save

    curves = curves_of(read_metrics(metrics))
    if not curves:
        raise QkvError(metrics, _("has no report yet"), _("train for more steps"))
    with fonts_with([name + line for name, lines in curves.items() for line in lines]):
        figure = Figure(figsize=(8, 2.6 * len(curves)), layout="constrained")
        panels = figure.subplots(len(curves), 1, sharex=True, squeeze=False)[:, 0]
        for panel, (name, lines) in zip(panels, curves.items(), strict=True):
            for label, points in lines.items():
                panel.plot(
                    *zip(*points, strict=True), label=label, marker="." if len(points) < 60 else ""
                )
            panel.set_ylabel(name)
            panel.grid(alpha=0.3)
            panel.legend()
        panels[-1].set_xlabel(_("step"))
        return save(figure, metrics.with_name(CURVES))


def curves_of(entries: list[Entry]) -> Curves:
    """Panel -> line -> (step, value), without metrics that were not measured."""
    training, validation = _("training"), _("validation")
    entries = list(map(named_losses, entries))
    wanted = [
        (_("cross-entropy (nats per token)"), training, "train", "cross_entropy"),
        (_("cross-entropy (nats per token)"), validation, "valid", "cross_entropy"),
        (_("contrastive loss (nats per pair)"), training, "train", "contrastive_loss"),
        (_("contrastive loss (nats per pair)"), validation, "valid", "contrastive_loss"),
        (_("MLM loss (nats per token)"), training, "train", "mlm_loss"),
        (_("MLM loss (nats per token)"), validation, "valid", "mlm_loss"),
        (_("training objective"), training, "train", "objective"),
        ("BLEU", validation, "valid", "bleu"),
        (_("recall@1"), validation, "valid", "recall_at_1"),
        (_("learning rate"), training, "train", "lr"),
    ]
    curves: Curves = {}
    for panel, label, kind, name in wanted:
        points = [
            (entry["step"], entry[name])
            for entry in entries
            if entry["kind"] == kind and entry.get(name) is not None
        ]
        if points:
            curves.setdefault(panel, {})[label] = points
    return curves


def named_losses(entry: Entry) -> Entry:
    """The entry with the quantity that `loss` is in it.

    Of a validation it is the cross-entropy, or the contrastive loss. Of a training report it is the
    objective, which may have label smoothing and other terms; files of earlier versions have only
    this one.
    """
    loss = entry.get("loss")
    if entry["kind"] == "valid":
        is_embedding = "recall_at_1" in entry or "mlm_loss" in entry
        return {"contrastive_loss" if is_embedding else "cross_entropy": loss, **entry}
    values = [entry[name] for name in MEASURED if entry.get(name) is not None]
    is_one_of_them = any(math.isclose(loss, value, rel_tol=1e-5) for value in values if loss)
    # Two of them: the window in which masked language modeling ended.
    return entry if is_one_of_them or len(values) > 1 else {"objective": loss, **entry}
