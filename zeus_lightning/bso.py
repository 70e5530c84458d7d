"""`ZeusBSOCallback`: train a recurring job with the batch size that costs least."""

from __future__ import annotations

import weakref
from typing import Any, Literal

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.utilities import rank_zero_warn
from typing_extensions import override

from zeus_lightning.client import BSOClient, connect
from zeus_lightning.environment import outcome_files
from zeus_lightning.errors import ZeusTrialFailed
from zeus_lightning.messages import FAILED, JobSpec, Outcome, shortest_decimal
from zeus_lightning.meters import EnergyMeter
from zeus_lightning.program.batch_size import Scope
from zeus_lightning.program.internals import (
    check_internals,
    drop_dataloaders,
    is_tuning,
    starts_ranks_itself,
)
from zeus_lightning.program.lr_scaling import LRScaling
from zeus_lightning.program.metric import check_logged, no_monitor
from zeus_lightning.run.fit import Fit
from zeus_lightning.run.job import JobArguments, PolicyOptions
from zeus_lightning.run.late_error import LateError
from zeus_lightning.run.outcomes import is_trial_failure, outcome_of, reason_of
from zeus_lightning.run.ranks import local_rank_of, on_every_rank
from zeus_lightning.run.record import ShowsTrial, TrialRecord, temporary_file
from zeus_lightning.run.trial_calls import end_trial_of_dead_ranks


