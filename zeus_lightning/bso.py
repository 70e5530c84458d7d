"""`ZeusBSOCallback`: train a recurring job with the batch size that costs least."""

from __future__ import annotations

import math
import os
from contextlib import suppress
from dataclasses import replace
from typing import Any, Literal
from uuid import uuid4

import numpy as np
import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn
from typing_extensions import override

from zeus_lightning import batch_size as sizes
from zeus_lightning.client import BSOClient
from zeus_lightning.distributed import on_every_rank, on_rank_zero, sum_over_ranks
from zeus_lightning.ending import out_of_time, outcome_of, text_of
from zeus_lightning.errors import (
    ZeusConfigError,
    ZeusError,
    ZeusMeterError,
    ZeusServiceUnavailable,
    ZeusTrialFailed,
)
from zeus_lightning.injection import Injection
from zeus_lightning.job import JobArguments, cost, reached
from zeus_lightning.lr_scaling import LRScaling
from zeus_lightning.messages import JobSpec, Outcome, Report, TrialStart
from zeus_lightning.meters import EnergyMeter, Reading, open_meter
from zeus_lightning.trial import Answer, Trial

_FAILURES = ("early_stopped", "not_converged", "diverged", "out_of_memory")
_LAST_CALL_S = 1.0  # after an exception; Lightning kills a ddp run 5 s after a rank's death


