"""`PowerLimit`: train at the GPU power limit with the lowest cost, in a loop of one's own."""

from __future__ import annotations

import math
from contextlib import ExitStack
from dataclasses import dataclass
from operator import index
from typing import TYPE_CHECKING, Any, Self, Unpack, cast

import torch
from lightning.pytorch.strategies import Strategy

from zeus_lightning.errors import ZeusConfigError
from zeus_lightning.power.fit import PowerFit, open_fit
from zeus_lightning.power.options import PowerArguments, PowerResult, read_arguments
from zeus_lightning.power.profile import PowerProfile
from zeus_lightning.program.batch_size import is_size
from zeus_lightning.run.ranks import TorchRanks
from zeus_lightning.run.sigterm import exit_on_sigterm

if TYPE_CHECKING:
    from lightning.fabric import Fabric

    from zeus_lightning.recurrence import Recurrence


class PowerLimit:
    """Find the best GPU power limit while a loop of Fabric's, of torch's or of another trains.

    It is to such a loop what `ZeusPowerLimitCallback` is to a Trainer: it measures batches at
    several limits, sets the best one for the rest of the block, and restores the earlier one as the
    block is left, whichever way. After a SIGKILL, the next run restores it, or `zeus-lightning
    reset-power-limits`. All ranks enter it, step, pause and leave it together.

    Args:
        batch_size: The batch size over all ranks, for which profiles are stored. Default: `run`'s.
        steps: Training batches until the loop ends, at the latest. Default: unknown, a long run.
        fabric: Fabric, after `launch()`; its device is this rank's, and it logs what is measured.
        device: Without Fabric, the device on which this rank trains. Default: the CPU.
        run: The `Recurrence` around this block, whose `eta_knob`, service and job are used.
        state: `state_dict()` of an earlier run's checkpoint, whose profile is used.
        options: The arguments of `ZeusPowerLimitCallback`, with its defaults.

    Raises:
        ZeusError: As `ZeusPowerLimitCallback` does in `Trainer.fit`, as the block is entered; a
            `ZeusConfigError` if `run` has not been entered before it.

    Example::

        with PowerLimit(batch_size=256, steps=20 * len(loader), device="cuda:0") as power:
            for epoch in range(20):
                for batch in loader:
                    train(batch)
                    power.step()
                power.pause()
                validate()
    """

    def __init__(
        self,
        *,
        batch_size: int | None = None,
        steps: int | None = None,
        fabric: Fabric | None = None,
        device: torch.device | str = "cpu",
        run: Recurrence | None = None,
        state: dict[str, Any] | None = None,
        **options: Unpack[PowerArguments],
    ) -> None:
        if batch_size is None and run is None:
            raise ZeusConfigError(
                "no batch size given; pass batch_size=..., that of all ranks together, or run=..."
            )
        if batch_size is not None and not is_size(batch_size):
            raise ZeusConfigError(f"batch_size is {batch_size!r}; it must be a positive integer")
        size = None if batch_size is None else index(batch_size)  # it may be one of numpy's
        ranks = TorchRanks(fabric.device if fabric is not None else torch.device(device))
        self._loop = _OwnLoop(ranks, run, size, steps, fabric)
        self._options = read_arguments(options)
        self._state = state or {}
        self._is_entered = self._is_paused = False
        self._result = PowerResult()
        self._fit: PowerFit | None = None
        self._entered: ExitStack | None = None

    @property
    def profiled(self) -> bool:
        """Whether limits were measured."""
        return self._result.profiled

    @property
    def profile(self) -> PowerProfile | None:
        """The measurements of this batch size and GPUs; None if there are none."""
        return self._result.profile

    @property
    def limit_w(self) -> int | None:
        """The limit chosen, in watts; None if none was set."""
        return self._result.limit_w

    def __enter__(self) -> Self:
        if self._is_entered:
            raise ZeusConfigError("this PowerLimit is entered already; make another one")
        self._loop.ranks.check_set_up()
        run = self._loop.recurring
        if run is not None and run.job is None:
            raise ZeusConfigError(
                "the Recurrence that run=... names has not been entered, so its batch size is "
                "unknown; enter it first: `with run, power:`"
            )
        self._result, self._loop.done, self._is_paused = PowerResult(), 0, False
        with ExitStack() as entered:
            if self._loop.ranks.world_size == 1:
                entered.enter_context(exit_on_sigterm())
            self._fit = fit = open_fit(self._options, self._loop, self._result)
            if fit is not None:
                entered.callback(fit.close)
                fit.resume(self._state)
                fit.start()
                fit.epoch_started()
                fit.batch_started()
            self._entered = entered.pop_all()
        self._is_entered = True
        return self

    def step(self) -> None:
        """End a training batch; what follows is the next one.

        Batches are measured as they are from one call to the next; the first one after a pause is
        not.
        """
        if self._entered is None:
            raise ZeusConfigError("step() was called before `with PowerLimit(...) as power:`")
        self._loop.done += 1
        if (fit := self._fit) is None:
            return
        if self._is_paused:
            self._is_paused = False
            fit.epoch_started()
        else:
            fit.batch_ended()
        fit.batch_started()

    def pause(self) -> None:
        """Stop measuring until the next `step()`: call it before validating or saving."""
        if self._fit is not None and not self._is_paused:
            self._fit.epoch_ended()
        self._is_paused = True

    def state_dict(self) -> dict[str, Any]:
        """Return the profile in plain values for a checkpoint; empty if there is none."""
        return self._result.state_dict()

    def __exit__(self, *_: object) -> None:
        self._fit, self._is_entered = None, False
        if self._entered is not None:
            self._entered.close()


@dataclass
class _OwnLoop:
    """A `Loop` without a Trainer.

    Args:
        ranks: Its ranks.
        recurring: Its `Recurrence`, if any.
        batch_size: The batch size over all ranks, unless it is `recurring`'s.
        steps: Batches until it ends, if that is known.
        fabric: What logs, if any.
        done: Batches trained so far.
    """

    ranks: TorchRanks
    recurring: Recurrence | None
    batch_size: int | None
    steps: int | None
    fabric: Fabric | None
    done: int = 0

    @property
    def strategy(self) -> Strategy:
        """The ranks: they have the part of a strategy that is used."""
        return cast("Strategy", self.ranks)

    def global_batch_size(self) -> int | None:
        """Return the batch size over all ranks."""
        if self.batch_size is None and self.recurring is not None:
            return self.recurring.batch_size
        return self.batch_size

    def batches_done(self) -> int:
        """Return the number of batches that were trained so far."""
        return self.done

    def batches_left(self) -> float:
        """Return the batches until the loop ends, at the latest."""
        return math.inf if self.steps is None else max(0.0, self.steps - self.done)

    def batches_per_report(self) -> float:
        """Return the batches from one report of `run` to the next, if it makes one each epoch."""
        job = None if self.recurring is None else self.recurring.job
        return math.inf if job is None or self.steps is None else self.steps / job.max_epochs

    def saves(self) -> tuple[int, ...]:
        """Return nothing: the loop pauses before it saves."""
        return ()

    def log(self, metrics: dict[str, float]) -> None:
        """Log metrics to Fabric's loggers, if any."""
        if self.fabric is not None:
            self.fabric.log_dict(metrics, step=self.done)
