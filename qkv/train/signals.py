"""Stopping a training in good order: finish the step, save, leave.

In: SIGINT (Ctrl-C) and SIGTERM. Out: `asked` once, for the loop to see; the second time, the end at once.
Told in docs/training.md, "Stopping and resuming".
"""

import os
import signal
import threading
from types import FrameType, TracebackType

from qkv.messages import _

STOPPED = 75  # EX_TEMPFAIL: stopped, saved, run again with --resume
SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Stopper:
    """While it is entered, the first signal only sets `asked`; a second one leaves with 130 (SIGINT) or 143 (SIGTERM).

    The loop looks at `asked` after each step; once it is set, the loop saves and the command leaves with STOPPED.
    """

    def __init__(self) -> None:
        self.asked: signal.Signals | None = None
        self._old: dict[signal.Signals, signal._HANDLER] = {}

    def __enter__(self) -> "Stopper":
        if (
            threading.current_thread() is threading.main_thread()
        ):  # Python gives signals to this thread alone
            self._old = {number: signal.signal(number, self._heard) for number in SIGNALS}
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, handler in self._old.items():
            signal.signal(number, handler)
        self._old = {}

    def _heard(self, number: int, frame: FrameType | None) -> None:
        if self.asked is not None:
            os._exit(
                128 + number
            )  # no clean-up: a save cut short harms nothing, and the lock dies with the process
        self.asked = signal.Signals(number)
        line = _("stopping after this step, then saving; once more leaves at once")
        os.write(
            2, f"\n{line}\n".encode()
        )  # not print: the signal may have come in the middle of one
