"""Training processes that start quickly: a warm process forks, and the child runs `qkv`.

Input on stdin: one JSON line per run with its arguments and output file. Output on stdout: its
pid, then its exit code. The child records the rows of each micro-batch to compare their order.
"""

import hashlib
import json
import os
import sys
from pathlib import Path


def warm_up() -> None:
    """Import what training needs; one thread, because OpenMP threads do not survive a fork."""
    import matplotlib.figure  # noqa: F401
    import sacrebleu  # noqa: F401
    import torch
    import torch._dynamo  # imported by the first torch optimizer: most of the start-up time

    import qkv.cli.app
    import qkv.pipeline
    import qkv.train.card
    import qkv.train.loop
    import qkv.train.prepare  # noqa: F401

    torch.set_num_threads(1)


def record_rows(path: Path) -> None:
    from qkv.train.translation import TranslationTask

    rows = TranslationTask.rows

    def recording(self: TranslationTask, micro_step: int, *process: int) -> object:
        found = rows(self, micro_step, *process)
        with path.open("a") as file:
            file.write(f"{micro_step} {hashlib.sha256(found.tobytes()).hexdigest()}\n")
        return found

    TranslationTask.rows = recording  # type: ignore[method-assign, assignment]


def run(order: dict[str, str]) -> None:
    """In the child: redirect stdout and stderr to the file, then run the command."""
    output = os.open(order["output"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for number in (1, 2):
        os.dup2(output, number)
    record_rows(Path(order["rows"]))
    sys.argv = ["qkv", *order["arguments"]]
    from qkv.cli import main

    try:
        main()
    except SystemExit as exit_:
        sys.stdout.flush()
        os._exit(int(exit_.code or 0))


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
