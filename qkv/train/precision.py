"""Check that this CPU can multiply in bf16.

Some virtual machines report instructions that programs may not use; the first product then ends
the process, so a subprocess tries it. See docs/explanation/design-notes.md, "bf16 on CPUs without
usable AMX".
"""

import subprocess
import sys

from qkv.errors import QkvError
from qkv.messages import _

PROBE = (
    "import torch; a = torch.ones(64, 64, dtype=torch.bfloat16); assert float((a @ a)[0, 0]) == 64"
)


def check_bf16(device: str) -> None:
    """Raise an error if bf16 matrix products fail on this CPU; other devices are not checked."""
    if device != "cpu":
        return
    if subprocess.run([sys.executable, "-c", PROBE], capture_output=True).returncode:
        wrong = _("bf16 matrix products fail on this CPU")
        raise QkvError("dtype", wrong, _("use float32"))
