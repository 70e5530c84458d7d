"""Learning rates and their schedules follow the batch size of a run."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Literal

from lightning.pytorch import Trainer
from torch.optim.lr_scheduler import LRScheduler, OneCycleLR

from zeus_lightning.errors import ZeusConfigError

LRScaling = Literal["linear", "sqrt"]


def lr_factor(rule: LRScaling, batch_size: int, default_batch_size: int) -> float:
    """What to multiply the learning rate with that is tuned for the default size, both global.

    `linear` (Goyal et al., 2017, section 2.1) is meant for SGD; `sqrt` (Krizhevsky, 2014) is often
    better for Adam and its variants.
    """
    ratio = batch_size / default_batch_size
    return ratio if rule == "linear" else math.sqrt(ratio)


def has_rate_finder(trainer: Trainer) -> bool:
    """Whether a `LearningRateFinder` sets the rate, for the batch size that the trial has."""
    return any(hasattr(each, "optimal_lr") for each in trainer.callbacks)  # type: ignore[attr-defined]


def scale_optimizers(trainer: Trainer, factor: float) -> None:
    """Multiply the learning rates of a Trainer's optimizers and schedulers.

    Rates that the program sets itself as it trains are not scaled, as in `optimizer_step()` or in a
    scheduler of its own that ignores `base_lrs`.

    Raises:
        ZeusConfigError: A scheduler is not derived from torch's.
    """
    schedulers = list(_flattened(each.scheduler for each in trainer.lr_scheduler_configs))
    for scheduler in schedulers:
        if not isinstance(scheduler, LRScheduler):
            raise ZeusConfigError(
                f"lr_scaling cannot change the learning rates of {type(scheduler).__name__}, which "
                "is not a torch LRScheduler; use a torch scheduler"
            )
    scaled = {id(group): group for each in trainer.optimizers for group in each.param_groups}
    for optimizer in trainer.optimizers:
        scaled[id(optimizer.defaults)] = optimizer.defaults  # for groups that are added later
    for rates in scaled.values():
        for key in ("lr", "initial_lr", "max_lr", "min_lr", "swa_lr"):
            if rates.get(key) is not None:
                rates[key] = rates[key] * factor
    for scheduler in schedulers:
        for name in ("base_lrs", "max_lrs", "min_lrs", "_last_lr"):
            if hasattr(scheduler, name):
                setattr(scheduler, name, [rate * factor for rate in getattr(scheduler, name)])
        if hasattr(scheduler, "eta_min"):
            scheduler.eta_min *= factor


def too_short_schedule(trainer: Trainer, batch_size: int) -> str | None:
    """Why a `OneCycleLR` would fail in mid-training with this batch size; None if none would.

    If its number of steps is a constant, it is right for the default batch size, and a smaller one
    takes more steps.
    """
    steps = trainer.estimated_stepping_batches
    for config in trainer.lr_scheduler_configs:
        scheduler = config.scheduler
        if (
            isinstance(scheduler, OneCycleLR)
            and config.interval == "step"
            and scheduler.total_steps < steps // config.frequency
        ):
            return (
                f"OneCycleLR ends after {scheduler.total_steps} steps, but with batch size "
                f"{batch_size} this run takes {steps}"
            )
    return None


def _flattened(schedulers: Iterable[object]) -> Iterator[object]:
    """Yield schedulers, and those that they consist of."""
    for scheduler in schedulers:
        yield scheduler
        yield from _flattened(getattr(scheduler, "_schedulers", ()))
