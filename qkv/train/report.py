"""What a run tells while it goes and after it: a live line, metrics.jsonl and curves.png.

In: each step's loss, tokens and learning rate, each validation's figures. Out: lines for people, a file for programs.
Told in docs/training.md, "Watching a run".
"""

import json
import math
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from textwrap import indent
from types import TracebackType
from typing import Any, TextIO

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from qkv.errors import QkvError
from qkv.messages import _

METRICS, CURVES = "metrics.jsonl", "curves.png"
TIMES = ("seconds", "tokens_per_second")  # all that differs between the files of two equal runs
NEW_RUN = {"step": 0, "seconds": 0.0, "loss_sum": 0.0, "tokens": 0, "all_tokens": 0, "skipped": 0}
Clock = Callable[[], float]


class Pace:
    """How fast a run goes, by the clock it is given; pauses (validation, saving) do not count as slow training."""

    def __init__(self, clock: Clock = time.monotonic, recent: int = 50):
        self.clock, self.began, self.idle, self.steps = clock, clock(), 0.0, 0
        self.longest_pause = 0.0
        self.marks = deque(
            [(0.0, 0)], maxlen=recent + 1
        )  # (working seconds, tokens) after each recent step

    @property
    def seconds(self) -> float:
        return self.clock() - self.began

    def step(self, tokens: int) -> None:
        self.steps += 1
        self.marks.append((self.seconds - self.idle, self.marks[-1][1] + tokens))

    @contextmanager
    def paused(self) -> Iterator[None]:
        start = self.clock()
        yield
        self.idle += self.clock() - start
        self.longest_pause = max(self.longest_pause, self.clock() - start)

    @property
    def tokens_per_second(self) -> float:
        (start, before), (end, after) = self.marks[0], self.marks[-1]
        return (after - before) / (end - start) if end > start else 0.0

    def seconds_left(self, steps: int) -> float:
        """The time `steps` more will take at the pace so far, pauses included: they will come again."""
        return steps * self.seconds / self.steps if self.steps else math.inf


class PlainLine:
    """Where nobody watches (a log file): a new line every few seconds."""

    def __init__(self, stream: TextIO, clock: Clock, every: float = 10.0):
        self.stream, self.clock, self.every, self.next = stream, clock, every, clock()

    def show(self, text: str, step: int, total: int) -> None:
        if self.clock() >= self.next or step == total:
            self.next = self.clock() + self.every
            self.note(text)

    def note(self, text: str) -> None:
        with suppress(OSError):  # a terminal that went away must not end a training
            print(text, file=self.stream, flush=True)

    def close(self) -> None: ...


class TerminalLine:
    """In a terminal: one line that renews itself, with a bar; notes appear above it."""

    def __init__(self, stream: TextIO, clock: Clock, every: float = 0.2):
        self.clock, self.every, self.next = clock, every, clock()
        self.console = Console(file=stream, highlight=False)  # minds NO_COLOR by itself
        self.progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=None),
            console=self.console,
            auto_refresh=False,
            expand=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self.task = self.progress.add_task("", total=None)
        self.progress.start()

    def show(self, text: str, step: int, total: int) -> None:
        if self.clock() >= self.next or step == total:
            self.next = self.clock() + self.every
            with suppress(OSError):
                self.progress.update(self.task, description=text, completed=step, total=total)
                self.progress.refresh()

    def note(self, text: str) -> None:
        with suppress(OSError):
            self.console.print(text, markup=False, soft_wrap=True)

    def close(self) -> None:
        with suppress(OSError):
            self.progress.stop()


