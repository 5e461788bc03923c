"""The training loop: batches -> weights.

In: a task (batches, losses, validation), a recipe, a folder. Out: the folder with checkpoints, metrics and the best
model. Every random choice comes from (seed, step), so a resumed run equals an unbroken one. See docs/training.md.
"""

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from qkv.checkpoint.folder import save_model
from qkv.checkpoint.loaded_model import stored_files
from qkv.errors import QkvError
from qkv.messages import _
from qkv.model.eval_mode import eval_mode
from qkv.model.experts import ExpertFeedForward
from qkv.text.lines import write_text
from qkv.train.average import Ema, mean_of
from qkv.train.luck import luck_at
from qkv.train.optim import make_optimizers, set_share
from qkv.train.recipe import Recipe
from qkv.train.report import Clock, Reporter, validation_text
from qkv.train.schedule import share_of_peak
from qkv.train.signals import STOPPED, Stopper
from qkv.train.state import (
    Progress,
    State,
    flatten_optimizer,
    folder_of,
    load_state,
    newest_state,
    restore_optimizer,
    save_state,
    saved_steps,
)
from qkv.train.task import Task
from qkv.train.thread_choice import fastest, measure_threads
from qkv.train.time_limit import TimeLimit

KEPT = 3  # checkpoints kept besides the best one


