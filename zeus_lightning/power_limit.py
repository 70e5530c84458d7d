"""`ZeusPowerLimitCallback`: train at the GPU power limit with the lowest cost."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Literal

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback
from typing_extensions import override

from zeus_lightning.bso import ZeusBSOCallback
from zeus_lightning.meters import EnergyMeter
from zeus_lightning.power.search_run import PowerSearch, ShowsPowerLimit
from zeus_lightning.power.selectors import Selector
from zeus_lightning.program.dataloaders import global_batch_size
from zeus_lightning.program.internals import check_internals, step_of_logs
from zeus_lightning.run.gloo_at_exit import destroy_gloo_at_exit


class ZeusPowerLimitCallback(ShowsPowerLimit, Callback):
    """While training runs, find the GPU power limit that a selector rates best, and train at it.

    The callback sets one limit after another and measures whole training batches; then it sets the
    best limit for the rest of the run. However training ends, it restores the limits found at the
    start; after a SIGKILL, the next run or `zeus-lightning reset-power-limits` restores them. Each
    rank sets the limit of its own GPU; the limit is the same on all ranks. If `$ZEUSD_SOCK_PATH` or
    `$ZEUSD_HOST_PORT` names Zeus's daemon, the daemon sets the limits, without root.

    The measurements are stored for later runs, for each batch size and GPU model, in a file or at
    the service: with the job of `ZeusBSOCallback`, whose `eta_knob` is then used, or else with the
    job `$ZEUS_JOB_ID` at `$ZEUS_SERVER_URL`. A run that finds them measures nothing and sets the
    limit before its first step.

    It logs `zeus/power_limit_w`, `zeus/step_power_w` and `zeus/step_energy_j` for each limit that
    it measures, and for the one that it sets for the rest of the run. Under `ddp_spawn` and
    `ddp_fork`, `profiled`, `profile` and `limit_w` are set only in the ranks' processes.

    A selector says which limit is best: see `zeus_lightning.power.selectors`.

    Args:
        selector: `energy`, `time`, `zeus-cost`, `max-slowdown:1.1`, or a selector object.
        step_w: Watts between two limits.
        warmup_steps: Batches between setting a limit and measuring.
        profile_steps: Minimum number of batches in a measurement.
        min_seconds: Minimum duration of a measurement, in seconds.
        profile_path: JSON file, read if it exists, written after measuring.
        apply: Whether to set limits. If False, it only reports the energy and time of a batch at
            the current limit or, if there is a profile, the limit that it would set.
        on_unavailable: What to do without a GPU, power control or permission: `warn` once and
            continue without setting limits, or `raise` an error before the first step.
        meter: `auto`, the GPU used for training; `nvml:0,1` (NVML indices or UUIDs) or `amd:0`,
            which name the GPUs; or an `EnergyMeter` that measures GPUs.

    Raises:
        ZeusConfigError: An argument is invalid, ranks share a GPU, or the GPUs have different
            ranges of limits.
        ZeusMeterError: With `on_unavailable="raise"`, the energy of the GPUs cannot be read.
        ZeusPowerError: With `on_unavailable="raise"`, their power limits cannot be set.

    Example::

        trainer = Trainer(max_epochs=10, callbacks=[ZeusPowerLimitCallback("max-slowdown:1.1")])
        trainer.fit(Net(), datamodule=Digits())
    """

    def __init__(
        self,
        selector: str | Selector = "zeus-cost",
        step_w: int = 25,
        warmup_steps: int = 10,
        profile_steps: int = 40,
        min_seconds: float = 2.0,
        profile_path: str | Path | None = None,
        apply: bool = True,
        on_unavailable: Literal["warn", "raise"] = "warn",
        meter: str | EnergyMeter = "auto",
    ) -> None:
        super().__init__()
        self._search = PowerSearch(
            selector=selector,
            step_w=step_w,
            warmup_steps=warmup_steps,
            profile_steps=profile_steps,
            min_seconds=min_seconds,
            profile_path=profile_path,
            apply=apply,
            on_unavailable=on_unavailable,
            meter=meter,
        )

    @override
    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if stage != "fit":
            return
        check_internals(trainer)
        destroy_gloo_at_exit()
        self._search.close()  # of an earlier fit whose end another callback's error prevented
        if not trainer.fast_dev_run:  # type: ignore[attr-defined]
            self._search.open(trainer.strategy)

    @override
    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if not self._search.is_open:
            return
        callbacks = trainer.callbacks  # type: ignore[attr-defined]
        step = step_of_logs(trainer)

        def log(metrics: dict[str, float]) -> None:
            for logger in trainer.loggers:
                logger.log_metrics(metrics, step=step())

        self._search.start(
            batch_size=global_batch_size(trainer),
            batches=_batches_left(trainer),
            recurring=next((each for each in callbacks if isinstance(each, ZeusBSOCallback)), None),
            log=log,
        )

    @override
    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        self._search.batch_started()

    @override
    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self._search.batch_ended()

    @override
    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._search.interrupted()

    @override
    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._search.interrupted()

    @override
    def on_save_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        self._search.interrupted()

    @override
    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._search.close()

    @override
    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        self._search.close()

    @override
    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if stage == "fit":
            self._search.close()


def _batches_left(trainer: Trainer) -> float:
    """Return the batches until `max_epochs` or `max_steps`; infinite if neither ends training.

    `max_time`, early stopping and a target reached may end it sooner.
    """
    epochs, steps = trainer.max_epochs, trainer.max_steps
    left = math.inf
    if epochs is not None and epochs >= 0:
        left = (epochs - trainer.current_epoch) * trainer.num_training_batches
    if steps >= 0:
        left = min(left, (steps - trainer.global_step) * trainer.accumulate_grad_batches)
    return max(0.0, left)
