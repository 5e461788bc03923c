"""The training loop: writes checkpoints, metrics and the best model (docs/guides/training.md).

All random numbers derive from (seed, step), so a resumed run equals an uninterrupted one.
"""

import math
import time
from contextlib import nullcontext
from dataclasses import asdict
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
from qkv.threads import set_torch_threads
from qkv.train.average import Ema, average_checkpoints
from qkv.train.divergence import refuse_no_model, score_of, skipped_text, stop_if_diverged
from qkv.train.optim import make_optimizers, set_lr
from qkv.train.recipe import Recipe
from qkv.train.report import Clock, OnStep, Reporter, TrainingStep, validation_text
from qkv.train.resume import check_same_run
from qkv.train.schedule import lr_factor
from qkv.train.seeds import derive_seed
from qkv.train.signals import STOPPED, Stopper
from qkv.train.state import (
    Progress,
    State,
    flatten_optimizers,
    restore_optimizer,
    save_state,
    saved_steps,
)
from qkv.train.task import Task, add_means
from qkv.train.time_limit import TimeLimit, resumed_recipe

__all__ = ["Trainer"]


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
    on_step: OnStep | None = None  # called after each step
    preparation = 0.0  # seconds of this process before the first step, for the time limit

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
            set_torch_threads(recipe.threads)
        torch.manual_seed(recipe.seed)
        self.model = task.initial_model().to(recipe.device)
        self.has_experts = any(
            isinstance(module, ExpertFeedForward) for module in self.model.modules()
        )
        self.optimizers = make_optimizers(self.model, recipe)
        self.ema = Ema(self.model, recipe.ema_decay) if recipe.ema_decay else None
        self.progress = Progress(metric=task.metric)
        self.reporter_state = self.restore(resumed) if resumed else None
        self.first_step = self.progress.step  # of this process, minus one
        self.time_limit = TimeLimit(
            self.recipe,
            self.model.spec.d_model,
            task.pretraining_steps + 1,
            task.evaluation_tokens(),
        )
        self.skipped = resumed.skipped if resumed else ()
        self.measured: dict[str, float] = {}  # `task.measured` of the last step, per prediction
        if recipe.compile:
            for stack in filter(None, (self.model.encoder, self.model.decoder)):
                stack.compile()

    def restore_buffers(self, saved: list[Tensor]) -> None:
        """Restore what a forward pass changes: the running statistics of batch norm."""
        for buffer, before in zip(self.model.buffers(), saved, strict=True):
            buffer.copy_(before)

    # ── training ─────────────────────────────────────────────────────────────────────────────────
    def run(self) -> int:
        """Train to the end, or until a signal asks to stop; returns the exit code."""
        reporter = Reporter(
            self.folder, self.recipe.steps, resumed=self.reporter_state, clock=self.clock
        )
        with reporter as self.reporter, Stopper() as stopper:
            for error in self.skipped:
                self.reporter.note(_("skipped a damaged checkpoint: {error}", error=error))
            progress = self.progress
            if self.reporter_state and self.validates_after(progress.step):
                self.validate()  # a checkpoint is written before its validation: repeat it
            while not (self.finished or stopper.received):
                self.step()
                stop_if_diverged(self.folder, progress, self.first_step)
                self.apply_time_limit()
                # After a skipped step the weights may have diverged.
                is_good = not progress.skipped_steps
                if (self.saves_after(progress.step) and is_good) or stopper.received:
                    self.save()
                if self.validates_after(progress.step) and not stopper.received:
                    self.validate()
            if stopper.received:
                self.save()
                return STOPPED
            self.average()
            refuse_no_model(self.folder)
        return 0

    def apply_time_limit(self) -> None:
        """Fix and record the number of steps before the first learning rate that depends on it."""
        if not self.time_limit.recipe.max_minutes:
            return
        earlier = self.reporter.earlier + self.preparation
        recipe = self.time_limit.updated(
            self.recipe, self.progress.step, self.reporter.throughput, earlier
        )
        self.reporter.total = self.time_limit.expected
        if recipe is not self.recipe:
            self.recipe, self.reporter.total = recipe, recipe.steps
            self.progress.steps, self.progress.decay_changes = recipe.steps, recipe.decay_changes
            write_text(self.folder / "train.yaml", recipe.to_yaml())
            self.reporter.note(self.time_limit.text(recipe.steps))

    @property
    def finished(self) -> bool:
        """Whether all steps are taken, or too many validations did not improve (early stopping)."""
        patience = self.recipe.patience or math.inf
        return self.progress.step >= self.recipe.steps or self.progress.bad_validations >= patience

    def validates_after(self, step: int) -> bool:
        return step % self.recipe.validate_every == 0 or step == self.recipe.steps

    def saves_after(self, step: int) -> bool:
        """Whether an uninterrupted run saves a checkpoint after this step."""
        return step % self.recipe.save_every == 0 or self.validates_after(step)

    def step(self) -> None:
        """One optimizer step; it is skipped if the loss or the gradient is not finite."""
        self.progress.step += 1
        number, recipe = self.progress.step, self.recipe
        lr = set_lr(self.optimizers, lr_factor(recipe, self.model.spec.d_model, number))
        n_batches = recipe.gradient_accumulation_steps
        batches = [self.task.batch((number - 1) * n_batches + i) for i in range(n_batches)]
        predicted, tokens = map(sum, zip(*map(self.task.sizes, batches), strict=True))
        torch.manual_seed(derive_seed(recipe.seed, number))
        loss = self.update(batches, predicted)
        self.model.zero_grad(set_to_none=True)
        self.progress.skipped_steps = 0 if math.isfinite(loss) else self.progress.skipped_steps + 1
        self.reporter.step(number, loss, tokens, lr, self.measured)
        if self.on_step:
            self.on_step(TrainingStep(number, loss, tokens, lr))

    def update(self, batches: list[Any], predicted: int) -> float:
        """Update the weights; returns the loss, or NaN if the step is skipped."""
        buffers = [buffer.clone() for buffer in self.model.buffers()]
        loss = self.gradients(batches, predicted)
        if math.isfinite(loss) and self.clip_gradients():
            for optimizer in self.optimizers:
                optimizer.step()
            if self.ema:
                self.ema.update(self.model)
            return loss
        self.restore_buffers(buffers)
        self.reporter.note(skipped_text(self.progress.step))
        return math.nan

    def gradients(self, batches: list[Any], predicted: int) -> float:
        """Accumulate the gradients of a step; returns its mean loss per prediction."""
        self.model.train()
        loss, self.measured = 0.0, {}
        for batch in batches:
            with self.autocast():
                part = self.task.loss(self.model, batch) / predicted
            loss += float(part.detach())
            add_means(self.measured, self.task.measured, predicted)
            if self.has_experts:  # not in the reported loss: validations do not have it
                weight = self.recipe.router_aux_loss_coef / len(batches)
                part = part + weight * self.model.router_aux_loss()
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
        tensors, options = flatten_optimizers(self.optimizers)
        tensors["model"] = dict(self.model.state_dict())
        if self.ema:
            tensors["ema"] = self.ema.weights
        metadata = {
            "progress": asdict(self.progress),
            "reporter": self.reporter.state(),
            "optimizers": options,
        }
        also = {self.progress.best_step, *self.steps_to_average()}
        with self.reporter.paused():
            save_state(self.folder, number, tensors, metadata, also=also)
        self.saved = number

    def steps_to_average(self) -> list[int]:
        """The steps of the last scheduled checkpoints, without those saved on a signal."""
        scheduled = filter(self.saves_after, saved_steps(self.folder))
        past = [step for step in scheduled if step <= self.progress.step]
        return past[-self.recipe.average_checkpoints :] if self.recipe.average_checkpoints else []

    def restore(self, state: State) -> dict[str, Any]:
        """Restore weights, optimizers and progress; returns the state of the reporter."""
        tensors, names = state.tensors, [f"optimizer-{i}" for i in range(len(self.optimizers))]
        check_same_run(state, self.model, [*names, "ema"] if self.ema else names)
        self.model.load_state_dict(tensors["model"])
        saved = zip(self.optimizers, names, state.metadata["optimizers"], strict=False)
        for optimizer, name, options in saved:
            restore_optimizer(optimizer, tensors[name], options)
        if self.ema:
            self.ema.load(tensors["ema"])
        progress = Progress.from_saved(state.metadata["progress"], self.task.metric)
        self.recipe = resumed_recipe(self.recipe, progress)
        self.progress, self.saved = progress, progress.step
        return dict(state.metadata["reporter"])

    # ── validation ───────────────────────────────────────────────────────────────────────────────
    def validate(self) -> None:
        """Evaluate on held-out data; a new best model is published in the run folder."""
        progress, ema = self.progress, self.ema
        pause = self.reporter.paused(is_validation=True)
        with pause, ema.applied_to(self.model) if ema else nullcontext():
            score, text = self.measure("valid")
            self.reporter.note(text)
            if progress.add_validation(score, progress.step > self.task.pretraining_steps):
                self.publish()

    def measure(self, kind: str) -> tuple[float, str]:
        """Validate and record the metrics; returns the score and a text to print.

        See `score_of`: larger is better, -inf if the loss or a weight is not finite.
        """
        with eval_mode(self.model):
            metrics = self.task.validate(self.model)
        samples, step = metrics.pop("samples", []), self.progress.step
        self.reporter.record(step, kind, **metrics)
        text = validation_text(step, metrics, samples if kind == "valid" else [])
        return score_of(metrics, self.task.metric, self.model), text

    def publish(self) -> None:
        files = stored_files(**self.task.metadata)
        save_model(self.folder, self.model, self.task.tokenizers, files)

    def average(self) -> None:
        """Average the last checkpoints if asked to; publish the mean if it is not worse."""
        steps, group = self.steps_to_average(), "ema" if self.ema else "model"
        if self.recipe.average_checkpoints < 2 or not steps:
            return
        mean = average_checkpoints(self.folder, steps, group)
        self.model.load_state_dict(mean, strict=self.ema is None)
        score, text = self.measure("average")
        self.reporter.note(
            _("mean of {n_steps} checkpoints: {validation}", n_steps=len(steps), validation=text)
        )
        best = self.progress.best
        if score > -math.inf and (best is None or score >= best):
            self.publish()
