"""Real training processes that start at once: a warm process forks, and the child runs `qkv` as from the command line.

In: on stdin, one JSON line a run: its arguments and the file for its output. Out: on stdout its pid, later its exit code.
The child notes which sentences each micro-batch reads, so that the order of a run can be compared with another's.
"""

import hashlib
import json
import os
import sys
from pathlib import Path


def warm_up() -> None:
    """Import all that a training needs; one thread, since OpenMP's would not survive a fork."""
    import matplotlib.figure  # noqa: F401
    import sacrebleu  # noqa: F401
    import torch
    import torch._dynamo  # what torch's optimisers import when the first is made: most of the time of a start

    import qkv.cli.app
    import qkv.pipeline
    import qkv.train.card
    import qkv.train.loop
    import qkv.train.prepare  # noqa: F401

    torch.set_num_threads(1)


def note_rows(path: Path) -> None:
    from qkv.train.translation import Translation

    rows = Translation.rows

    def noted(self: Translation, micro_step: int, *place: int) -> object:
        found = rows(self, micro_step, *place)
        with path.open("a") as file:
            file.write(f"{micro_step} {hashlib.sha256(found.tobytes()).hexdigest()}\n")
        return found

    Translation.rows = noted  # type: ignore[method-assign, assignment]


def run(order: dict[str, str]) -> None:
    """In the child: stdout and stderr go to the file, then the command is the real one."""
    output = os.open(order["output"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for number in (1, 2):
        os.dup2(output, number)
    note_rows(Path(order["rows"]))
    sys.argv = ["qkv", *order["arguments"]]
    from qkv.cli import main

    try:
        main()
    except SystemExit as leaving:
        sys.stdout.flush()
        os._exit(int(leaving.code or 0))


if __name__ == "__main__":
    warm_up()
    print(json.dumps("ready"), flush=True)
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            run(json.loads(line))
            os._exit(99)
        print(child, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
