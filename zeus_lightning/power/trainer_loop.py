"""`TrainerLoop`: a Trainer's `fit`, as the search for a power limit sees it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from lightning.pytorch import Trainer
from lightning.pytorch.strategies import Strategy

from zeus_lightning.bso import ZeusBSOCallback
from zeus_lightning.program.dataloaders import global_batch_size
from zeus_lightning.program.internals import logging_step, saved_steps


@dataclass(frozen=True)
class TrainerLoop:
    """A `Loop` of a Trainer."""

    trainer: Trainer

    @property
    def strategy(self) -> Strategy:
        """The Trainer's."""
        return self.trainer.strategy

    @property
    def recurring(self) -> ZeusBSOCallback | None:
        """The `ZeusBSOCallback` among the Trainer's callbacks, if any."""
        callbacks = self.trainer.callbacks  # type: ignore[attr-defined]
        return next((each for each in callbacks if isinstance(each, ZeusBSOCallback)), None)

    def global_batch_size(self) -> int | None:
        """Return that of the train dataloaders; None if it is unknown, or changes."""
        return global_batch_size(self.trainer)

    def batches_done(self) -> int:
        """Return the number of batches that were trained so far."""
        return int(self.trainer.fit_loop.epoch_loop.batch_progress.total.completed)

    def batches_left(self) -> float:
        """Return the batches until `max_epochs` or `max_steps`; infinite if neither ends training.

        `max_time`, early stopping and a target reached may end it sooner.
        """
        trainer = self.trainer
        epochs, steps = trainer.max_epochs, trainer.max_steps
        left = math.inf
        if epochs is not None and epochs >= 0:
            left = (epochs - trainer.current_epoch) * trainer.num_training_batches
        if steps >= 0:
            left = min(left, (steps - trainer.global_step) * trainer.accumulate_grad_batches)
        return max(0.0, left)

    def batches_per_report(self) -> float:
        """Return the batches between two validations."""
        trainer = self.trainer
        return (trainer.val_check_batch or math.inf) * (trainer.check_val_every_n_epoch or 1)

    def saves(self) -> tuple[int, ...]:
        """Return the step at which each of Lightning's checkpoint callbacks last saved."""
        return saved_steps(self.trainer)

    def log(self, metrics: dict[str, float]) -> None:
        """Log metrics to the Trainer's loggers."""
        for logger in self.trainer.loggers:
            logger.log_metrics(metrics, step=logging_step(self.trainer))