class Reporter:
    """Tells a run's progress on stderr and in metrics.jsonl; `resumed` is the state() that its checkpoint kept."""

    def __init__(
        self,
        folder: str | Path,
        total: int,
        report_every: int = 50,
        resumed: Mapping[str, Any] | None = None,
        clock: Clock = time.monotonic,
        stream: TextIO | None = None,
    ):
        self.path, self.total, self.report_every = Path(folder) / METRICS, total, report_every
        self.window: dict[str, Any] = {**NEW_RUN, **(resumed or {})}
        self.earlier = float(self.window["seconds"])
        self.written = cut_after(
            self.path, self.window["step"] if resumed else -1
        )  # (step, kind) of every line kept
        self.pace, stream = Pace(clock), sys.stderr if stream is None else stream
        watched = stream.isatty() and os.environ.get("TERM") != "dumb"
        self.line: TerminalLine | PlainLine = (TerminalLine if watched else PlainLine)(
            stream, clock
        )

    def step(self, step: int, loss: float, tokens: int, lr: float) -> None:
        """One step done: its mean loss per token, its tokens; a loss that is not finite counts as a step left out."""
        window, finite = self.window, math.isfinite(loss)
        self.pace.step(tokens)
        window["step"] = step
        window["all_tokens"] += tokens
        window["loss_sum"] += loss * tokens if finite else 0.0
        window["tokens"] += tokens if finite else 0
        window["skipped"] += not finite
        self.line.show(self._text(step, loss, lr), step, self.total)
        if step % self.report_every == 0 or step == self.total:
            self._close_window(lr)

    def record(self, step: int, kind: str, **facts: Any) -> None:
        """Append one line to metrics.jsonl; a line the file already has (a validation done again) is not repeated."""
        if (step, kind) in self.written:
            return
        self.written.add((step, kind))
        entry = {
            "step": step,
            "kind": kind,
            **{name: _finite(fact) for name, fact in facts.items()},
            "seconds": round(self.earlier + self.pace.seconds, 3),
        }
        try:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(entry, ensure_ascii=False, allow_nan=False) + "\n")
        except OSError as error:
            raise QkvError(
                self.path,
                _("cannot be written ({strerror})", strerror=error.strerror),
                _("make room, then go on with --resume"),
            ) from error

    def note(self, text: str) -> None:
        """Say something in between, a validation's figures for instance, without disturbing the live line."""
        self.line.note(text)

    def paused(self) -> AbstractContextManager[None]:
        """`with reporter.paused(): validate()` keeps the validation out of tokens/s."""
        return self.pace.paused()

    def state(self) -> dict[str, Any]:
        """What a checkpoint must keep for the next lines to be those of an unbroken run."""
        return {**self.window, "seconds": self.earlier + self.pace.seconds}

    def __enter__(self) -> "Reporter":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.line.close()

    def _text(self, step: int, loss: float, lr: float) -> str:
        left = as_time(self.pace.seconds_left(self.total - step))
        speed = f"{self.pace.tokens_per_second:,.0f}"
        return _(
            "step {step:,}/{total:,}  loss {loss:.3f}  lr {lr:.2e}  {speed} tokens/s  {left} left",
            step=step,
            total=self.total,
            loss=loss,
            lr=lr,
            speed=speed,
            left=left,
        )

    def _close_window(self, lr: float) -> None:
        window = self.window
        loss = window["loss_sum"] / window["tokens"] if window["tokens"] else math.nan
        skipped = {"skipped": window["skipped"]} if window["skipped"] else {}
        self.record(
            window["step"],
            "train",
            loss=loss,
            lr=lr,
            tokens=window["all_tokens"],
            **skipped,
            tokens_per_second=round(self.pace.tokens_per_second, 1),
        )
        window.update(loss_sum=0.0, tokens=0, skipped=0)


def cut_after(path: Path, step: int) -> set[tuple[int, str]]:
    """Cut off the lines past `step`, and a line torn by a crash; gives (step, kind) of those that stay."""
    kept, size = set(), 0
    for line in path.read_bytes().splitlines(keepends=True) if path.exists() else []:
        entry = _entry(line)
        if entry is None or entry["step"] > step:
            os.truncate(path, size)
            break
        kept.add((entry["step"], entry["kind"]))
        size += len(line)
    return kept


def read_metrics(path: str | Path) -> list[dict[str, Any]]:
    """All whole lines of a metrics.jsonl; one that is being written is left out."""
    path = Path(path)
    if not path.is_file():
        right = _("give the metrics.jsonl of a run")
        raise QkvError(path, _("no such file"), right)
    entries = [_entry(line) for line in path.read_bytes().splitlines(keepends=True)]
    return [entry for entry in entries if entry is not None]


def validation_text(step: int, figures: Mapping[str, Any], samples: Sequence[str]) -> str:
    """A validation in a line, and a few samples of what the model makes under it."""
    numbers = "  ".join(
        f"{name} {value:.3f}" for name, value in figures.items() if isinstance(value, float)
    )
    shown = [indent(sample, "    ") for sample in samples]
    return "\n".join([_("validation at step {step}: ", step=step) + numbers, *shown])


def draw_curves(metrics: str | Path) -> Path:
    """metrics.jsonl -> curves.png beside it: losses, BLEU where it was measured, learning rate."""
    from matplotlib.figure import Figure  # a training without pictures never waits for it

    from qkv.evaluate.figures import readable, save

    curves = _curves(read_metrics(metrics))
    if not curves:
        raise QkvError(metrics, _("no report in it yet"), _("train a little longer"))
    with readable([name + line for name, lines in curves.items() for line in lines]):
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
        return save(figure, Path(metrics).with_name(CURVES))


def _curves(entries: list[dict[str, Any]]) -> dict[str, dict[str, list[tuple[int, float]]]]:
    """Panel -> line -> (step, value), without those that were never measured."""
    wanted = [
        (_("loss"), _("training"), "train", "loss"),
        (_("loss"), _("validation"), "valid", "loss"),
        ("BLEU", _("validation"), "valid", "bleu"),
        (_("found at rank 1"), _("validation"), "valid", "rank1"),
        (_("learning rate"), _("training"), "train", "lr"),
    ]
    curves: dict[str, dict[str, list[tuple[int, float]]]] = {}
    for panel, label, kind, name in wanted:
        ours = (entry for entry in entries if entry["kind"] == kind and entry.get(name) is not None)
        if points := [(entry["step"], entry[name]) for entry in ours]:
            curves.setdefault(panel, {})[label] = points
    return curves


def as_time(seconds: float) -> str:
    """as_time(3725) == "1:02:05"; "?" while nobody can know."""
    if not math.isfinite(seconds):
        return "?"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"


def _entry(line: bytes) -> dict[str, Any] | None:
    """A line as it was reported, or None for one that is torn or not ours."""
    entry = None
    with suppress(ValueError):
        entry = json.loads(line)
    whole = (
        isinstance(entry, dict)
        and isinstance(entry.get("step"), int)
        and isinstance(entry.get("kind"), str)
    )
    return entry if whole and line.endswith(b"\n") else None


def _finite(fact: Any) -> Any:
    """JSON has no NaN and no infinity; null says "no number"."""
    return None if isinstance(fact, float) and not math.isfinite(fact) else fact
