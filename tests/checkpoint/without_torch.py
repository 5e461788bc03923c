"""Run Python code in a process that must not import torch."""

import json
import subprocess
import sys
from typing import Any


def run_without_torch(code: str, *inputs: object) -> Any:
    """The value of `found`, after `code` has assigned it from the list `inputs`."""
    script = (
        "import json, sys; from dataclasses import asdict, astuple; import qkv\n"
        f"inputs = json.load(sys.stdin)\n{code}\n"
        "assert 'torch' not in sys.modules\n"
        "print(json.dumps(found))"
    )
    return json.loads(_run(script, input=json.dumps(inputs)))


def run_command_without_torch(*arguments: str) -> str:
    """What the command `qkv` prints with these arguments."""
    script = (
        "import sys; from qkv.cli.app import run; run(sys.argv[1:]); "
        "sys.exit('torch' in sys.modules)"
    )
    return _run(script, *arguments)


def _run(script: str, *arguments: str, input: str | None = None) -> str:
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments],
        input=input,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr[-2_000:]
    return done.stdout
