"""Available memory, and the error for a model that does not fit."""

from pathlib import Path

from qkv.errors import QkvError
from qkv.messages import _

MEMINFO = Path("/proc/meminfo")
GIGABYTE = 1e9


def available_bytes() -> int | None:
    """Memory that can be allocated without swapping; None: this system has no /proc/meminfo."""
    try:
        rows = MEMINFO.read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    kilobytes = [row.split()[1] for row in rows if row.startswith("MemAvailable:")]
    return 1024 * int(kilobytes[0]) if kilobytes else None


def check_memory(where: object, needed: int, right: str) -> None:
    """Raise an error if fewer than `needed` bytes are available; `right` is the remedy."""
    available = available_bytes()
    if available is not None and needed > available:
        wrong = _(
            "needs {needed:,.1f} GB of memory, {available:,.1f} GB are available",
            needed=needed / GIGABYTE,
            available=available / GIGABYTE,
        )
        raise QkvError(where, wrong, right)
