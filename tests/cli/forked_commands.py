"""Run many `qkv` commands, each in a fork of one process that has imported everything.

A command has its own streams and exits as a process does, and takes milliseconds instead of
seconds. `python forked_commands.py` reads JSON lines of cases and prints one line per result.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from importlib import import_module
from pathlib import Path
from typing import Any

SECONDS = 60  # limit of a command
CLOSED, NO_READER = "closed", "pipe without reader"
STREAMS = ("stdin", "stdout", "stderr")


class ForkedCommands:
    """Context manager: run(cases) gives the code, stdout and stderr of each case.

    A case has `arguments`, and may have `stdin`, `stdout` and `stderr`: the path of a file, CLOSED
    or NO_READER. The process has imported `modules`.
    """

    def __init__(self, *modules: str):
        self.modules = modules

    def __enter__(self) -> "ForkedCommands":
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self.process: Any = subprocess.Popen([sys.executable, __file__, *self.modules], **pipes)
        return self

    def __exit__(self, *error: object) -> None:
        self.process.communicate(timeout=SECONDS)

    def run(self, cases: list[dict[str, Any]]) -> list[tuple[list[str], dict[str, Any]]]:
        results = []
        for case in cases:
            print(json.dumps(case), file=self.process.stdin, flush=True)
            results.append((case["arguments"], json.loads(self.process.stdout.readline())))
        return results


def run_forked(case: dict[str, Any]) -> dict[str, Any]:
    folder = Path(tempfile.mkdtemp())  # no context manager: the child exits with SystemExit
    files = {name: folder / name for name in ("stdout", "stderr")}
    child = os.fork()
    if not child:
        signal.alarm(SECONDS)
        os.chdir(folder)
        redirect({"stdin": os.devnull, **files, **case})
        sys.argv = ["qkv", *case["arguments"]]
        exit_quickly() if "torch" in sys.modules else qkv.cli.main()
    status = os.waitpid(child, 0)[1]
    texts = {name: read(file) for name, file in files.items()}
    shutil.rmtree(folder)
    return {"code": os.waitstatus_to_exitcode(status), **texts}


def exit_quickly() -> None:
    """Run the command; exit without freeing the objects of torch, which takes a second."""
    try:
        qkv.cli.main()
    except SystemExit as error:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(int(str(error.code)))


def read(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="backslashreplace") if path.exists() else ""


def redirect(streams: dict[str, Any]) -> None:
    """Open the standard streams as a shell does, then the objects of `sys` as Python does."""
    for descriptor, name in enumerate(STREAMS):
        os.close(descriptor)
        if streams[name] == CLOSED:
            continue
        if streams[name] == NO_READER:
            reader, opened = os.pipe()
            os.close(reader)
        else:
            flags = os.O_RDONLY if name == "stdin" else os.O_WRONLY | os.O_CREAT
            opened = os.open(streams[name], flags, 0o600)
        if opened != descriptor:
            os.dup2(opened, descriptor)
            os.close(opened)
    for descriptor, name in enumerate(STREAMS):
        file = None if streams[name] == CLOSED else as_python_opens(descriptor)
        setattr(sys, name, file)
        setattr(sys, f"__{name}__", file)


def as_python_opens(descriptor: int) -> Any:
    buffering = 1 if descriptor == 2 else -1  # stderr: by lines
    return os.fdopen(descriptor, "w" if descriptor else "r", buffering, encoding="utf-8")


if __name__ == "__main__":
    import qkv.cli.app

    for module in sys.argv[1:]:
        import_module(module)
    for line in sys.stdin:
        print(json.dumps(run_forked(json.loads(line))), flush=True)