class Trainer:
    """One run in one folder, from its beginning or from a checkpoint."""

    def __init__(
        self,
        task: Task,
        recipe: Recipe,
        folder: Path,
        resumed: State | None = None,
        clock: Clock = time.monotonic,
    ):
        self.task, self.recipe, self.folder, self.clock = task, recipe, folder, clock
        if recipe.threads:
            torch.set_num_threads(recipe.threads)
        torch.manual_seed(recipe.seed)
        self.model = task.begin().to(recipe.device)
        self.has_experts = any(
            isinstance(module, ExpertFeedForward) for module in self.model.modules()
        )
        self.optimizers = make_optimizers(self.model, recipe)
        self.ema = Ema(self.model, recipe.ema) if recipe.ema else None
        self.progress = Progress(goal=task.goal)
        self.reported = self.restore(resumed) if resumed else None
        self.time_limit = TimeLimit(self.recipe, self.model.spec.d_model, task.prelude + 1)
        self.passed_over = resumed.passed_over if resumed else ()
        if recipe.compile:
            for stack in (self.model.encoder, self.model.decoder):
                if stack is not None:
                    stack.compile()

    def fix_threads(self) -> None:
        """Measure which number of threads is fastest here and now, and record it in the recipe; nothing else changes."""
        if self.recipe.threads:
            return
        threads = torch.get_num_threads()
        if threads > 1 and self.recipe.device == "cpu":
            threads = fastest(measure_threads(self.trial_pass, threads))
        torch.set_num_threads(threads)
        self.recipe = replace(self.recipe, threads=threads)

    def trial_pass(self) -> None:
        """The gradients of the first micro-batch, thrown away again."""
        statistics = [buffer.clone() for buffer in self.model.buffers()]
        batch = self.task.batch(0)
        with torch.compiler.set_stance(
            "force_eager"
        ):  # compiled code depends on the number of threads
            self.gradients([batch], self.task.sizes(batch)[0])
        self.model.zero_grad(set_to_none=True)
        for buffer, before in zip(self.model.buffers(), statistics, strict=True):
            buffer.copy_(before)

    # ── running ──────────────────────────────────────────────────────────────────────────────────────────────────
    def run(self) -> int:
        """Train to the end, or until asked to stop; gives the exit code."""
        with (
            Reporter(
                self.folder, self.recipe.steps, resumed=self.reported, clock=self.clock
            ) as self.reporter,
            Stopper() as stopper,
        ):
            for damage in self.passed_over:
                self.reporter.note(_("passed over, damaged: {damage}", damage=damage))
            if self.reported and self.due(self.recipe.validate_every):
                self.validate()  # a checkpoint is written before its validation: do it (again)
            while (
                self.progress.step < self.recipe.steps
                and not self.finished_early
                and not stopper.asked
            ):
                self.step()
                self.fit_steps()
                if (
                    self.due(self.recipe.save_every)
                    or self.due(self.recipe.validate_every)
                    or stopper.asked
                ):
                    self.save()
                if self.due(self.recipe.validate_every) and not stopper.asked:
                    self.validate()
            if stopper.asked:
                self.save()
                return STOPPED
            self.finish()
        return 0

    def fit_steps(self) -> None:
        """Under a time limit: the steps that fit, fixed and recorded before the first learning rate that depends on them."""
        if not self.time_limit.recipe.max_minutes:
            return
        chosen = self.time_limit.chosen(
            self.recipe, self.progress.step, self.reporter.pace, self.reporter.earlier
        )
        self.reporter.total = self.time_limit.expected
        if chosen is not self.recipe:
            self.recipe, self.reporter.total = chosen, chosen.steps
            self.progress.steps, self.progress.decay_changes = chosen.steps, chosen.decay_changes
            write_text(self.folder / "train.yaml", chosen.to_yaml())
            self.reporter.note(self.time_limit.text(chosen.steps))

    @property
    def finished_early(self) -> bool:
        return bool(self.recipe.patience) and self.progress.stale >= self.recipe.patience

    def due(self, every: int) -> bool:
        return self.progress.step % every == 0 or self.progress.step == self.recipe.steps

    def planned(self, step: int) -> bool:
        """Whether an unbroken run saves after this step."""
        return (
            step % self.recipe.save_every == 0
            or step % self.recipe.validate_every == 0
            or step == self.recipe.steps
        )

    def step(self) -> None:
        """One update of the weights; a loss or gradient that is not finite never reaches them."""
        self.progress.step += 1
        number, recipe = self.progress.step, self.recipe
        lr = set_share(self.optimizers, share_of_peak(recipe, self.model.spec.d_model, number))
        batches = [
            self.task.batch((number - 1) * recipe.accumulate + i) for i in range(recipe.accumulate)
        ]
        sizes = [self.task.sizes(batch) for batch in batches]
        torch.manual_seed(luck_at(recipe.seed, number))
        statistics = [
            one.clone() for one in self.model.buffers()
        ]  # batch norm's change in the forward pass
        loss = self.gradients(batches, sum(size[0] for size in sizes))
        if math.isfinite(loss) and self.clipped():
            for optimizer in self.optimizers:
                optimizer.step()
            if self.ema:
                self.ema.update(self.model)
        else:
            loss = math.nan
            for one, before in zip(self.model.buffers(), statistics, strict=True):
                one.copy_(before)
            self.reporter.note(
                _("step {number}: not finite; the weights stay as they are", number=number)
            )
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none=True)
        self.reporter.step(number, loss, sum(size[1] for size in sizes), lr)

    def gradients(self, batches: list[Any], predicted: int) -> float:
        """The mean loss of all tokens of a step; its gradients stand at the weights."""
        self.model.train()
        loss = 0.0
        for batch in batches:
            with self.autocast():
                part = self.task.loss(self.model, batch) / predicted
            loss += float(part.detach())
            if self.has_experts:  # no part of the loss that is told: validations have none
                part = part + self.recipe.balance / len(batches) * self.model.balance_loss()
            part.backward()
        return loss

    def clipped(self) -> bool:
        """Bring the gradient to the largest norm allowed; False if it is not finite."""
        limit = self.recipe.clip or math.inf
        return bool(torch.nn.utils.clip_grad_norm_(self.model.parameters(), limit).isfinite())

    def autocast(self) -> Any:
        return torch.autocast(
            self.model.embed.weight.device.type, torch.bfloat16, enabled=self.recipe.dtype == "bf16"
        )

    # ── keeping ──────────────────────────────────────────────────────────────────────────────────────────────────
    def save(self) -> None:
        """All that a resumed run needs, durable before anything else goes on."""
        number = self.progress.step
        if number in saved_steps(self.folder) and self.saved == number:
            return
        tensors: dict[str, dict[str, Tensor]] = {"model": dict(self.model.state_dict())}
        facts: dict[str, Any] = {
            "progress": asdict(self.progress),
            "reporter": self.reporter.state(),
            "optimizers": [],
        }
        for index, optimizer in enumerate(self.optimizers):
            tensors[f"optimizer-{index}"], told = flatten_optimizer(optimizer)
            facts["optimizers"].append(told)
        if self.ema:
            tensors["ema"] = self.ema.weights
        with self.reporter.paused():
            save_state(
                self.folder,
                number,
                tensors,
                facts,
                KEPT,
                {self.progress.best_step, *self.to_average()},
            )
        self.saved = number

    saved = -1  # the last step saved by this process

    def to_average(self) -> list[int]:
        """The last planned checkpoints, which make the average; one saved for a signal is not among them."""
        past = [
            step
            for step in saved_steps(self.folder)
            if step <= self.progress.step and self.planned(step)
        ]
        return past[-self.recipe.average :] if self.recipe.average else []

    def restore(self, state: State) -> dict[str, Any]:
        """Weights, moments and numbers as they were; gives what the reporter needs to go on."""
        self.refuse_other_run(state)
        self.model.load_state_dict(state.tensors["model"])
        for index, optimizer in enumerate(self.optimizers):
            chosen = [dict(group) for group in optimizer.param_groups]
            restore_optimizer(
                optimizer, state.tensors[f"optimizer-{index}"], state.facts["optimizers"][index]
            )
            for group, own in zip(optimizer.param_groups, chosen, strict=True):
                group.clear()  # what a recipe decides (lr, decay) comes from the recipe, so that --set changes it
                group.update(own)
        if self.ema:
            self.ema.load(state.tensors["ema"])
        self.progress = Progress(
            **{"goal": self.task.goal, **state.facts["progress"]}
        )  # old ones do not tell their goal
        if (
            self.progress.goal != self.task.goal
        ):  # 25 BLEU and a loss of 2 cannot be compared: the search begins anew
            self.progress.goal, self.progress.best, self.progress.stale = self.task.goal, None, 0
        if self.progress.steps and self.recipe.max_minutes:
            changes = tuple((step, total) for step, total in self.progress.decay_changes)
            self.recipe = replace(
                self.recipe, steps=self.progress.steps, max_minutes=0.0, decay_changes=changes
            )
        self.saved = self.progress.step
        return dict(state.facts["reporter"])

    def refuse_other_run(self, state: State) -> None:
        """A checkpoint goes on with the recipe that made it, as far as it decides what there is to load."""
        shapes = {name: one.shape for name, one in self.model.state_dict().items()}
        groups = {"model", *(f"optimizer-{index}" for index in range(len(self.optimizers)))} | (
            {"ema"} if self.ema else set()
        )
        if {
            name: one.shape for name, one in state.tensors["model"].items()
        } != shapes or not groups <= state.tensors.keys():
            wrong = _("saved by a run with another model, optimizer or ema")
            raise QkvError(
                state.folder, wrong, _("go on with the run's own recipe, or choose another --out")
            )

    def validate(self) -> None:
        """Measure on held-out data; the best model so far is published at the top of the folder."""
        number = self.progress.step
        with self.reporter.paused(), self.measured_weights():
            figures = self.task.validate(self.model)
            samples = figures.pop("samples", [])
            self.reporter.record(number, "valid", **figures)
            self.reporter.note(validation_text(number, figures, samples))
            worth = self.worth(figures)
            if self.progress.best is None or worth > self.progress.best:
                self.progress.best, self.progress.best_step, self.progress.stale = worth, number, 0
                self.publish()
            elif number > self.task.prelude:
                self.progress.stale += 1

    def worth(self, figures: dict[str, Any]) -> float:
        """What is compared, larger is better: the task's goal, or minus the loss; no number is worth less than any."""
        worth = float(-figures["loss"] if self.task.goal is None else figures[self.task.goal])
        return -math.inf if math.isnan(worth) else worth

    @contextmanager
    def measured_weights(self) -> Iterator[None]:
        """What is measured and published: the running average if there is one, else the weights themselves."""
        with self.ema.lent_to(self.model) if self.ema else nullcontext(), eval_mode(self.model):
            yield

    def publish(self) -> None:
        save_model(
            self.folder, self.model, self.task.tokenizers, stored_files(**self.task.metadata)
        )

    def finish(self) -> None:
        """Average the last checkpoints if the recipe says so; the better of average and best stays at the top."""
        if self.recipe.average < 2:
            return
        steps = self.to_average()
        group = "ema" if self.ema else "model"
        states = (
            load_state(folder_of(self.folder, step), {group}).tensors[group] for step in steps
        )
        self.model.load_state_dict(mean_of(states), strict=self.ema is None)
        with eval_mode(self.model):
            figures = self.task.validate(self.model)
        figures.pop("samples", None)
        self.reporter.record(self.progress.step, "average", **figures)
        told = validation_text(self.progress.step, figures, [])
        self.reporter.note(_("mean of {n_steps} checkpoints: ", n_steps=len(steps)) + told)
        if self.progress.best is None or self.worth(figures) >= self.progress.best:
            self.publish()


def state_to_resume(folder: Path, resume: bool, skip_damaged: bool = False) -> State | None:
    """The newest checkpoint if the run is to go on; a folder that holds a run is never begun again by accident."""
    if resume:
        state = newest_state(folder, skip_damaged)
        if state is None:
            wrong = _("nothing to resume")
            raise QkvError(folder, wrong, _("leave out --resume to begin"))
        return state
    if saved_steps(folder) or (folder / "model.json").exists():
        wrong = _("already holds a run")
        raise QkvError(folder, wrong, _("go on with --resume, or choose another --out"))
    return None
