"""Progress of a training run: a live line on stderr, and lines in metrics.jsonl.

See docs/guides/training.md.
"""

import math
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from textwrap import indent
from types import MappingProxyType
from typing import Any, NamedTuple, TextIO

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from qkv.messages import _
from qkv.train.metrics import METRICS, append_metrics, truncate_after

__all__ = ["Throughput", "TrainingStep"]

NEW_RUN = {"step": 0, "seconds": 0.0, "loss_sum": 0.0, "tokens": 0, "all_tokens": 0, "skipped": 0}
NOTHING: Mapping[str, float] = MappingProxyType({})
Clock = Callable[[], float]


class TrainingStep(NamedTuple):
    """An optimizer step, as given to `on_step` of qkv.train.run.

    >>> TrainingStep(step=20, loss=3.5, tokens=4096, lr=1e-3).loss
    3.5

    Attributes:
        step: Its number, counted from 1.
        loss: The loss per prediction; NaN: the step was skipped.
        tokens: The tokens of its batches, without padding.
        lr: The learning rate.
    """

    step: int
    loss: float
    tokens: int
    lr: float


OnStep = Callable[[TrainingStep], object]


class Throughput:
    """Speed of a run; pauses (validation, saving) do not count in tokens per second.

    Args:
        clock: Returns the time in seconds.
        recent: The number of last steps over which tokens per second are averaged.
    """

    def __init__(self, clock: Clock = time.monotonic, recent: int = 50):
        self.clock, self.start, self.idle, self.steps = clock, clock(), 0.0, 0
        self.longest_pause = self.longest_validation = 0.0
        # (working seconds, tokens) after each recent step
        self.recent = deque([(0.0, 0)], maxlen=recent + 1)

    @property
    def seconds(self) -> float:
        return self.clock() - self.start

    def step(self, tokens: int) -> None:
        self.steps += 1
        self.recent.append((self.seconds - self.idle, self.recent[-1][1] + tokens))

    @contextmanager
    def paused(self, is_validation: bool = False) -> Iterator[None]:
        start = self.clock()
        yield
        seconds = self.clock() - start
        self.idle += seconds
        self.longest_pause = max(self.longest_pause, seconds)
        if is_validation:
            self.longest_validation = max(self.longest_validation, seconds)

    @property
    def tokens_per_second(self) -> float:
        (start, before), (end, after) = self.recent[0], self.recent[-1]
        return (after - before) / (end - start) if end > start else 0.0

    def seconds_left(self, steps: int) -> float:
        """Estimated time of `steps` more steps at the mean speed, pauses included."""
        return steps * self.seconds / self.steps if self.steps else math.inf


class PlainLine:
    """Progress in a log file: a new line every few seconds."""

    seconds = 10.0  # between two updates

    def __init__(self, stream: TextIO, clock: Clock):
        self.stream, self.clock, self.next = stream, clock, clock()

    def show(self, text: str, step: int, total: int) -> None:
        """Update the line, if it is time or the last step."""
        if self.clock() >= self.next or step == total:
            self.next = self.clock() + self.seconds
            self.update(text, step, total)

    def update(self, text: str, step: int, total: int) -> None:
        self.note(text)

    def note(self, text: str) -> None:
        with suppress(OSError):  # a closed terminal must not end the training
            print(text, file=self.stream, flush=True)

    def close(self) -> None: ...


