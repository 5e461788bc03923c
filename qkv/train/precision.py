"""Whether this machine can multiply in bf16 at all.

In: a device. Out: nothing, or one line. Some virtual machines announce units that they do not let programs use, and the
first product then ends the process; so it is tried in another one. Told in docs/design-notes.md, "A trap on some CPUs".
"""

import subprocess
import sys

from qkv.errors import QkvError
from qkv.messages import _

TRIAL = (
    "import torch; a = torch.ones(64, 64, dtype=torch.bfloat16); assert float((a @ a)[0, 0]) == 64"
)


def check_bf16(device: str) -> None:
    """Refuse bf16 on a CPU that cannot do it; other devices know their own types."""
    if (
        device == "cpu"
        and subprocess.run([sys.executable, "-c", TRIAL], capture_output=True).returncode
    ):
        wrong = _("bf16 matrix products fail on this CPU")
        raise QkvError("dtype", wrong, _("use float32"))
