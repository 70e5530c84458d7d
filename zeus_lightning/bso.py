"""`ZeusBSOCallback`: train a recurring job with the batch size that costs least."""

from __future__ import annotations

import traceback
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.utilities import rank_zero_warn
from torch.multiprocessing.spawn import ProcessExitedException
from typing_extensions import override

from zeus_lightning.client import BSOClient, connect, plain_token
from zeus_lightning.environment import EXIT_TRY_AGAIN, OnFailure, on_failure_of
from zeus_lightning.errors import ZeusError, ZeusTrialFailed
from zeus_lightning.messages import FAILED, JobSpec, Outcome, Report, TrialStart
from zeus_lightning.meters import EnergyMeter
from zeus_lightning.program.batch_size import Scope
from zeus_lightning.program.internals import check_internals, drop_dataloaders, is_tuning
from zeus_lightning.program.job import JobArguments
from zeus_lightning.program.lr_scaling import LRScaling
from zeus_lightning.program.metric import contradiction
from zeus_lightning.program.trained_modules import check_alone, warn_of_unsaved_model
from zeus_lightning.ranks.distributed import is_watched, on_every_rank
from zeus_lightning.trial.checkpoint import SavedTrial
from zeus_lightning.trial.fit import Fit
from zeus_lightning.trial.late_error import LateError, exit_after_teardown
from zeus_lightning.trial.outcome import outcome_of, reason_of
from zeus_lightning.trial.record import TrialRecord
from zeus_lightning.trial.reporter import TrialReporter
from zeus_lightning.trial.shared_record import SharedRecord

if TYPE_CHECKING:  # LightningCLI masks values of this type in the configs that it saves
    from jsonargparse.typing import SecretStr