class ZeusBSOCallback(ShowsTrial, Callback):
    """Batch size optimizer (BSO): train with the batch size that reaches the target most cheaply.

    Each `fit` of a new Trainer is one trial of a job: the callback requests a batch size from the
    service and sets it before training. After each validation, it reports the energy and time
    since training began. It stops the run when the target is reached or the batch size fails.
    The cost in joules is `eta_knob * energy + (1 - eta_knob) * max_power * time`, where `max_power`
    is the sum of the devices' highest power limits in watts.

    It logs `zeus/batch_size`, `zeus/energy_j`, `zeus/time_s`, `zeus/power_w` (mean since training
    began) and `zeus/cost_j` after each validation. `fit(ckpt_path=...)` resumes the trial of the
    checkpoint; joules and seconds spent after the checkpoint was saved do not count.

    If the service requires a token, set `$ZEUS_BSO_TOKEN` to it. If a run's batch size fails,
    `zeus-lightning exec` exits with status 75, so that a scheduler can start the job again.

    Args:
        url: The service's URL, such as `http://127.0.0.1:8765`. Default: `$ZEUS_SERVER_URL`.
        target_metric: Value of `monitor` that ends the training. Default: the registered job's; if
            it has none, the target is learned from baselines: the first runs train with the default
            batch size to completion, as they would without the callback.
        baseline_runs: Number of baselines from which the target is learned, 2 to 20. Default: the
            job's, else 3.
        monitor: A metric the module logs in validation. Default: the registered job's, else the
            one that the Trainer's `EarlyStopping` or else its `ModelCheckpoint` monitors.
        mode: `max` if the metric should rise to the target, `min` if it should fall. Default: the
            job's, else the mode of the callback that supplies `monitor`, else guessed from the
            metric's name; required if none of these shows it.
        job_id: 1 to 255 letters, digits and `._:-`; runs with the same id are one recurring job.
            Default: `$ZEUS_JOB_ID`, else folder, script and module class, like `ranker-train-Net`.
        batch_sizes: The batch sizes to choose from, at most 128. Default: `default_batch_size`
            times 2**-3 to 2**3.
        default_batch_size: Batch size to start from. Default: the batch size of the passed
            dataloader, or `batch_size` of datamodule, module or hparams; with the scope `global`,
            multiplied by the number of devices and `accumulate_grad_batches`.
        batch_size_scope: What a batch size of the job is. `global`: the samples of one optimizer
            step, over all devices and accumulated batches; each device trains with an equal share.
            `per_device`: the program's own `batch_size`, the samples of one device's batch.
            Default: the registered job's, else `global`.
        batch_arg_name: The attribute of the datamodule, the module or their hparams that
            `train_dataloader()` uses, with dots if it is nested: `data.train_batch_size`. Default:
            the datamodule's `batch_size_per_device` if it has one, else `batch_size`, else its only
            attribute with "batch_size" in its name, such as `train_batch_size`.
        max_epochs: Number of epochs after which a run that has not reached the target fails.
            Default: the registered job's, else the Trainer's. If the Trainer has only `max_steps`,
            the run fails when these are used up.
        lr_scaling: `linear` or `sqrt`: scales the learning rates with the batch size. They are
            assumed to be tuned for `default_batch_size`, or else for the program's own batch size.
        eta_knob: Weight of energy against time in the cost, in [0, 1]. Default: the job's,
            else 0.5.
        beta_knob: A run is stopped when it is expected to cost more than this many times the cost
            of the best batch size; with infinity, no run is stopped. Default: the job's, else 2.
        policy: Name of the service's policy, or its options: `name`, `num_pruning_rounds` (rounds
            of exploration before Thompson sampling), `window_size` (only for `zeus`: how many of a
            batch size's latest runs count, for drifting data; 0 keeps all) and `seed`. Default: the
            job's, else the service's.
        meter: `auto`, `nvml`, `nvml:0,1` (NVML indices or UUIDs), `amd`, `amd:0,1`, `apple`,
            `rapl`, `nvml+rapl` or `amd+rapl` (GPUs, CPU packages and memory), `cpu-estimate`,
            `cpu-estimate:5.0` (watts per core), or an `EnergyMeter`.
        require_service: Whether the run raises an error if the service does not answer at the
            start. If False, it warns, trains with the default batch size, and ends at the target.
        raise_on_failure: Whether `fit` raises `ZeusTrialFailed` at its end if the batch size has
            failed. If False, it returns with a warning; see `outcome`.

    Raises:
        ZeusConfigError: An argument or the training program is invalid; raised before the first
            training step or, if `monitor` is not logged, after the first epoch with a validation.
        ZeusMeterError: The energy meter cannot be opened.
        ZeusServiceUnavailable: The service does not answer when `fit` starts, and is required.
        ZeusJobConflict: The job id is registered with another configuration.
        ZeusServiceError: The service refused the job or the start.
        ZeusTrialFailed: `fit` ended without reaching the target; the job's next run tries another
            batch size. If all have failed, a run is a control trial: it trains with the default
            batch size and is not stopped early.

    Example::

        from zeus_lightning import ZeusBSOCallback

        zeus = ZeusBSOCallback("http://127.0.0.1:8765")
        trainer = Trainer(max_epochs=50, callbacks=[EarlyStopping("val_loss"), zeus])
        trainer.fit(Net(), datamodule=Digits(batch_size=64))
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        target_metric: float | None = None,
        baseline_runs: int | None = None,
        monitor: str | None = None,
        mode: Literal["min", "max"] | None = None,
        job_id: str | None = None,
        batch_sizes: list[int] | None = None,
        default_batch_size: int | None = None,
        batch_size_scope: Scope | None = None,
        batch_arg_name: str | None = None,
        max_epochs: int | None = None,
        lr_scaling: LRScaling | None = None,
        eta_knob: float | None = None,
        beta_knob: float | None = None,
        policy: str | PolicyOptions | None = None,
        meter: str | EnergyMeter = "auto",
        require_service: bool = True,
        raise_on_failure: bool = True,
    ) -> None:
        super().__init__()
        if url is not None:
            BSOClient(url)
        self._arguments = JobArguments(
            target_metric=target_metric,
            baseline_runs=baseline_runs,
            monitor=monitor,
            mode=mode,
            job_id=job_id,
            batch_sizes=batch_sizes,
            default_batch_size=default_batch_size,
            batch_size_scope=batch_size_scope,
            batch_arg_name=batch_arg_name,
            max_epochs=max_epochs,
            lr_scaling=lr_scaling,
            eta_knob=eta_knob,
            beta_knob=beta_knob,
            policy=policy,
        )
        self._url = url
        self._meter = meter
        self._require_service = require_service
        self._raise_on_failure = raise_on_failure
        self.failed_by_error = False
        """Whether the last `fit` ended with an error that means that its batch size failed."""
        self._fit: Fit | None = None  # from `setup` to `teardown` or an exception
        self._last: TrialRecord | None = None  # the trial of the previous fit
        self._late_error: LateError | None = None  # from `teardown` to its arrival
        self._private_file = temporary_file()  # named before Lightning launches ranks
        weakref.finalize(self, self._private_file.unlink, missing_ok=True)

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for a copy or a pickle: the callback without its running fit."""
        return vars(self) | {"_client": None, "_fit": None, "_late_error": None}

    @property
    def batch_size(self) -> int | None:
        """The batch size of the last `fit`'s trial; None if it had none."""
        return self.trial.batch_size if self.trial else None

    @property
    def job(self) -> JobSpec | None:
        """The job of the last `fit`; None after one that had no trial."""
        if self._fit is not None:
            return self._fit.run.job
        return self._record.job if self._record else None

    @property
    def _record(self) -> TrialRecord | None:
        """The trial of the current fit or the last one, whichever process trained it."""
        if self._fit is not None:
            return self._fit.run.record
        return TrialRecord.read(self._private_file) or self._last

    @override
    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if stage != "fit":
            return
        check_internals(trainer)
        # the previous fit, if another callback's error kept `on_exception` from being called
        self._end_fit("errored", "the fit was aborted")
        if self._late_error is not None:
            self._late_error.undo()
            self._late_error = None
        if is_tuning(trainer):
            return
        self._last, self.failed_by_error = None, False
        files = outcome_files()
        if starts_ranks_itself(trainer):
            files.append(self._private_file)
        if local_rank_of(trainer.strategy) == 0:
            for path in files:
                TrialRecord.remove(path)
        if trainer.fast_dev_run:  # type: ignore[attr-defined]
            return
        self._client = client = on_every_rank(trainer.strategy, lambda: connect(self._url))
        self._fit = fit = Fit(
            trainer,
            pl_module,
            self._arguments,
            client,
            self._meter,
            require_service=self._require_service,
            outcome_files=files,
        )
        if trainer.global_step == 0 and not fit.has_trained_module():
            fit.start()
        else:
            fit.continue_earlier_fit()

    @override
    def on_load_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        if self._fit is None:  # as in validate, test and predict
            return
        state = checkpoint["callbacks"].get(self.state_key)
        if state:
            self._fit.resume(TrialRecord.from_json(state))
        elif checkpoint.get("global_step", 0) > 0:  # Lightning's tuners load one from before step 1
            self._fit.resume_without_trial()
        # FSDP and similar strategies load after configure_optimizers, which may have built a
        # dataloader
        drop_dataloaders(trainer)

    @override
    def on_save_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        if self._fit is not None:  # save the program's original values, not the injected ones
            self._fit.injection.restore_in(checkpoint)

    @override
    def state_dict(self) -> dict[str, Any]:
        """The trial, for `on_load_checkpoint` to resume it."""
        record = self._record if self._fit is None else self._fit.run.checkpoint()
        return record.to_json() if record and record.outcome != "withdrawn" else {}

    @override
    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._fit is not None:
            self._fit.scale_learning_rates()

    @override
    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._fit is not None:
            self._fit.start_measuring()

    @override
    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        if self._fit is not None and batch_idx == 0:
            self._fit.check_loaders(batch)

    @override
    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._fit is not None:
            self._fit.value_before = trainer.callback_metrics.get(self._fit.run.job.monitor)

    @override
    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        fit = self._fit
        if fit is not None and fit.lacks_monitor:
            raise no_monitor(trainer)
        if fit is None or fit.reports_after_epoch or trainer.sanity_checking:
            return
        # at the validation that ends an epoch, Lightning has not counted that epoch yet
        epoch = trainer.current_epoch + int(trainer.is_last_batch)
        fit.reports_after_epoch = not _report(fit, epoch, may_wait=True)

    @override
    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._fit is None:
            return
        if not self._fit.has_had_batches and not trainer.should_stop:
            self._fit.end_without_batches()
        if self._fit.reports_after_epoch or not trainer.enable_validation:
            if self._fit.lacks_monitor:
                raise no_monitor(trainer)
            _report(self._fit, trainer.current_epoch + 1)

    @override
    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._fit is not None:
            self._fit.end()

    @override
    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._fit is not None and trainer.fit_loop.max_batches == 0:
            self._fit.end_without_batches()  # there was no epoch

    @override
    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        late_error, self._late_error = self._late_error, None
        if late_error is not None and (error := late_error.arrived(exception)):
            raise error
        if self._fit is not None:
            if self._fit.error is not None and exception is not self._fit.error:
                rank_zero_warn(f"zeus: {self._fit.error.message}")  # for `fit` will not raise it
            outcome, reason = self._fit.outcome_and_reason(exception)
            self._end_fit(outcome, reason)
        else:
            outcome, reason = outcome_of(exception), reason_of(exception)
            end_trial_of_dead_ranks(self._url, self._private_file, outcome, reason)
        # not if the batch size had failed before this error, or another rank reported its own
        is_result = isinstance(exception, Exception) and self.outcome == outcome
        shows_it = is_result or is_trial_failure(exception)
        self.failed_by_error = self.outcome in FAILED and shows_it

    @override
    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if stage != "fit" or self._fit is None:
            return
        error = self._fit.error
        self._fit.warn_of_unsaved_model()
        self._fit.remember_module()
        self._end_fit("withdrawn", "fit ended before training began")
        if isinstance(error, ZeusTrialFailed) and not self._raise_on_failure:
            rank_zero_warn(f"zeus: {error.message}")
        elif error is not None:
            self._late_error = LateError(error, self, trainer)

    def _end_fit(self, outcome: Outcome, reason: str) -> None:
        """End a trial that is still open, and restore the program for another fit."""
        fit, self._fit = self._fit, None
        if fit is not None:
            self._last = fit.close(outcome, reason)