class ZeusBSOCallback(Callback):
    """Train with the batch size that reaches the target metric at the lowest cost.

    Each `fit` is one recurrence of a job: the callback asks the service for a batch size, sets it
    before any dataloader is built, measures energy and time from the start of training to each
    validation end, reports them, and stops the run when the target is reached or the service gives
    the batch size up. The cost is `eta_knob * energy + (1 - eta_knob) * max_power * time`, in
    joules, where `max_power` is the sum of the devices' highest power limits in watts.

    It logs `zeus/batch_size` (global), `zeus/energy_j`, `zeus/time_s`, `zeus/power_w` (mean since
    training began) and `zeus/cost` at each validation end.

    Args:
        url: The service, such as `http://127.0.0.1:8765`. Default: `$ZEUS_SERVER_URL`.
        target_metric: Value of `monitor` that ends the training.
        monitor: A metric the module logs in validation.
        mode: `max` if the metric is to rise to the target, `min` if it is to fall to it.
        job_id: The same id makes the runs one recurring job: 1 to 255 letters, digits and `._:-`.
            Default: `$ZEUS_JOB_ID`, else the module's class name.
        batch_sizes: Global batch sizes to choose from: what one optimizer step sees, over all
            devices and accumulated batches. Default: `default_batch_size` times 2**-3 to 2**3.
        default_batch_size: Global batch size to start from. Default: what the datamodule or module
            (or its hparams) has as `batch_size`, times devices and accumulated batches.
        max_epochs: Epochs after which the batch size has failed. Default: the Trainer's.
        eta_knob: Weight of energy against time in the cost, in [0, 1].
        beta_knob: A run expected to cost more than this times the lowest cost known is stopped.
            None: never.
        num_pruning_rounds: Rounds of exploration before Thompson sampling.
        window_size: Latest runs of a batch size that count, for drifting data; 0: all.
        policy: Name of the service's policy. Default: the service's choice.
        seed: Of the policy's random choices. Default: from the job id.
        lr_scaling: `linear` or `sqrt`: scales the module's `lr` or `learning_rate`, taken to be
            right for `default_batch_size`.
        meter: `auto`, `nvml`, `nvml:0,1` (NVML indices or UUIDs), `rapl`, `cpu-estimate`,
            `cpu-estimate:5.0` (watts per core), or an `EnergyMeter`.
        token: The service's token. Default: `$ZEUS_BSO_TOKEN`.
        strict: Whether a service that cannot be reached at the start is an error. If not, the run
            trains on the default batch size, with a warning.

    Attributes:
        job: What was registered, None before `fit`.
        trial: The last `fit`'s trial: batch size, and why. None when there was none.
        outcome: How it ended, None while it runs. `lost`: the service went away and did not come
            back before the end.
        report: Its last report: epoch, seconds, joules, metric. None before the first.
        cost: The cost at `report`, in joules. None before the first.

    Raises:
        ZeusConfigError: An argument or the training program cannot work as it is. Told before the
            first training step; an unknown `monitor` at the first validation, the sanity check
            included.
        ZeusMeterError: The energy meter cannot be opened.
        ZeusServiceUnavailable: Nobody answers at `url` when `fit` starts, and `strict` is set.
        ZeusJobConflict: The job id is known with another configuration.
        ZeusNoBatchSizeLeft: Every batch size of the job has failed.
        ZeusServiceError: The service refused the job or the start.
        ZeusTrialFailed: Raised when `fit` ends without having reached the target. Running the job
            again tries another batch size.

    Example::

        trainer = Trainer(
            max_epochs=50,
            callbacks=[ZeusBSOCallback("http://127.0.0.1:8765", target_metric=0.97)],
        )
        trainer.fit(Net(), datamodule=Digits(batch_size=64))
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        target_metric: float,
        monitor: str = "val_acc",
        mode: Literal["min", "max"] = "max",
        job_id: str | None = None,
        batch_sizes: list[int] | None = None,
        default_batch_size: int | None = None,
        max_epochs: int | None = None,
        eta_knob: float = 0.5,
        beta_knob: float | None = 2.0,
        num_pruning_rounds: int = 2,
        window_size: int = 0,
        policy: str | None = None,
        seed: int | None = None,
        lr_scaling: LRScaling | None = None,
        meter: str | EnergyMeter = "auto",
        token: str | None = None,
        strict: bool = True,
    ) -> None:
        super().__init__()
        if url is not None:
            BSOClient(url, token)
        self._arguments = JobArguments(
            target_metric=target_metric,
            monitor=monitor,
            mode=mode,
            job_id=job_id,
            batch_sizes=batch_sizes,
            default_batch_size=default_batch_size,
            max_epochs=max_epochs,
            eta_knob=eta_knob,
            beta_knob=beta_knob,
            num_pruning_rounds=num_pruning_rounds,
            window_size=window_size,
            policy=policy,
            seed=seed,
            lr_scaling=lr_scaling,
        )
        self.monitor = monitor
        self.job: JobSpec | None = None
        self.trial: TrialStart | None = None
        self.outcome: Outcome | None = None
        self.report: Report | None = None
        self.cost: float | None = None
        self._url = url
        self._token = token
        self._lr_scaling = lr_scaling
        self._meter_choice = meter
        self._strict = strict
        # one per fit; made here so that the parent of spawned ranks knows it too
        self._run_key = uuid4().hex
        self._injection: Injection | None = None
        self._meter: EnergyMeter | None = None
        self._forget_last_fit()

    @override
    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if stage == "fit":
            self._forget_last_fit()
            if not trainer.fast_dev_run:  # type: ignore[attr-defined]
                self._start(trainer, pl_module)

    @override
    def on_load_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        # Lightning's tuners load a checkpoint too: one of their own, from before the first step
        if self._open is not None and checkpoint.get("global_step", 0) > 0:
            self._sit_out_resume()

    @override
    def on_save_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        if self._injection is not None:
            self._injection.clean(checkpoint)

    @override
    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._open is not None:
            on_every_rank(trainer.strategy, lambda: self._begin(trainer, pl_module))

    @override
    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._open is None:
            return
        if trainer.sanity_checking:
            on_rank_zero(trainer.strategy, lambda: self._metric(trainer))
        else:
            # at the validation that ends an epoch, Lightning has not counted that epoch yet
            self._measure_and_report(trainer, trainer.current_epoch + int(trainer.is_last_batch))

    @override
    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._open is not None and not trainer.enable_validation:
            self._measure_and_report(trainer, trainer.current_epoch + 1)
        if self.cost is not None:
            pl_module.log("zeus/cost", self.cost, prog_bar=True, logger=False, rank_zero_only=True)

    @override
    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._open is not None:
            self._close(trainer)

    @override
    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        try:
            self._end_from_here(outcome_of(exception), text_of(exception))
        finally:
            self._release()

    @override
    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if stage == "fit":
            self._end_from_here("withdrawn", "fit ended before training began")
            self._release()
            if self._error is not None:  # this late, so that checkpoints and other ends are done
                raise self._error

    # --- the start -------------------------------------------------------------------------------

    def _forget_last_fit(self) -> None:
        self.job = self.trial = self.outcome = self.report = self.cost = None
        self._open: Trial | None = None  # the trial, from its start to its end, on every rank
        self._began: Reading | None = None
        self._reason = ""
        self._error: ZeusError | None = None  # to be raised when fit is over

    def _start(self, trainer: Trainer, module: LightningModule) -> None:
        strategy = trainer.strategy
        client, job = on_every_rank(strategy, lambda: self._look_around(trainer, module))
        self.job = job = replace(job, max_power_w=sum_over_ranks(strategy, job.max_power_w))
        try:
            self.trial = on_rank_zero(strategy, lambda: self._start_trial(client, job))
        except ZeusServiceUnavailable as error:
            if self._strict:
                raise ZeusServiceUnavailable(
                    f"{error.message}; start one with `zeus-service serve`, correct the URL, or "
                    "pass strict=False to train without it",
                    error.fields,
                ) from None
            batch_size = job.default_batch_size
            rank_zero_warn(f"zeus: {error.message}; training without it on batch size {batch_size}")
        else:
            self._open = Trial(client, self.trial)
            batch_size = self.trial.batch_size
            rank_zero_info(
                f"zeus: trial {self.trial.trial_number} of job {job.job_id!r} trains with batch "
                f"size {batch_size} ({self.trial.why}): {self.trial.reason}"
            )
        self._injection = Injection(module)
        self._injection.set_batch_size(batch_size // sizes.share(trainer))
        if self._lr_scaling is not None:
            self._injection.scale_lr(self._lr_scaling, batch_size, job.default_batch_size)

    def _look_around(self, trainer: Trainer, module: LightningModule) -> tuple[BSOClient, JobSpec]:
        """Check the program, and open the meter; the job's `max_power_w` is this rank's."""
        url = self._url or os.environ.get("ZEUS_SERVER_URL")
        if not url:
            raise ZeusConfigError("no service given; pass url=... or set $ZEUS_SERVER_URL")
        client = BSOClient(url, self._token)
        self._meter = open_meter(self._meter_choice, trainer.strategy.root_device)
        job = self._arguments.job(trainer, module, self._meter)
        return client, job

    def _start_trial(self, client: BSOClient, job: JobSpec) -> TrialStart:
        client.register_job(job)
        try:
            return client.start_trial(job.job_id, self._run_key)
        except (ZeusServiceUnavailable, KeyboardInterrupt):
            # It may have been started all the same: the key names it.
            with suppress(Exception):
                start = client.start_trial(job.job_id, self._run_key, timeout_s=_LAST_CALL_S)
                Trial(client, start).tell_end("withdrawn", "its start was not heard", _LAST_CALL_S)
            raise

    def _sit_out_resume(self) -> None:
        rank_zero_warn(
            "zeus: a run resumed from a checkpoint cannot be measured from its start; "
            "it trains on the program's own batch size, without a trial"
        )
        self._end_from_here("withdrawn", "resumed from a checkpoint")
        self._release()

    def _begin(self, trainer: Trainer, module: LightningModule) -> None:
        """Check what is about to train, and start measuring."""
        assert self._meter is not None
        assert self.trial is not None
        batch_size = self.trial.batch_size // sizes.share(trainer)
        if not sizes.check_loaders(trainer, module, batch_size):
            rank_zero_warn(
                f"zeus: the train_dataloader() of {sizes.data_owner(trainer, module)} does not "
                f"tell its batch size; make sure that it follows batch_size={batch_size}"
            )
        self._began = self._meter.read()

    # --- a validation end ------------------------------------------------------------------------

    def _measure_and_report(self, trainer: Trainer, epoch: int) -> None:
        trial, spent = self._open, self._measure()
        assert trial is not None
        energy_j = sum_over_ranks(trainer.strategy, spent.energy_j)
        answer = on_rank_zero(
            trainer.strategy,
            lambda: trial.report(epoch, spent.time_s, energy_j, self._metric(trainer)),
        )
        self._follow(trainer, answer)
        self._log(trainer)

    def _measure(self) -> Reading:
        """Energy and time of this rank since training began; NaN joules if the meter failed."""
        assert self._meter is not None
        assert self._began is not None
        try:
            return self._meter.read() - self._began
        except ZeusMeterError as error:
            rank_zero_warn(f"zeus: {error.message}")
            return Reading(energy_j=math.nan, time_s=0.0)

    def _metric(self, trainer: Trainer) -> float:
        metric = trainer.callback_metrics.get(self.monitor)
        if metric is None:
            hint = (
                "; a metric logged only in training needs Trainer(num_sanity_val_steps=0)"
                if trainer.sanity_checking
                else ""
            )
            raise ZeusConfigError(
                f"monitor is {self.monitor!r}, but the metrics logged so far are "
                f"{sorted(trainer.callback_metrics)}; log it with self.log(), or monitor one of "
                f"these{hint}"
            )
        # as printed: 0.95 in single precision is 0.94999999, which would miss a target of 0.95
        single = metric.dtype == torch.float32
        return float(str(np.float32(metric.item()))) if single else float(metric)

    def _follow(self, trainer: Trainer, answer: Answer) -> None:
        """Do, on every rank, what rank zero has heard or decided."""
        assert self.job is not None
        if answer.report is not None:
            self.report = answer.report
            self.cost = cost(self.job, answer.report)
        if answer.outcome is None:
            if answer.report is not None and self._reached(answer.report):
                trainer.should_stop = True  # the report is kept: the service is away
            return
        self._open = None
        self.outcome, self._reason = answer.outcome, answer.reason
        if self.outcome == "converged" or self.outcome in _FAILURES:
            trainer.should_stop = True
        if self.outcome in _FAILURES:
            self._error = ZeusTrialFailed(self._failure())
        say = rank_zero_warn if self.outcome in ("interrupted", "lost") else rank_zero_info
        say(f"zeus: {self._ending()}")

    def _log(self, trainer: Trainer) -> None:
        if self.report is None or self.trial is None or self.cost is None:
            return
        figures = {
            "zeus/batch_size": float(self.trial.batch_size),
            "zeus/energy_j": self.report.energy_j,
            "zeus/time_s": self.report.time_s,
            "zeus/power_w": self.report.energy_j / max(self.report.time_s, 1e-9),
            "zeus/cost": self.cost,
        }
        for logger in trainer.loggers:
            # the step Lightning gives to the metrics of this validation
            logger.log_metrics(figures, step=trainer.fit_loop.epoch_loop._batches_that_stepped)

    # --- the end ---------------------------------------------------------------------------------

    def _close(self, trainer: Trainer) -> None:
        """End a trial that is still open when training ends."""
        trial = self._open
        assert trial is not None
        epochs = trainer.current_epoch
        outcome: Outcome
        if out_of_time(trainer):
            outcome, reason = "interrupted", f"max_time was reached after {epochs} epochs"
        elif self.report is None and trainer.should_stop:
            outcome, reason = "interrupted", "another callback stopped it before a validation"
        elif self.report is None:
            outcome, reason = "withdrawn", f"no validation in {epochs} epochs"
            self._error = ZeusConfigError(
                f"training ended after {epochs} epochs without a validation, so {self.monitor!r} "
                "was never seen and nothing was learned; let validation run, or monitor a metric "
                "of training with limit_val_batches=0"
            )
        elif self._reached(self.report):
            outcome, reason = "not_converged", "the target is reached"  # and reports are kept
        else:
            stopped = "another callback stopped it" if trainer.should_stop else "training ended"
            outcome, reason = "not_converged", f"{stopped}, short of the target"
        self._follow(trainer, on_rank_zero(trainer.strategy, lambda: trial.end(outcome, reason)))

    def _reached(self, report: Report) -> bool:
        assert self.job is not None
        return reached(self.job, report.metric)

    def _failure(self) -> str:
        text = f"{self._ending()}. Run the job again: it will try another batch size."
        if self.outcome == "early_stopped":
            text += (
                " Where the job itself has become slower, give it a new job_id, with window_size "
                "or beta_knob=None."
            )
        return text

    def _ending(self) -> str:
        assert self.trial is not None
        text = (
            f"trial {self.trial.trial_number} of job {self.trial.job_id!r} with batch size "
            f"{self.trial.batch_size} ended as {self.outcome}: {self._reason.rstrip('.')}"
        )
        if self.report is None:
            return text
        estimated = " (estimated)" if self._meter is not None and self._meter.is_estimate else ""
        return (
            f"{text} ({self.monitor} {self.report.metric:.6g} after {self.report.epoch} epochs, "
            f"{self.report.time_s:.1f} s, {self.report.energy_j:.1f} J{estimated}, "
            f"cost {self.cost:.1f} J)"
        )

    def _end_from_here(self, outcome: Outcome, reason: str) -> None:
        """End a trial still open from whichever rank this is: one short call, never an error."""
        trial, self._open = self._open, None
        if trial is None:
            return
        self.outcome, self._reason = outcome, reason
        with suppress(Exception):  # whatever ended the run matters more; the lease covers the rest
            trial.tell_end(outcome, reason, timeout_s=_LAST_CALL_S)
        rank_zero_info(f"zeus: {self._ending()}")

    def _release(self) -> None:
        """Leave the program as it was, ready for another fit."""
        with suppress(Exception):
            if self._injection is not None:
                self._injection.undo()
            if self._meter is not None and isinstance(self._meter_choice, str):
                self._meter.close()  # a meter that was passed in is its owner's
        self._injection = self._meter = None
        self._run_key = uuid4().hex