class ZeusBSOCallback(Callback):
    """Batch size optimizer (BSO): train with the batch size that reaches the target at least cost.

    Each `fit` of a new Trainer is one trial of a job: the callback requests a batch size from the
    service, sets it before any dataloader is built, reports energy and time since training began at
    each validation end, and stops the run when the target is reached or the batch size has failed.
    The cost in joules is `eta_knob * energy + (1 - eta_knob) * max_power * time`, where `max_power`
    is the sum of the devices' highest power limits in watts.

    It logs `zeus/batch_size`, `zeus/energy_j`, `zeus/time_s`, `zeus/power_w` (mean since training
    began) and `zeus/cost` at each validation end. `fit(ckpt_path=...)` resumes the trial of the
    checkpoint; joules and seconds spent after the checkpoint was saved do not count.

    Args:
        url: The service, such as `http://127.0.0.1:8765`. Default: `$ZEUS_SERVER_URL`.
        target_metric: Value of `monitor` that ends the training.
        monitor: A metric the module logs in validation.
        mode: `max` if the metric is to rise to the target, `min` if it is to fall to it.
        job_id: The same id makes the runs one recurring job: 1 to 255 letters, digits and `._:-`.
            Default: `$ZEUS_JOB_ID`, else the module's class name.
        batch_sizes: Batch sizes to choose from, at most 128. Default: `default_batch_size` times
            2**-3 to 2**3.
        default_batch_size: Batch size to start from. Default: the `batch_size` of the datamodule or
            module (or their hparams), times devices and accumulated batches in the global scope.
        batch_size_scope: What a batch size of the job is. `global`: the samples of one optimizer
            step, over all devices and accumulated batches; each device trains with an equal share.
            `per_device`: the program's `batch_size`, passed through; one optimizer step takes it
            times devices and accumulated batches.
        batch_size_attribute: The attribute that `train_dataloader()` uses, of the datamodule, the
            module or their hparams; with dots if it is nested, such as `data.train_batch_size`.
        max_epochs: Epochs after which the batch size has failed. Default: the Trainer's; with only
            its `max_steps`, the end of training.
        eta_knob: Weight of energy against time in the cost, in [0, 1].
        beta_knob: A run expected to cost more than this times what the best batch size costs is
            stopped. None: never.
        num_pruning_rounds: Rounds of exploration before Thompson sampling.
        window_size: Latest runs of a batch size that count, for drifting data; 0: all.
        policy: Name of the service's policy. Default: the service's choice.
        seed: Seed of the policy's random choices. Default: derived from the job id.
        lr_scaling: `linear` or `sqrt`: multiplies the learning rate of each optimizer step by
            batch size over `default_batch_size`, or its root.
        meter: `auto`, `nvml`, `nvml:0,1` (NVML indices or UUIDs), `rapl`, `cpu-estimate`,
            `nvml+rapl` (GPUs, CPU packages and memory), `cpu-estimate:5.0` (watts per core), or an
            `EnergyMeter`.
        pue: Power usage effectiveness of the data center, by which energy and MaxPower are
            multiplied; each fit logs it.
        allow_mixed_devices: Whether ranks may train on different models of devices. Only for jobs
            whose runs all have the same mixture: costs on another one cannot be compared.
        token: The service's token. Default: `$ZEUS_BSO_TOKEN`.
        strict: Whether a service that cannot be reached at the start is an error. If not, the run
            trains with the default batch size, with a warning and without a trial.
        on_failure: `raise`: a failed batch size is a `ZeusTrialFailed` as `fit` ends. `stop`: `fit`
            returns with a warning; see `outcome`. `exit`: the process ends with exit status 75,
            by which a scheduler recognizes a run to launch again; out of memory, too. With several
            ranks, see docs/recurring.md. Default: `$ZEUS_ON_FAILURE`, else `raise`.

    Raises:
        ZeusConfigError: An argument or the training program is invalid; raised before the first
            training step, for an unknown `monitor` as the first epoch with a validation ends.
        ZeusMeterError: The energy meter cannot be opened.
        ZeusServiceUnavailable: The service does not answer when `fit` starts, and `strict` is set.
        ZeusJobConflict: The job id is registered with another configuration.
        ZeusNoBatchSizeLeft: Every batch size of the job has failed.
        ZeusServiceError: The service refused the job or the start.
        ZeusTrialFailed: `fit` ended without reaching the target; the job's next run tries another
            batch size.

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
        batch_size_scope: Scope = "global",
        batch_size_attribute: str = "batch_size",
        max_epochs: int | None = None,
        eta_knob: float = 0.5,
        beta_knob: float | None = 2.0,
        num_pruning_rounds: int = 2,
        window_size: int = 0,
        policy: str | None = None,
        seed: int | None = None,
        lr_scaling: LRScaling | None = None,
        meter: str | EnergyMeter = "auto",
        pue: float = 1.0,
        allow_mixed_devices: bool = False,
        token: SecretStr | str | None = None,
        strict: bool = True,
        on_failure: OnFailure | None = None,
    ) -> None:
        super().__init__()
        if url is not None:
            BSOClient(url, plain_token(token))
        self._arguments = JobArguments(
            target_metric=target_metric,
            monitor=monitor,
            mode=mode,
            job_id=job_id,
            batch_sizes=batch_sizes,
            default_batch_size=default_batch_size,
            batch_size_scope=batch_size_scope,
            batch_size_attribute=batch_size_attribute,
            max_epochs=max_epochs,
            eta_knob=eta_knob,
            beta_knob=beta_knob,
            num_pruning_rounds=num_pruning_rounds,
            window_size=window_size,
            policy=policy,
            seed=seed,
            lr_scaling=lr_scaling,
        )
        if (mistake := contradiction(monitor, mode, target_metric)) is not None:
            rank_zero_warn(f"zeus: {mistake}")
        self._url = url
        self._token = plain_token(token)
        self._meter = meter
        self._pue, self._allow_mixed = pue, allow_mixed_devices
        self._strict = strict
        self._on_failure = on_failure_of(on_failure)
        self.client: BSOClient | None = None
        """What calls the service, from `setup` on."""
        self.failed_by_error = False
        """Whether the last `fit` ended by an error that was a verdict against the batch size."""
        self._fit: Fit | None = None  # from `setup` to `teardown` or an exception
        self._last: SavedTrial | None = None  # of the previous fit
        self._trained = (0, 0)  # Trainer and module of the previous fit
        self._late_error: LateError | None = None  # from `teardown` to its arrival
        self._shared = SharedRecord()  # here, before Lightning spawns or forks the ranks

    def __getstate__(self) -> dict[str, Any]:
        """Return the state of a copy or pickle: that of the callback without its running fit."""
        state = vars(self) | {"client": None, "_fit": None, "_late_error": None}
        if self._fit is not None:
            del state["_shared"]  # a copy would take the running trial for its own
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        if "_shared" not in state:
            self._shared = SharedRecord()

    @property
    def job(self) -> JobSpec | None:
        """The job of the last `fit`; None after one that had no trial."""
        if self._fit is not None:
            return self._fit.job
        return self._record.job if self._record else None

    @property
    def trial(self) -> TrialStart | None:
        """The last `fit`'s trial: batch size, and why. None if there was none."""
        return self._record.trial if self._record else None

    @property
    def report(self) -> Report | None:
        """The trial's last report: epoch, seconds, joules, metric. None before the first."""
        return self._record.report if self._record else None

    @property
    def outcome(self) -> Outcome | None:
        """How the trial ended; None while it runs.

        `lost`: the service became unavailable, and still was when training ended.
        """
        return self._record.outcome if self._record else None

    @property
    def cost(self) -> float | None:
        """The cost at `report`, in joules."""
        return self._record.cost if self._record else None

    @property
    def _record(self) -> TrialRecord | None:
        """The trial of the current fit or the last one, whichever process trained it."""
        if self._fit is not None:
            return self._fit.trial.record
        return self._shared.read() or (self._last.record if self._last else None)

    @override
    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if stage != "fit":
            return
        check_internals(trainer)
        if self._fit is not None:
            check_alone(trainer, earlier=self._fit.trainer)
        # the previous fit, if another callback's error kept `on_exception` from being called
        self._end_fit("errored", "the fit was aborted")
        if self._late_error is not None:
            self._late_error.undo()
            self._late_error = None
        if is_tuning(trainer):
            return
        previous, self._last, self.failed_by_error = self._last, None, False
        if trainer.is_global_zero:  # other ranks may share the memory
            self._shared.clear()
        if trainer.fast_dev_run:  # type: ignore[attr-defined]
            return
        self.client = client = on_every_rank(
            trainer.strategy, lambda: connect(self._url, self._token)
        )
        self._fit = fit = Fit(
            trainer,
            pl_module,
            self._arguments,
            client,
            self._meter,
            self._shared,
            self._strict,
            self._pue,
            self._allow_mixed,
        )
        if trainer.global_step == 0 and not fit.has_trained_module():
            fit.start()
        else:
            if trainer.global_step == 0 or self._trained != (id(trainer), id(pl_module)):
                previous = None
            fit.start_again(trainer.strategy.broadcast(previous))
        self._trained = (id(trainer), id(pl_module))

    @override
    def on_load_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        if self._fit is None:  # as in validate, test and predict
            return
        state = checkpoint["callbacks"].get(self.state_key)
        if state:
            self._fit.resume(SavedTrial.from_json(state))
        elif checkpoint.get("global_step", 0) > 0:  # Lightning's tuners load one from before step 1
            self._train_without_trial()
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
        saved = self._last if self._fit is None else self._fit.saved_trial()
        if self._fit is None and (record := self._shared.read()) and saved is None:
            saved = SavedTrial(record, record.spent)  # of processes that this one started
        return saved.to_json() if saved and saved.record.outcome != "withdrawn" else {}

    @override
    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._fit is not None:
            self._fit.scale_learning_rates()

    @override
    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._fit is not None:
            self._fit.start_measuring()

    @override
    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._fit is None:
            return
        if trainer.sanity_checking:
            self._fit.look_for_monitor()
        else:
            # at the validation that ends an epoch, Lightning has not counted that epoch yet
            self._fit.report_validation(trainer.current_epoch + int(trainer.is_last_batch))

    @override
    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._fit is None:
            return
        if not self._fit.has_had_batches and not trainer.should_stop:
            self._fit.end_without_batches()
        if self._fit.reports_after_epoch or not trainer.enable_validation:
            self._fit.report(trainer.current_epoch + 1)
        cost = self.cost
        if cost is not None:
            # Lightning's own `log`: the module's may take other arguments
            LightningModule.log(
                pl_module,
                "zeus/cost",
                cost,
                prog_bar=True,
                logger=False,
                # this avoids a collective; with sync_dist Lightning does not recommend one
                rank_zero_only=True,
                sync_dist=True,
            )

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
        if self._fit is not None and self._fit.trainer is not trainer:
            return  # of a Trainer that was refused
        late_error, self._late_error = self._late_error, None
        if late_error is not None:
            late_error.arrived(exception)
        outcome, reason = outcome_of(exception), reason_of(exception)
        if self._fit is not None:
            if outcome == "errored" and (few := self._fit.too_few_batches()):
                outcome, reason = "not_converged", few
            self._end_fit(outcome, reason)
        else:
            self._end_trial_of_started_processes(outcome, reason)
        # A rank in a process of its own whose batch size has failed exits with this status.
        failed = (
            self.outcome in FAILED
            and isinstance(exception, ProcessExitedException)
            and exception.exit_code == EXIT_TRY_AGAIN
        )
        # not if the batch size had failed before this error, or another rank reported its own
        is_verdict = outcome in FAILED and self.outcome == outcome
        self.failed_by_error = is_verdict and isinstance(exception, Exception)
        if self._on_failure == "exit" and (failed or self.failed_by_error):
            traceback.print_exception(exception)
            exit_after_teardown(trainer, SystemExit(EXIT_TRY_AGAIN))

    @override
    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if stage == "fit" and self._fit is not None:
            error = self._fit.error
            self._fit.remember_module()
            self._end_fit("withdrawn", "fit ended before training began")
            if self.outcome == "converged":
                warn_of_unsaved_model(trainer)
            if isinstance(error, ZeusTrialFailed) and self._on_failure != "raise":
                rank_zero_warn(f"zeus: {error.message}")
                if self._on_failure == "exit":
                    ending = SystemExit(0 if is_watched(trainer.strategy) else EXIT_TRY_AGAIN)
                    self._late_error = LateError(ending, self, trainer)
            elif error is not None:
                self._late_error = LateError(error, self, trainer)

    def _train_without_trial(self) -> None:
        rank_zero_warn(
            "zeus: the checkpoint contains no trial saved by this callback, so the run cannot be "
            "measured from its start; it trains on the program's own batch size, without a trial"
        )
        self._end_fit("withdrawn", "resumed from a checkpoint without a trial")

    def _end_fit(self, outcome: Outcome, reason: str) -> None:
        """End a trial that is still open, and restore the program for another fit."""
        fit, self._fit = self._fit, None
        if fit is not None:
            self._last = fit.close(outcome, reason)

    def _end_trial_of_started_processes(self, outcome: Outcome, reason: str) -> None:
        """End the trial after ranks have died; Lightning calls hooks only in the parent then."""
        record = self._shared.read()
        if record is not None and record.outcome is None:
            with suppress(ZeusError):
                reporter = TrialReporter(connect(self._url, self._token), record)
                reporter.end_at_once(outcome, reason)
                self._shared.write(record)
