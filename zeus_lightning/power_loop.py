"""`PowerLimit`: train at the GPU power limit with the lowest cost, in a loop of your own."""

from __future__ import annotations

import math
from contextlib import ExitStack
from operator import index
from typing import TYPE_CHECKING, Any, Self, cast

import torch
from lightning.pytorch.strategies import Strategy

from zeus_lightning.errors import ZeusConfigError
from zeus_lightning.power.search_run import PowerSearch, ShowsPowerLimit
from zeus_lightning.program.batch_size import is_size
from zeus_lightning.run.ranks import TorchRanks
from zeus_lightning.run.sigterm import exit_on_sigterm

if TYPE_CHECKING:
    from lightning.fabric import Fabric

    from zeus_lightning.recurrence import Recurrence


class PowerLimit(ShowsPowerLimit):
    """Find the best GPU power limit while a loop of Fabric, torch or another library trains.

    It does for such a loop what `ZeusPowerLimitCallback` does for a Trainer: it measures batches at
    several limits, sets the best one for the rest of the block, and restores the original one
    however the block is left. After a SIGKILL, the next run or `zeus-lightning reset-power-limits`
    restores it. All ranks enter the block, step, pause and leave it together.

    Args:
        batch_size: The batch size over all ranks, for which profiles are stored. Default: `run`'s.
        steps: Maximum number of training batches. Without it, the loop counts as a long one.
        fabric: Fabric, after `launch()`; its device is this rank's, and it logs what is measured.
        device: Without Fabric, the device on which this rank trains. Default: the CPU.
        run: The `Recurrence` around this block, whose `eta_knob`, service and job are used.
        options: The arguments of `ZeusPowerLimitCallback`, by name, with its defaults.

    Raises:
        ZeusError: When the block is entered, in the cases in which `ZeusPowerLimitCallback` raises
            it in `Trainer.fit`; also a `ZeusConfigError` if `run` was not entered first.

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
        **options: Any,
    ) -> None:
        if batch_size is None and run is None:
            raise ZeusConfigError(
                "no batch size given; pass batch_size=..., the sum over all ranks, or run=..."
            )
        if batch_size is not None and not is_size(batch_size):
            raise ZeusConfigError(f"batch_size is {batch_size!r}; it must be a positive integer")
        self._batch_size = None if batch_size is None else index(batch_size)  # may be numpy's
        self._steps = steps
        self._fabric = fabric
        self._ranks = TorchRanks(fabric.device if fabric is not None else torch.device(device))
        self._run = run
        self._search = PowerSearch(**options)
        self._entered: ExitStack | None = None
        self._done = 0  # batches
        self._is_paused = False

    def __enter__(self) -> Self:
        if self._entered is not None:
            raise ZeusConfigError("this PowerLimit is already in use; create another")
        self._ranks.check_set_up()
        job = None if self._run is None else self._run.job
        if self._run is not None and job is None:
            raise ZeusConfigError(
                "the Recurrence passed as run=... has no batch size before it is entered; enter it "
                "first: `with run, power:`"
            )
        self._done, self._is_paused = 0, False
        steps = math.inf if self._steps is None else self._steps
        batch_size = (
            self._run.batch_size if self._run and not self._batch_size else self._batch_size
        )
        with ExitStack() as entered:
            if self._ranks.world_size == 1:
                entered.enter_context(exit_on_sigterm())
            entered.callback(self._search.close)
            # TorchRanks has the part of a strategy that is used
            self._search.open(cast("Strategy", self._ranks))
            self._search.start(
                batch_size=batch_size,
                batches=steps,
                recurring=self._run,
                log=self._log,
            )
            self._search.batch_started()
            self._entered = entered.pop_all()
        return self

    def step(self) -> None:
        """End a training batch; what follows is the next one.

        A batch is measured from one call to the next. The first batch after a pause is not
        measured.
        """
        if self._entered is None:
            raise ZeusConfigError("step() was called outside `with PowerLimit(...) as power:`")
        self._done += 1
        if not self._is_paused:
            self._search.batch_ended()
        self._is_paused = False
        self._search.batch_started()

    def pause(self) -> None:
        """Stop measuring until the next `step()`: call it before validating or saving."""
        self._search.interrupted()
        self._is_paused = True

    def __exit__(self, *_: object) -> None:
        entered, self._entered = self._entered, None
        if entered is not None:
            entered.close()

    def _log(self, metrics: dict[str, float]) -> None:
        if self._fabric is not None:
            self._fabric.log_dict(metrics, step=self._done)
