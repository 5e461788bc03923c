"""A progress line on stderr: count, throughput and remaining time.

On a terminal the line is updated in place, in a log one is printed every 30 seconds.
"""

import sys
import time

from qkv.messages import _


class ProgressMeter:
    """progress = ProgressMeter(total); progress(done). `total` is None if it is not known."""

    def __init__(self, total: int | None):
        self.total, self.start, self.live = total, time.monotonic(), sys.stderr.isatty()
        self.printed_at = 0.0 if self.live else self.start

    def __call__(self, done: int) -> None:
        now, last = time.monotonic(), done == self.total
        if not done or (
            now - self.printed_at < (0.2 if self.live else 30.0) and not (last and self.live)
        ):
            return
        self.printed_at = now
        ends = "\n" if last or not self.live else ""
        print(
            f"{chr(13) if self.live else ''}{self.line(done, now - self.start)}",
            end=ends,
            file=sys.stderr,
            flush=True,
        )

    def line(self, done: int, seconds: float) -> str:
        """'1,024 / 10,000 sentences, 310 sentences/s, 0:29 left'."""
        speed = done / max(seconds, 1e-9)
        counted = f"{done:,}" if self.total is None else f"{done:,} / {self.total:,}"
        if self.total is None:
            return _("{counted} sentences, {speed:,.0f} sentences/s", counted=counted, speed=speed)
        minutes, seconds = divmod(round((self.total - done) / max(speed, 1e-9)), 60)
        return _(
            "{counted} sentences, {speed:,.0f} sentences/s, {minutes}:{seconds:02} left ",
            counted=counted,
            speed=speed,
            minutes=minutes,
            seconds=seconds,
        )
