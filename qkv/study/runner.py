"""Run a study: time the steps, divide the time limit, measure in parallel, resume.

All conditions train for the same number of steps, hence on the same number of tokens.
See docs/explanation/studies/index.md, "Time limit".
"""

import os
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from qkv.messages import _
from qkv.study.config import StudyConfig
from qkv.study.question import Question, load_question
from qkv.study.results import Results
from qkv.study.store import Store
from qkv.study.texts import check_data, write_data
from qkv.study.workers import Job, Stopped, WorkerPool
from qkv.train.lock import locked
from qkv.train.report import PlainLine, TerminalLine, format_duration
from qkv.train.signals import Stopper

TRAINING_FRACTION = 0.8  # of the time limit; the rest is for evaluation and start-up
QUICK_SECONDS = 15.0  # of training, all processes together
MIN_STEPS = 10


class StudyStopped(Exception):
    """The study was stopped by SIGINT or SIGTERM; the next run continues it.

    Attributes:
        n_done, n_all: Measurements that are done, and all.
    """

    def __init__(self, n_done: int, n_all: int):
        self.n_done, self.n_all = n_done, n_all
        super().__init__(f"{n_done} of {n_all}")


def measure_study(name: str, folder: Path, config: StudyConfig) -> tuple[Results, int]:
    """Make all measurements of a study that the folder does not have yet.

    Returns:
        The results, and the number of training steps.
    """
    question = load_question(name)
    check_data(question, config)
    store = Store(folder)
    plan = store.plan(name, settings_of(question, config))
    with locked(folder):
        if not (folder / "plan.json").is_file():
            write_data(question, config, store.data)
            store.save_plan(plan)
        all_jobs = list(jobs_of(name, question, config, store))
        with Stopper(_("stopping; press again to exit at once")) as stopper:
            pool = WorkerPool(
                n_workers(config), folder / "log.txt", lambda: stopper.received is not None
            )
            with pool:
                try:
                    steps = find_steps(question, config, store, plan, all_jobs, pool)
                    measure_all(store, plan, with_steps(question, all_jobs, steps), pool)
                except Stopped:
                    done = [job for job in all_jobs if store.load(job)]
                    raise StudyStopped(len(done), len(all_jobs)) from None
        return collect(question, store, all_jobs), steps


def settings_of(question: Question, config: StudyConfig) -> dict[str, Any]:
    """The settings with the default time limit."""
    settings = asdict(config)
    if not (config.minutes or config.steps or config.quick):
        settings["minutes"] = question.minutes
    return settings


def n_workers(config: StudyConfig) -> int:
    cpus = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(2)
    return config.workers or len(cpus)


def jobs_of(name: str, question: Question, config: StudyConfig, store: Store) -> Iterator[Job]:
    """All measurements, seed by seed, so that a stopped study has some of every condition."""
    for seed in range(config.seeds):
        for experiment, described in question.experiments.items():
            for condition in described.conditions:
                if seed in described.seeds(config.seeds):
                    yield {
                        "study": name,
                        "experiment": experiment,
                        "condition": condition,
                        "seed": seed,
                        "data": str(store.data.resolve()),
                    }


# ── Steps ─────────────────────────────────────────────────────────────────────────────────────
def find_steps(
    question: Question,
    config: StudyConfig,
    store: Store,
    plan: dict[str, Any],
    jobs: list[Job],
    pool: WorkerPool,
) -> int:
    """The number of training steps of every condition; it is kept in the plan."""
    if "steps" not in plan:
        training = [job for job in jobs if question.experiments[job["experiment"]].trains]
        if config.steps is None and training:
            plan["seconds_per_step"] = time_steps(training, pool)
        plan["steps"] = config.steps or fitting_steps(question, plan, training, pool.n_workers)
        store.save_plan(plan)
    return plan["steps"]


def time_steps(jobs: list[Job], pool: WorkerPool) -> dict[str, float]:
    """The time of a step of every condition."""
    first = [job | {"steps": None} for job in jobs if job["seed"] == 0]
    line = progress_line()
    try:
        seconds = {}
        for job, message in pool.run(first, lambda: None):
            seconds[cost_key(job)] = message["seconds_per_step"]
            text = _("timing: {n} of {total} conditions", n=len(seconds), total=len(first))
            line.show(text, len(seconds), len(first))
        return seconds
    finally:
        line.close()


