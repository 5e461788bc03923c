"""Handle SIGINT (Ctrl-C) and SIGTERM in training: finish the step, save a checkpoint, exit.

See docs/guides/training.md, "Stopping and resuming".
"""

import os
import signal
import threading
from types import FrameType

from qkv.messages import _

STOPPED = 75  # EX_TEMPFAIL: stopped and saved, can be continued with --resume
SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Stopper:
    """Context manager: the first signal sets `received`, a second one exits with 130 or 143.

    The training loop reads `received` after each step; once it is set, the loop saves a checkpoint
    and the command exits with STOPPED.

    Args:
        line: What the first signal prints; default: that a checkpoint will be saved.
    """

    def __init__(self, line: str | None = None) -> None:
        self.line = line
        self.received: signal.Signals | None = None
        self._old: dict[signal.Signals, signal._HANDLER] = {}

    def __enter__(self) -> "Stopper":
        # Python delivers signals to the main thread only.
        if threading.current_thread() is threading.main_thread():
            self._old = {number: signal.signal(number, self._on_signal) for number in SIGNALS}
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._old.items():
            signal.signal(number, handler)
        self._old = {}

    def _on_signal(self, number: int, stack_frame: FrameType | None) -> None:
        if self.received is not None:
            # No clean-up: an interrupted save is harmless, and the kernel releases the lock.
            os._exit(128 + number)
        self.received = signal.Signals(number)
        saving = _("stopping after this step and saving a checkpoint; press again to exit at once")
        # Not print: the signal may have interrupted one.
        os.write(2, f"\n{self.line or saving}\n".encode())
