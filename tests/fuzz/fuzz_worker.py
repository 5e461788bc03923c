"""One reader, fuzzed for some seconds in a fork of this process; a crash or hang is a violation.

The engines: seeded random mutations of the valid files, and Atheris, which keeps the inputs that
reach new code of qkv (imported instrumented by run.py) and mutates them further.
"""

import hashlib
import math
import mmap
import os
import signal
import struct
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random

from fuzz_contract import limit_memory, violation_of
from fuzz_readers import Target
from mutations import Mutation

MAX_CPU_SECONDS, MAX_SECONDS = 30, 300  # for one input; a busy machine takes longer
MAX_INPUT_BYTES = 1 << 20
MAX_LOG_BYTES = 10_000  # of the standard error of a process that ended
STATE = struct.Struct("QQ")  # inputs so far, the target of the last one


@dataclass(frozen=True)
class Job:
    """A reader with its targets; violating inputs are written to `out`."""

    name: str
    targets: list[Target]
    mutate: Mutation
    out: Path


@dataclass(frozen=True)
class Result:
    """How many inputs were read, and the lines of the violations."""

    inputs: int
    violations: list[str]


class Recorder:
    """Lets the targets read inputs, counts them, and writes those that violate the contract."""

    def __init__(self, job: Job, state: mmap.mmap):
        self.job, self.state, self.count = job, state, 0
        self.seen: dict[str, int] = {}

    def read(self, index: int, content: bytes) -> None:
        self.count += 1
        self.state[: STATE.size] = STATE.pack(self.count, index)
        wrong = violation_of(self.job.targets[index], content)
        if wrong is not None:
            place = wrong.split(":")[0]
            self.seen[place] = self.seen.get(place, 0) + 1
            if self.seen[place] <= 3:
                save_violation(self.job, index, content, wrong)


def save_violation(job: Job, index: int, content: bytes, wrong: str) -> None:
    """Write the input, and a line about it."""
    job.out.mkdir(parents=True, exist_ok=True)
    name = job.name.replace(" ", "-")
    path = job.out / f"{name}-{hashlib.sha256(content).hexdigest()[:12]}"
    path.write_bytes(content)
    line = f"{job.targets[index].path.parent.name}/{job.targets[index].path.name}: {wrong}"
    with (job.out / f"{name}.log").open("a", encoding="utf-8", errors="backslashreplace") as log:
        log.write(f"{path.name}  {' '.join(line.split())[:500]}\n")


# ── Engines ──────────────────────────────────────────────────────────────────────────────────────
def run_mutations(recorder: Recorder, seconds: float, seed: int) -> None:
    """Independent random mutations of the valid files."""
    rng, job, end = Random(seed), recorder.job, time.monotonic() + seconds
    while time.monotonic() < end:
        index = rng.randrange(len(job.targets))
        recorder.read(index, job.mutate(rng, job.targets[index].valid))


def run_atheris(recorder: Recorder, seconds: float, seed: int) -> None:
    """Atheris (libFuzzer): the first byte of an input is the number of its target."""
    import atheris

    job = recorder.job
    corpus = job.targets[0].path.parent / "corpus"
    corpus.mkdir()
    for index, target in enumerate(job.targets):
        (corpus / str(index)).write_bytes(bytes([index]) + target.valid)

    def read(content: bytes) -> None:
        if content:
            recorder.read(content[0] % len(job.targets), content[1:])

    def mutate(content: bytes, max_size: int, seed: int) -> bytes:
        rng = Random(seed)
        mutated = job.mutate(rng, content[1:])
        return (content[:1] + mutated)[:max_size] or b"\0"

    options = [f"-max_total_time={max(1, int(seconds))}", f"-max_len={MAX_INPUT_BYTES}"]
    options += [f"-seed={seed % 2**31 + 1}", "-rss_limit_mb=0", "-timeout=1000", "-verbosity=0"]
    atheris.Setup(["fuzz", *options, str(corpus)], read, custom_mutator=mutate)
    atheris.Fuzz()


Engine = Callable[[Recorder, float, int], None]
ENGINES: dict[str, Engine] = {"mutations": run_mutations, "atheris": run_atheris}


# ── The fork ─────────────────────────────────────────────────────────────────────────────────────
def run(job: Job, engine: Engine, seconds: float, seed: int) -> Result:
    """Fuzz in a fork; after a crash or a hang, the input is saved as a violation."""
    state = mmap.mmap(-1, mmap.PAGESIZE)
    log = job.out / f"{job.name.replace(' ', '-')}.log"
    before = lines_of(log)
    child = os.fork()
    if not child:
        run_in_child(Recorder(job, state), engine, seconds, seed)
    code = wait(child, state, seconds)
    count, index = STATE.unpack(state[: STATE.size])
    if code:
        what = "no answer" if code == -signal.SIGKILL else f"exit code {code}"
        content = job.targets[index].path.read_bytes()
        save_violation(job, index, content, f"the process ended: {what}")
    return Result(count, lines_of(log)[len(before) :])


def run_in_child(recorder: Recorder, engine: Engine, seconds: float, seed: int) -> None:
    """Limit the memory, redirect stderr to a file, run; never returns."""
    errors = os.open(recorder.job.targets[0].path.parent, os.O_TMPFILE | os.O_RDWR, 0o600)
    os.dup2(errors, 2)
    limit_memory()
    code = 1
    try:
        engine(recorder, seconds, seed)
        code = 0
    except SystemExit as ended:  # of Atheris
        code = int(ended.code or 0)
    except BaseException:  # of the engine, not of a reader
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        if code:
            recorder.job.out.mkdir(parents=True, exist_ok=True)
            os.lseek(errors, -min(os.fstat(errors).st_size, MAX_LOG_BYTES), os.SEEK_END)
            (recorder.job.out / "stderr.log").write_bytes(os.read(errors, MAX_LOG_BYTES))
        os._exit(code)


def wait(child: int, state: mmap.mmap, seconds: float) -> int:
    """The exit code; kills a child that reads one input for too long."""
    last, changed, cpu_before = -1, time.monotonic(), 0.0
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        count = STATE.unpack(state[: STATE.size])[0]
        if count != last:
            last, changed, cpu_before = count, time.monotonic(), cpu_seconds(child)
        elif (
            cpu_seconds(child) - cpu_before > MAX_CPU_SECONDS
            or time.monotonic() - changed > MAX_SECONDS
        ):
            os.kill(child, signal.SIGKILL)
            changed, cpu_before = time.monotonic(), math.inf
        time.sleep(0.05)


def cpu_seconds(process: int) -> float:
    """The processor time of a process so far, in all its threads."""
    fields = Path(f"/proc/{process}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def lines_of(log: Path) -> list[str]:
    return log.read_text(encoding="utf-8").splitlines() if log.exists() else []