def fitting_steps(question: Question, plan: dict[str, Any], jobs: list[Job], n_cpus: int) -> int:
    """The steps that fit into the time limit: the same for all jobs, times their `steps_factor`."""
    if not jobs:
        return 0
    settings, per_step = plan["settings"], plan["seconds_per_step"]
    total = sum(per_step[cost_key(job)] * steps_factor(question, job) for job in jobs)
    limit = QUICK_SECONDS if settings["quick"] else 60 * settings["minutes"] * n_cpus
    return max(MIN_STEPS, int(TRAINING_FRACTION * limit / total))


def steps_factor(question: Question, job: Job) -> float:
    settings = question.experiments[job["experiment"]].conditions[job["condition"]].settings
    return float(settings.get("steps_factor", 1.0))


def with_steps(question: Question, jobs: list[Job], steps: int) -> list[Job]:
    """The jobs with their number of steps; 0: the experiment does not train."""
    return [
        job
        | {
            "steps": max(MIN_STEPS, round(steps * steps_factor(question, job)))
            if question.experiments[job["experiment"]].trains
            else 0
        }
        for job in jobs
    ]


def cost_key(job: Job) -> str:
    return f"{job['experiment']}-{job['condition']}"


# ── Measurements ──────────────────────────────────────────────────────────────────────────────
def measure_all(store: Store, plan: dict[str, Any], jobs: list[Job], pool: WorkerPool) -> None:
    """Measure what is not in the folder yet; each result is written when it comes."""
    missing = [job for job in jobs if store.load(job) is None]
    if not missing:
        return
    progress = Progress(missing, plan["seconds_per_step"], len(jobs))
    try:
        for job, message in pool.run(missing, progress.show):
            if "step" in message:
                progress.update(job, message["step"])
            else:
                store.save(job, message)
                progress.finish(job)
    finally:
        progress.line.close()


def progress_line() -> PlainLine:
    interactive = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
    return (TerminalLine if interactive else PlainLine)(sys.stderr, time.monotonic)


class Progress:
    """A line on stderr: measurements done, and the time left by the speed until now."""

    def __init__(self, jobs: list[Job], seconds_per_step: dict[str, float], n_all: int):
        self.line, self.start = progress_line(), time.monotonic()
        self.n_all, self.n_done = n_all, n_all - len(jobs)
        self.costs = {
            self._id(job): max(0.5, job["steps"] * seconds_per_step.get(cost_key(job), 0.1))
            for job in jobs
        }
        self.done = dict.fromkeys(self.costs, 0.0)

    @staticmethod
    def _id(job: Job) -> str:
        return f"{cost_key(job)}-{job['seed']}"

    def update(self, job: Job, step: int) -> None:
        self.done[self._id(job)] = self.costs[self._id(job)] * step / max(1, job["steps"])

    def finish(self, job: Job) -> None:
        self.done[self._id(job)] = self.costs[self._id(job)]
        self.n_done += 1
        self.show()

    def show(self) -> None:
        done, total = sum(self.done.values()), sum(self.costs.values())
        seconds = time.monotonic() - self.start
        left = format_duration(seconds * (total - done) / done) if done else "?"
        text = _(
            "{n_done} of {n_all} measurements  {left} left",
            n_done=self.n_done,
            n_all=self.n_all,
            left=left,
        )
        finished = self.n_done == self.n_all
        self.line.show(text, 1_000 if finished else min(999, int(1_000 * done / total)), 1_000)


def collect(question: Question, store: Store, jobs: list[Job]) -> Results:
    """All measurements from the folder."""
    measurements: dict[str, dict[str, list[dict[str, Any]]]] = {
        name: {condition: [] for condition in experiment.conditions}
        for name, experiment in question.experiments.items()
    }
    for job in jobs:
        loaded = store.load(job)
        assert loaded is not None
        measurements[job["experiment"]][job["condition"]].append(loaded["measurement"])
    return Results(question, measurements)
