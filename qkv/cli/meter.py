"""How far it is: a line on stderr that a person can watch.

In: how much is done. Out: count, speed and time left; on a terminal in place, in a log every half minute.
"""

import sys
import time

from qkv.messages import _


class Meter:
    """tell = Meter(total); tell(done). `total` None: nobody knows how much there is."""

    def __init__(self, total: int | None):
        self.total, self.start, self.live = total, time.monotonic(), sys.stderr.isatty()
        self.told = self.start if not self.live else 0.0

    def __call__(self, done: int) -> None:
        now, last = time.monotonic(), done == self.total
        if not done or (
            now - self.told < (0.2 if self.live else 30.0) and not (last and self.live)
        ):
            return
        self.told = now
        ends = "\n" if last or not self.live else ""
        print(
            f"{chr(13) if self.live else ''}{self.line(done, now - self.start)}",
            end=ends,
            file=sys.stderr,
            flush=True,
        )

    def line(self, done: int, seconds: float) -> str:
        """'1,024 / 10,000 sentences, 310/s, 0:29 left'."""
        speed = done / max(seconds, 1e-9)
        counted = f"{done:,}" if self.total is None else f"{done:,} / {self.total:,}"
        text = _("{counted} sentences, {speed:,.0f}/s", counted=counted, speed=speed)
        if self.total is None:
            return text
        minutes, rest = divmod(round((self.total - done) / max(speed, 1e-9)), 60)
        return text + _(", {minutes}:{rest:02} left ", minutes=minutes, rest=rest)