class TerminalLine(PlainLine):
    """Progress in a terminal: one updated line with a bar; notes are printed above it."""

    seconds = 0.2

    def __init__(self, stream: TextIO, clock: Clock):
        super().__init__(stream, clock)
        self.console = Console(file=stream, highlight=False)  # respects NO_COLOR
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

    def update(self, text: str, step: int, total: int) -> None:
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
    """Reports a run's progress on stderr and in metrics.jsonl.

    Args:
        folder: The run folder.
        total: The number of steps.
        report_every: Steps between two lines of metrics.jsonl.
        resumed: The `state()` that the checkpoint saved.
        clock: Returns the time in seconds.
        stream: Where progress is printed; default: stderr.
    """

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
        self.window["measured"] = dict(self.window.get("measured", {}))
        self.earlier = float(self.window["seconds"])  # before the run was resumed
        # (step, kind) of every line that is kept
        self.recorded = truncate_after(self.path, self.window["step"] if resumed else -1)
        self.throughput, stream = Throughput(clock), stream or sys.stderr
        interactive = stream.isatty() and os.environ.get("TERM") != "dumb"
        self.line = (TerminalLine if interactive else PlainLine)(stream, clock)

    def step(
        self,
        step: int,
        loss: float,
        tokens: int,
        lr: float,
        measured: Mapping[str, float] = NOTHING,
    ) -> None:
        """Report a step: mean loss and tokens; a loss that is not finite counts as skipped.

        `measured`: other means of the step, such as the cross-entropy without label smoothing.
        """
        window, finite = self.window, math.isfinite(loss)
        self.throughput.step(tokens)
        window["step"] = step
        window["all_tokens"] += tokens
        window["loss_sum"] += loss * tokens if finite else 0.0
        window["tokens"] += tokens if finite else 0
        window["skipped"] += not finite
        for name, value in measured.items() if finite else ():
            total, n_tokens = window["measured"].get(name, (0.0, 0))
            window["measured"][name] = [total + value * tokens, n_tokens + tokens]
        self.line.show(self._text(step, loss, lr), step, self.total)
        if step % self.report_every == 0 or step == self.total:
            self._close_window(lr)

    def record(self, step: int, kind: str, **metrics: Any) -> None:
        """Append a line to metrics.jsonl, unless it already has this (step, kind)."""
        if (step, kind) in self.recorded:
            return
        self.recorded.add((step, kind))
        seconds = round(self.earlier + self.throughput.seconds, 3)
        append_metrics(self.path, {"step": step, "kind": kind, **metrics, "seconds": seconds})

    def note(self, text: str) -> None:
        """Print a text, such as the metrics of a validation, above the live line."""
        self.line.note(text)

    def paused(self, is_validation: bool = False) -> AbstractContextManager[None]:
        """`with reporter.paused(): validate()` excludes the validation from tokens/s."""
        return self.throughput.paused(is_validation)

    def state(self) -> dict[str, Any]:
        """The state to save: a resumed run then writes the lines of an uninterrupted one."""
        measured = dict(self.window["measured"])
        return {
            **self.window,
            "measured": measured,
            "seconds": self.earlier + self.throughput.seconds,
        }

    def __enter__(self) -> "Reporter":
        return self

    def __exit__(self, *error: object) -> None:
        self.line.close()

    def _text(self, step: int, loss: float, lr: float) -> str:
        return _(
            "step {step:,}/{total:,}  loss {loss:.3f}  lr {lr:.2e}  {speed} tokens/s  {left} left",
            step=step,
            total=self.total,
            loss=loss,
            lr=lr,
            speed=f"{self.throughput.tokens_per_second:,.0f}",
            left=format_duration(self.throughput.seconds_left(self.total - step)),
        )

    def _close_window(self, lr: float) -> None:
        window = self.window
        loss = window["loss_sum"] / window["tokens"] if window["tokens"] else math.nan
        means = {name: total / n for name, (total, n) in window["measured"].items()}
        skipped = {"skipped": window["skipped"]} if window["skipped"] else {}
        self.record(
            window["step"],
            "train",
            loss=loss,
            **means,
            lr=lr,
            tokens=window["all_tokens"],
            **skipped,
            tokens_per_second=round(self.throughput.tokens_per_second, 1),
        )
        window.update(loss_sum=0.0, tokens=0, skipped=0, measured={})


def validation_text(step: int, metrics: Mapping[str, Any], samples: Sequence[str]) -> str:
    """The metrics of a validation in one line, followed by samples of the model's output."""
    numbers = "  ".join(
        f"{name} {value:.3f}" for name, value in metrics.items() if isinstance(value, float)
    )
    line = _("validation at step {step}: {metrics}", step=step, metrics=numbers)
    return "\n".join([line, *(indent(sample, "    ") for sample in samples)])


def format_duration(seconds: float) -> str:
    """format_duration(3725) == "1:02:05"; "?" if the time is not known yet."""
    if not math.isfinite(seconds):
        return "?"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"