def _report(fit: Fit, epoch: int, *, may_wait: bool = False) -> bool:
    """Measure and report, with the epochs completed, and stop training if that is decided.

    All ranks call it together. With `may_wait`, a metric that the first validation did not log is
    waited for until the epoch's end.

    Returns:
        Whether there was a metric to report.
    """
    record = fit.run.record if fit.run.is_open else None
    decision = fit.run.report(epoch, lambda: _read_metric(fit, may_wait=may_wait))
    if decision is None:
        return False
    fit.has_reported = True
    fit.trainer.should_stop |= decision.stop
    if record is not None and decision.cost is not None:
        _log(fit, record, decision.cost)
    return True


def _read_metric(fit: Fit, *, may_wait: bool) -> float | None:
    """The metric's latest value, as its shortest decimal; None if it is logged later.

    Raises:
        ZeusConfigError: The metric was not logged, or training logs it for each batch alone.
    """
    monitor, logged = fit.run.job.monitor, fit.trainer.callback_metrics
    if may_wait and not fit.has_reported and logged.get(monitor) is fit.value_before:
        return None  # validation has not logged it; the epoch's end may bring it, or its mean
    if not may_wait and not fit.has_reported:
        if monitor not in logged and not fit.run.is_open:
            return None
        check_logged(fit.trainer, monitor)
    return shortest_decimal(logged[monitor])


def _log(fit: Fit, record: TrialRecord, cost_j: float) -> None:
    """Log what the trial has taken so far."""
    metrics = {
        "zeus/batch_size": float(record.trial.batch_size),
        "zeus/cost_j": cost_j,
        **fit.run.meter.metrics(record.spent),
    }
    for logger in fit.trainer.loggers:
        logger.log_metrics(metrics, step=fit.step_of_logs())
