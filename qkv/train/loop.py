"""The training loop: trains a task's model and writes checkpoints, metrics and the best model.

All random numbers derive from (seed, step), so a resumed run equals an uninterrupted one. See
docs/training.md.
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
from qkv.messages import _
from qkv.model.eval_mode import eval_mode
from qkv.model.experts import ExpertFeedForward
from qkv.text.lines import write_text
from qkv.train.average import Ema, average_state_dicts
from qkv.train.optim import make_optimizers, set_lr
from qkv.train.recipe import Recipe
from qkv.train.report import Clock, Reporter, validation_text
from qkv.train.resume import check_same_run, restore_optimizers
from qkv.train.schedule import lr_factor
from qkv.train.seeds import derive_seed
from qkv.train.signals import STOPPED, Stopper
from qkv.train.state import (
    Progress,
    State,
    checkpoint_folder,
    flatten_optimizer,
    load_state,
    save_state,
    saved_steps,
)
from qkv.train.task import Task
from qkv.train.thread_choice import fastest, measure_threads
from qkv.train.time_limit import TimeLimit

CHECKPOINTS_KEPT = 3  # besides the best one


class Trainer:
    """A training run in a folder, from the start or from a checkpoint.

    Args:
        task: Gives the model, the batches, the loss and the validation.
        recipe: The options of the run.
        folder: The run folder.
        resumed: The checkpoint to continue from.
        clock: Seconds, for reports and the time limit.
    """

    saved = -1  # the last step saved by this process

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
        self.model = task.initial_model().to(recipe.device)
        self.has_experts = any(
            isinstance(module, ExpertFeedForward) for module in self.model.modules()
        )
        self.optimizers = make_optimizers(self.model, recipe)
        self.ema = Ema(self.model, recipe.ema_decay) if recipe.ema_decay else None
        self.progress = Progress(metric=task.metric)
        self.reporter_state = self.restore(resumed) if resumed else None
        self.time_limit = TimeLimit(
            self.recipe, self.model.spec.d_model, task.pretraining_steps + 1
        )
        self.skipped = resumed.skipped if resumed else ()
        if recipe.compile:
            for stack in (self.model.encoder, self.model.decoder):
                if stack is not None:
                    stack.compile()

    def choose_threads(self) -> None:
        """Measure the fastest number of threads and record it in the recipe."""
        if self.recipe.threads:
            return
        threads = torch.get_num_threads()
        if threads > 1 and self.recipe.device == "cpu":
            threads = fastest(measure_threads(self.trial_pass, threads))
        torch.set_num_threads(threads)
        self.recipe = replace(self.recipe, threads=threads)

    def trial_pass(self) -> None:
        """Compute the gradients of the first micro-batch and discard them."""
        statistics = [buffer.clone() for buffer in self.model.buffers()]
        batch = self.task.batch(0)
        # Compiled code depends on the number of threads.
        with torch.compiler.set_stance("force_eager"):
            self.gradients([batch], self.task.sizes(batch)[0])
        self.model.zero_grad(set_to_none=True)
        for buffer, before in zip(self.model.buffers(), statistics, strict=True):
            buffer.copy_(before)

    # ── training ─────────────────────────────────────────────────────────────────────────────────
    def run(self) -> int:
        """Train to the end, or until a signal asks to stop; returns the exit code."""
        with (
            Reporter(
                self.folder, self.recipe.steps, resumed=self.reporter_state, clock=self.clock
            ) as self.reporter,
            Stopper() as stopper,
        ):
            for error in self.skipped:
                self.reporter.note(_("skipped a damaged checkpoint: {error}", error=error))
            if self.reporter_state and self.due(self.recipe.validate_every):
                self.validate()  # a checkpoint is written before its validation: repeat it
            while self.progress.step < self.recipe.steps and not (
                self.out_of_patience or stopper.received
            ):
                self.step()
                self.apply_time_limit()
                due = self.due(self.recipe.save_every) or self.due(self.recipe.validate_every)
                if due or stopper.received:
                    self.save()
                if self.due(self.recipe.validate_every) and not stopper.received:
                    self.validate()
            if stopper.received:
                self.save()
                return STOPPED
            self.finish()
        return 0

    def apply_time_limit(self) -> None:
        """Fix and record the number of steps before the first learning rate that depends on it."""
        if not self.time_limit.recipe.max_minutes:
            return
        recipe = self.time_limit.updated(
            self.recipe, self.progress.step, self.reporter.throughput, self.reporter.earlier
        )
        self.reporter.total = self.time_limit.expected
        if recipe is not self.recipe:
            self.recipe, self.reporter.total = recipe, recipe.steps
            self.progress.steps, self.progress.decay_changes = recipe.steps, recipe.decay_changes
            write_text(self.folder / "train.yaml", recipe.to_yaml())
            self.reporter.note(self.time_limit.text(recipe.steps))

    @property
    def out_of_patience(self) -> bool:
        """Early stopping: too many validations without improvement."""
        return bool(self.recipe.patience) and self.progress.bad_validations >= self.recipe.patience

    def due(self, every: int) -> bool:
        return self.progress.step % every == 0 or self.progress.step == self.recipe.steps

    def is_scheduled(self, step: int) -> bool:
        """Whether an uninterrupted run saves a checkpoint after this step."""
        return (
            step % self.recipe.save_every == 0
            or step % self.recipe.validate_every == 0
            or step == self.recipe.steps
        )

    def step(self) -> None:
        """One optimizer step; it is skipped if the loss or the gradient is not finite."""
        self.progress.step += 1
        number, recipe = self.progress.step, self.recipe
        lr = set_lr(self.optimizers, lr_factor(recipe, self.model.spec.d_model, number))
        batches = [
            self.task.batch((number - 1) * recipe.gradient_accumulation_steps + i)
            for i in range(recipe.gradient_accumulation_steps)
        ]
        sizes = [self.task.sizes(batch) for batch in batches]
        torch.manual_seed(derive_seed(recipe.seed, number))
        # Batch norm changes its running statistics in the forward pass.
        statistics = [buffer.clone() for buffer in self.model.buffers()]
        loss = self.gradients(batches, sum(size[0] for size in sizes))
        if math.isfinite(loss) and self.clip_gradients():
            for optimizer in self.optimizers:
                optimizer.step()
            if self.ema:
                self.ema.update(self.model)
        else:
            loss = math.nan
            for buffer, before in zip(self.model.buffers(), statistics, strict=True):
                buffer.copy_(before)
            self.reporter.note(
                _(
                    "step {number}: loss or gradient is not finite (training diverged); "
                    "the step is skipped",
                    number=number,
                )
            )
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none=True)
        self.reporter.step(number, loss, sum(size[1] for size in sizes), lr)

    def gradients(self, batches: list[Any], predicted: int) -> float:
        """Accumulate the gradients of a step; returns its mean loss per prediction."""
        self.model.train()
        loss = 0.0
        for batch in batches:
            with self.autocast():
                part = self.task.loss(self.model, batch) / predicted
            loss += float(part.detach())
            if self.has_experts:  # not in the reported loss: validations do not have it
                part = (
                    part
                    + self.recipe.router_aux_loss_coef / len(batches) * self.model.router_aux_loss()
                )
            part.backward()
        return loss

    def clip_gradients(self) -> bool:
        """Clip the gradient to `max_grad_norm`; False if its norm is not finite."""
        limit = self.recipe.max_grad_norm or math.inf
        return bool(torch.nn.utils.clip_grad_norm_(self.model.parameters(), limit).isfinite())

    def autocast(self) -> Any:
        device = self.model.embed.weight.device.type
        return torch.autocast(device, torch.bfloat16, enabled=self.recipe.dtype == "bfloat16")

    # ── checkpoints ──────────────────────────────────────────────────────────────────────────────
    def save(self) -> None:
        """Write a checkpoint durably before training continues."""
        number = self.progress.step
        if number in saved_steps(self.folder) and self.saved == number:
            return
        tensors: dict[str, dict[str, Tensor]] = {"model": dict(self.model.state_dict())}
        metadata: dict[str, Any] = {
            "progress": asdict(self.progress),
            "reporter": self.reporter.state(),
            "optimizers": [],
        }
        for index, optimizer in enumerate(self.optimizers):
            tensors[f"optimizer-{index}"], values = flatten_optimizer(optimizer)
            metadata["optimizers"].append(values)
        if self.ema:
            tensors["ema"] = self.ema.weights
        also = {self.progress.best_step, *self.steps_to_average()}
        with self.reporter.paused():
            save_state(self.folder, number, tensors, metadata, CHECKPOINTS_KEPT, also)
        self.saved = number

    def steps_to_average(self) -> list[int]:
        """The steps of the last scheduled checkpoints, without those saved on a signal."""
        past = [
            step
            for step in saved_steps(self.folder)
            if step <= self.progress.step and self.is_scheduled(step)
        ]
        return past[-self.recipe.average_checkpoints :] if self.recipe.average_checkpoints else []

    def restore(self, state: State) -> dict[str, Any]:
        """Restore weights, optimizers and progress; returns the state of the reporter."""
        groups = ["model", *(f"optimizer-{index}" for index in range(len(self.optimizers)))]
        check_same_run(state, self.model, [*groups, "ema"] if self.ema else groups)
        self.model.load_state_dict(state.tensors["model"])
        restore_optimizers(self.optimizers, state)
        if self.ema:
            self.ema.load(state.tensors["ema"])
        progress = Progress.from_saved(state.metadata["progress"], self.task.metric)
        if progress.metric != self.task.metric:  # 25 BLEU and a loss of 2 cannot be compared
            progress.metric, progress.best, progress.bad_validations = self.task.metric, None, 0
        if progress.steps and self.recipe.max_minutes:
            changes = tuple((step, total) for step, total in progress.decay_changes)
            self.recipe = replace(
                self.recipe, steps=progress.steps, max_minutes=0.0, decay_changes=changes
            )
        self.progress, self.saved = progress, progress.step
        return dict(state.metadata["reporter"])

    # ── validation ───────────────────────────────────────────────────────────────────────────────
    def validate(self) -> None:
        """Evaluate on held-out data; a new best model is published in the run folder."""
        number = self.progress.step
        with self.reporter.paused(), self.evaluation_weights():
            metrics = self.task.validate(self.model)
            samples = metrics.pop("samples", [])
            self.reporter.record(number, "valid", **metrics)
            self.reporter.note(validation_text(number, metrics, samples))
            score, progress = self.score(metrics), self.progress
            if progress.best is None or score > progress.best:
                progress.best, progress.best_step, progress.bad_validations = score, number, 0
                self.publish()
            elif number > self.task.pretraining_steps:
                progress.bad_validations += 1

    def score(self, metrics: dict[str, Any]) -> float:
        """The task's metric, or minus the loss: larger is better; NaN is the worst."""
        metric = self.task.metric
        score = float(-metrics["loss"] if metric is None else metrics[metric])
        return -math.inf if math.isnan(score) else score

    @contextmanager
    def evaluation_weights(self) -> Iterator[None]:
        """Inside the block the model is in eval mode, with the EMA weights if there are any."""
        with self.ema.applied_to(self.model) if self.ema else nullcontext(), eval_mode(self.model):
            yield

    def publish(self) -> None:
        save_model(
            self.folder, self.model, self.task.tokenizers, stored_files(**self.task.metadata)
        )

    def finish(self) -> None:
        """Average the last checkpoints if asked to; publish the mean if it is not worse."""
        if self.recipe.average_checkpoints < 2:
            return
        steps = self.steps_to_average()
        group = "ema" if self.ema else "model"
        folders = (checkpoint_folder(self.folder, step) for step in steps)
        states = (load_state(folder, {group}).tensors[group] for folder in folders)
        self.model.load_state_dict(average_state_dicts(states), strict=self.ema is None)
        with eval_mode(self.model):
            metrics = self.task.validate(self.model)
        metrics.pop("samples", None)
        self.reporter.record(self.progress.step, "average", **metrics)
        text = validation_text(self.progress.step, metrics, [])
        self.reporter.note(
            _("mean of {n_steps} checkpoints: {validation}", n_steps=len(steps), validation=text)
        )
        if self.progress.best is None or self.score(metrics) >= self.progress.best:
            self.publish()
