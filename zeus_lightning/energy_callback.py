"""`ZeusEnergyCallback`: measure the energy of a fit, validation, test or prediction."""

from __future__ import annotations

import math
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.utilities import rank_zero_info
from typing_extensions import override

from zeus_lightning.bso import ZeusBSOCallback
from zeus_lightning.meters import EnergyMeter, Reading
from zeus_lightning.prices import emissions_and_price
from zeus_lightning.run.gloo_at_exit import destroy_gloo_at_exit
from zeus_lightning.run.ranks import on_every_rank
from zeus_lightning.run.run_meter import RunMeter


class ZeusEnergyCallback(Callback):
    """Measure the energy of any fit, validation, test or prediction; it needs no service.

    It logs `zeus/energy_j`, `zeus/time_s` and `zeus/power_w` (mean) as each training epoch,
    validation and test ends. At the end it prints one line, with kg of CO2e and money if
    `$ZEUS_CARBON_INTENSITY` (grams per kWh) and `$ZEUS_PRICE_PER_KWH` are set. Joules are summed
    over all ranks, and each device counts once; a fit's sanity check does not count. If the Trainer
    also has `ZeusBSOCallback`, which logs the same keys, a fit shows them only in the progress bar.

    Args:
        meter: `auto`, `nvml`, `rapl`, `cpu-estimate` or another one, as for `ZeusBSOCallback`.

    Raises:
        ZeusConfigError: A price is invalid, or the ranks' devices cannot be measured together.
        ZeusMeterError: The energy meter cannot be opened. If it fails later, training goes on.

    Example::

        trainer = Trainer(max_epochs=10, callbacks=[ZeusEnergyCallback()])
        trainer.fit(Net(), datamodule=Digits())
    """

    def __init__(self, meter: str | EnergyMeter = "auto") -> None:
        super().__init__()
        emissions_and_price(0.0)  # raises an error now rather than at the end
        self._choice = meter
        self._meter: RunMeter | None = None  # from `setup` until the end, or until it fails
        self._counts = False  # after the sanity check
        self._stage = ""
        self.spent = Reading(0.0, 0.0)
        """The joules and seconds of the last fit, validation, test or prediction."""

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for a copy or a pickle, without the running measurement."""
        return vars(self) | {"_meter": None, "_counts": False}

    @override
    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self._close()  # of an earlier run whose end another callback's error prevented
        destroy_gloo_at_exit()
        stage = str(getattr(stage, "value", stage))
        self._stage = {"validate": "validation", "predict": "prediction"}.get(stage, stage)
        self.spent = Reading(0.0, 0.0)
        self._meter = RunMeter(self._choice, trainer.strategy)

    @override
    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._meter is not None and not (self._counts or trainer.sanity_checking):
            on_every_rank(trainer.strategy, self._meter.begin)
            self._counts = True

    on_validation_start = on_test_start = on_predict_start = on_train_start

    @override
    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._read(trainer)
        if self._meter is None or not self._counts:
            return
        callbacks = trainer.callbacks  # type: ignore[attr-defined]
        logged = any(isinstance(each, ZeusBSOCallback) for each in callbacks)
        pl_module.log_dict(
            self._meter.metrics(self.spent),
            prog_bar=True,
            logger=False if logged and self._stage == "fit" else None,  # None: if there is one
            batch_size=1,
            sync_dist=True,  # or Lightning warns, though the values are the same on all ranks
        )

    on_validation_epoch_end = on_test_epoch_end = on_train_epoch_end

    @override
    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        if self._meter is not None:
            self.spent = self._meter.spent_at_end()
        self._end(f", until {type(exception).__name__} ended it,")

    @override
    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self._read(trainer)
        self._end()

    def _read(self, trainer: Trainer) -> None:
        """Read the meters of all ranks; if one fails, end the measurement on all of them."""
        if self._meter is None or not self._counts:
            return
        spent = self._meter.spent()
        if math.isnan(spent.energy_j):  # the rank whose meter failed has warned
            self._end(", until its meter failed,")
        else:
            self.spent = trainer.strategy.broadcast(spent)  # rank zero's seconds

    def _end(self, until: str = "") -> None:
        if self._meter is not None and self.spent.time_s > 0:
            energy_j, time_s = self.spent.energy_j, self.spent.time_s
            rank_zero_info(
                f"zeus: the {self._stage}{until} used {energy_j:,.2f} J in {time_s:,.2f} s, "
                f"mean {energy_j / time_s:,.2f} W{emissions_and_price(energy_j)} "
                f"({self._meter.scope()})"
            )
        self._close()

    def _close(self) -> None:
        meter, self._meter, self._counts = self._meter, None, False
        if meter is not None:
            meter.close()
