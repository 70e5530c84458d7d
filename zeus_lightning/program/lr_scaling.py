"""Scale a program's learning rates with its batch size."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any, Literal
from weakref import ref

from lightning.pytorch import Trainer
from torch.optim import Optimizer
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.utils.hooks import RemovableHandle

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


def base_rates(optimizers: Iterable[Optimizer]) -> list[float]:
    """The rate that each parameter group's schedule starts from, or rises to."""
    return [
        float(next(group[key] for key in ("max_lr", "initial_lr", "lr") if key in group))
        for optimizer in optimizers
        for group in optimizer.param_groups
    ]


class ScaledSteps:
    """Multiplies all learning rates of a Trainer's optimizers by `factor` during their steps.

    Between the steps, and in the closure in which Lightning runs the training step, each parameter
    group has the program's own rate. So it does not matter how the program sets it: schedulers of
    any kind, a warm-up in `optimizer_step()`, and states restored from a checkpoint work as they
    do without scaling, and nothing is scaled twice.

    Args:
        trainer: The Trainer.
    """

    def __init__(self, trainer: Trainer) -> None:
        self.factor = 1.0
        self._trainer = ref(trainer)  # torch keeps the hooks
        self._hooks: list[RemovableHandle] = []
        self._scaled: list[tuple[dict[str, Any], Any, Any]] = []  # group, own rate, scaled rate

    def start(self) -> None:
        """Scale the steps from now on, until `stop`.

        Raises:
            ZeusConfigError: An optimizer is not derived from torch's, and contains none.
        """
        for optimizer in self._optimizers():
            if not isinstance(getattr(optimizer, "optimizer", optimizer), Optimizer):
                raise ZeusConfigError(
                    f"lr_scaling cannot scale {type(optimizer).__name__}, which is not derived "
                    "from torch.optim.Optimizer; remove lr_scaling"
                )
        # of all optimizers: a wrapper, such as sharpness-aware minimization, may have one that
        # steps in its place
        self._hooks = [
            register_optimizer_step_pre_hook(self._before_step),
            register_optimizer_step_post_hook(self._after_step),
        ]

    def stop(self) -> None:
        """Scale no further step."""
        while self._hooks:
            self._hooks.pop().remove()
        self._restore()

    def _before_step(
        self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        self._scale(optimizer)
        if len(args) > 1:
            args = (args[0], self._with_own_rates(optimizer, args[1]), *args[2:])
        if "closure" in kwargs:
            kwargs = kwargs | {"closure": self._with_own_rates(optimizer, kwargs["closure"])}
        return args, kwargs

    def _after_step(self, optimizer: Optimizer, *_: Any) -> None:
        if self._groups(optimizer):
            self._restore()

    def _with_own_rates(self, optimizer: Optimizer, closure: Callable[[], Any] | None) -> Any:
        """A closure that runs with the rates that the program has set."""
        if closure is None:
            return None

        def run() -> Any:
            self._restore()
            result = closure()
            self._scale(optimizer)
            return result

        return run

    def _scale(self, optimizer: Optimizer) -> None:
        for group in self._groups(optimizer):
            own = group["lr"]
            if own is not None and not any(group is each for each, _, _ in self._scaled):
                group["lr"] = own * self.factor
                self._scaled.append((group, own, group["lr"]))

    def _restore(self) -> None:
        while self._scaled:
            group, own, scaled = self._scaled.pop()
            if group["lr"] is scaled:
                group["lr"] = own

    def _groups(self, optimizer: Optimizer) -> list[dict[str, Any]]:
        """The groups of an optimizer that the Trainer's optimizers have."""
        own = {id(group) for each in self._optimizers() for group in each.param_groups}
        return [group for group in optimizer.param_groups if id(group) in own]

    def _optimizers(self) -> list[Optimizer]:
        trainer = self._trainer()
        return [] if trainer is None else trainer.optimizers
