"""`ZeusBSOCallback`: train a recurring job with the batch size that costs least."""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from dataclasses import replace
from typing import Any, Literal

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn
from typing_extensions import override

from zeus_lightning import batch_size as sizes
from zeus_lightning.client import BSOClient
from zeus_lightning.distributed import on_every_rank, on_rank_zero
from zeus_lightning.ending import at_train_end, outcome_of, text_of
from zeus_lightning.errors import (
    ZeusConfigError,
    ZeusError,
    ZeusServiceUnavailable,
    ZeusTrialFailed,
)
from zeus_lightning.heartbeat import Heartbeat
from zeus_lightning.injection import Injection
from zeus_lightning.job import JobArguments
from zeus_lightning.lr_scaling import LRScaling
from zeus_lightning.mailbox import Mailbox
from zeus_lightning.messages import JobSpec, Outcome, Report, TrialStart
from zeus_lightning.meters import EnergyMeter
from zeus_lightning.monitor import monitored
from zeus_lightning.recurrence import Recurrence
from zeus_lightning.resume import SavedTrial, take_up
from zeus_lightning.run_meter import RunMeter
from zeus_lightning.trial import Answer, Trial, start_trial

_FAILURES = ("early_stopped", "not_converged", "diverged", "out_of_memory")
_BEATS_PER_LEASE = 3
_log = logging.getLogger(__name__)


class ZeusBSOCallback(Callback):
    """Train with the batch size that reaches the target metric at the lowest cost.

    Each `fit` is one recurrence of a job: the callback asks the service for a batch size, sets it
    before any dataloader is built, measures energy and time from the start of training to each
    validation end, reports them, and stops the run when the target is reached or the service gives
    the batch size up. The cost is `eta_knob * energy + (1 - eta_knob) * max_power * time`, in
    joules, where `max_power` is the sum of the devices' highest power limits in watts.

    It logs `zeus/batch_size` (see `batch_size_scope`), `zeus/energy_j`, `zeus/time_s`,
    `zeus/power_w` (mean since training began) and `zeus/cost` at each validation end.

    Args:
        url: The service, such as `http://127.0.0.1:8765`. Default: `$ZEUS_SERVER_URL`.
        target_metric: Value of `monitor` that ends the training.
        monitor: A metric the module logs in validation.
        mode: `max` if the metric is to rise to the target, `min` if it is to fall to it.
        job_id: The same id makes the runs one recurring job: 1 to 255 letters, digits and `._:-`.
            Default: `$ZEUS_JOB_ID`, else the module's class name.
        batch_sizes: Batch sizes to choose from. Default: `default_batch_size` times 2**-3 to 2**3.
        default_batch_size: Batch size to start from. Default: what the datamodule or module (or its
            hparams) has as `batch_size`, times devices and accumulated batches if that is global.
        batch_size_scope: What `batch_sizes`, `default_batch_size` and the service speak of.
            `global`: what one optimizer step sees, over all devices and accumulated batches; each
            device trains with an equal share. `per_device`: what `batch_size` of the program says,
            passed through; one optimizer step sees it times devices and accumulated batches.
        max_epochs: Epochs after which the batch size has failed. Default: the Trainer's.
        eta_knob: Weight of energy against time in the cost, in [0, 1].
        beta_knob: A run expected to cost more than this times what the best batch size costs is
            stopped. None: never.
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
        on_failure: `raise`: a batch size given up is a `ZeusTrialFailed` as `fit` ends. `stop`:
            `fit` just ends, with a warning, and `outcome` tells.

    Attributes:
        client: The service that is asked, None before `fit`.

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

    `fit(ckpt_path=...)` goes on with the trial of the checkpoint, its batch size, joules and
    seconds. What was spent after the checkpoint and lost with it does not count.

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
        batch_size_scope: sizes.Scope = "global",
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
        on_failure: Literal["raise", "stop"] = "raise",
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
            batch_size_scope=batch_size_scope,
            max_epochs=max_epochs,
            eta_knob=eta_knob,
            beta_knob=beta_knob,
            num_pruning_rounds=num_pruning_rounds,
            window_size=window_size,
            policy=policy,
            seed=seed,
            lr_scaling=lr_scaling,
        )
        if on_failure not in ("raise", "stop"):
            raise ZeusConfigError(f"on_failure is {on_failure!r}; it must be 'raise' or 'stop'")
        self.monitor = monitor
        self.client: BSOClient | None = None
        self._url = url
        self._token = token
        self._lr_scaling = lr_scaling
        self._meter_choice = meter
        self._strict = strict
        self._on_failure = on_failure
        self._scope = batch_size_scope
        self._mailbox = Mailbox()  # made here: the parent of spawned ranks calls no hook before
        self._injection: Injection | None = None
        self._meter: RunMeter | None = None
        self._heartbeat: Heartbeat | None = None
        self._forget_last_fit()

    @property
    def job(self) -> JobSpec | None:
        """What the last `fit` registered."""
        return self._known.job if self._known else None

    @property
    def trial(self) -> TrialStart | None:
        """The last `fit`'s trial: batch size, and why. None when there was none."""
        return self._known.trial if self._known else None

    @property
    def report(self) -> Report | None:
        """The trial's last report: epoch, seconds, joules, metric. None before the first."""
        return self._known.report if self._known else None

    @property
    def outcome(self) -> Outcome | None:
        """How the trial ended; None while it runs.

        `lost`: the service went away and did not come back before the end.
        """
        return self._known.outcome if self._known else None

    @property
    def cost(self) -> float | None:
        """The cost at `report`, in joules."""
        return self._known.cost if self._known else None

    @override
    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if stage == "fit":
            # a fit before this one, whose end another callback has broken off
            self._end_from_here(trainer, "errored", "its fit broke off")
            self._release()
            self._forget_last_fit()
            self._tell(trainer)
            if not trainer.fast_dev_run:  # type: ignore[attr-defined]
                self._start(trainer, pl_module)

    @override
    def on_load_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        if self._injection is not None:  # nor in validate, test and predict
            self._resume(trainer, checkpoint)

    @override
    def on_save_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        if self._injection is not None:
            self._injection.clean(checkpoint)

    @override
    def state_dict(self) -> dict[str, Any]:
        """The trial, to go on with it; `on_load_checkpoint` takes it up."""
        recurrence = self._recurrence
        if recurrence is None or recurrence.trial is None or recurrence.outcome == "withdrawn":
            return {}
        spent = self._meter.spent_by_now() if self._meter is not None else recurrence.spent
        unsent = self._open.unsent if self._open is not None else ()
        return SavedTrial(recurrence, spent, unsent).to_json()

    @override
    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._open is not None:
            on_every_rank(trainer.strategy, lambda: self._begin(trainer, pl_module))

    @override
    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._open is None:
            return
        if trainer.sanity_checking:
            on_rank_zero(trainer.strategy, lambda: monitored(trainer, self.monitor))
        else:
            # at the validation that ends an epoch, Lightning has not counted that epoch yet
            self._measure_and_report(trainer, trainer.current_epoch + int(trainer.is_last_batch))

    @override
    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._open is not None and not trainer.enable_validation:
            self._measure_and_report(trainer, trainer.current_epoch + 1)
        if self.cost is not None:
            pl_module.log(
                "zeus/cost",
                self.cost,
                prog_bar=True,
                logger=False,
                rank_zero_only=True,  # without a collective
                sync_dist=True,  # does nothing more, but keeps Lightning from recommending it
            )

    @override
    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._open is not None:
            self._close(trainer)

    @override
    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        try:
            self._hear_of_children()
            self._end_from_here(trainer, outcome_of(exception), text_of(exception))
        finally:
            self._release()

    @override
    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if stage == "fit":
            self._end_from_here(trainer, "withdrawn", "fit ended before training began")
            self._release()
            if self._error is not None:  # this late, so that checkpoints and other ends are done
                self._fail(self._error)

    # --- the start -------------------------------------------------------------------------------

    def _forget_last_fit(self) -> None:
        self._recurrence: Recurrence | None = None
        self._open: Trial | None = None  # the trial, from its start to its end, on every rank
        self._error: ZeusError | None = None  # to be raised when fit is over

    def _start(self, trainer: Trainer, module: LightningModule) -> None:
        strategy = trainer.strategy
        self.client = client = on_every_rank(strategy, self._connect)
        self._meter = meter = RunMeter(self._meter_choice, strategy)
        job = on_every_rank(strategy, lambda: self._arguments.job(trainer, module, meter))
        self._recurrence = Recurrence(job=job, estimated=meter.is_estimate)
        self._injection = Injection(module)
        try:
            start = on_rank_zero(strategy, lambda: start_trial(client, job))
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
            batch_size = start.batch_size
            self._hold(trainer, Trial(client, start), start)
            rank_zero_info(
                f"zeus: trial {start.trial_number} of job {job.job_id!r} trains with batch size "
                f"{batch_size} ({start.why}): {start.reason}"
            )
        self._inject(trainer, batch_size)

    def _connect(self) -> BSOClient:
        url = self._url or os.environ.get("ZEUS_SERVER_URL")
        if not url:
            raise ZeusConfigError("no service given; pass url=... or set $ZEUS_SERVER_URL")
        return BSOClient(url, self._token)

    def _hold(self, trainer: Trainer, trial: Trial, start: TrialStart) -> None:
        """Have a trial, and keep it alive, until `_let_go`."""
        assert self._recurrence is not None
        self._let_go()
        self._open, self._recurrence.trial = trial, start
        if trainer.is_global_zero:
            self._heartbeat = Heartbeat(
                trial.beat,
                lambda: trainer.state.status == "running",
                start.lease_s / _BEATS_PER_LEASE,
            )
        self._tell(trainer)

    def _let_go(self) -> Trial | None:
        trial, self._open = self._open, None
        if self._heartbeat is not None:
            self._heartbeat.stop()
        self._heartbeat = None
        return trial

    def _inject(self, trainer: Trainer, batch_size: int) -> None:
        assert self._injection is not None
        assert self._recurrence is not None
        self._injection.undo()
        self._injection.set_batch_size(batch_size // sizes.share(trainer, self._scope))
        if self._lr_scaling is not None:
            default = self._recurrence.job.default_batch_size
            self._injection.scale_lr(self._lr_scaling, batch_size, default)

    def _begin(self, trainer: Trainer, module: LightningModule) -> None:
        """Check what is about to train, and start measuring."""
        assert self._meter is not None
        assert self._recurrence is not None
        assert self._recurrence.trial is not None
        batch_size = self._recurrence.trial.batch_size // sizes.share(trainer, self._scope)
        if not sizes.check_loaders(trainer, module, batch_size):
            rank_zero_warn(
                f"zeus: the train_dataloader() of {sizes.data_owner(trainer, module)} does not "
                f"tell its batch size; make sure that it follows batch_size={batch_size}"
            )
        self._meter.begin()

    # --- a resumed run ---------------------------------------------------------------------------

    def _resume(self, trainer: Trainer, checkpoint: dict[str, Any]) -> None:
        """Go on with a checkpoint's trial, in the place of the one that `setup` has started."""
        state = checkpoint["callbacks"].get(self.state_key)
        if state:
            self._take_up(trainer, SavedTrial.from_json(state))
        # Lightning's tuners load a checkpoint too: one of their own, from before the first step
        elif checkpoint.get("global_step", 0) > 0:
            rank_zero_warn(
                "zeus: the checkpoint holds no trial of this callback, so the run cannot be "
                "measured from its start; it trains on the program's own batch size, without a "
                "trial"
            )
            self._end_from_here(trainer, "withdrawn", "resumed from a checkpoint without a trial")
            self._release()
        # FSDP and its kin load after configure_optimizers, which may have built a dataloader
        trainer.fit_loop._combined_loader = None

    def _take_up(self, trainer: Trainer, saved: SavedTrial) -> None:
        assert self._meter is not None
        assert self._recurrence is not None
        job, started = self._recurrence.job, self._open
        if saved.is_of(self._recurrence):
            return
        sizes.check_shares([saved.batch_size], sizes.share(trainer, self._scope))
        if started is None:
            rank_zero_warn(f"zeus: resumed without the service, and so without {saved}")
        else:
            client = self._connect()
            heard = on_rank_zero(
                trainer.strategy, lambda: take_up(client, job, saved, in_place_of=started)
            )
            self._recurrence = replace(saved.recurrence, job=job, outcome=None, reason="")
            self._meter.go_on_from(saved.spent)
            self._hold(trainer, saved.open(client, heard), saved.trial)
            rank_zero_info(f"zeus: goes on with {saved} and batch size {saved.batch_size}")
        self._inject(trainer, saved.batch_size)

    # --- a validation end ------------------------------------------------------------------------

    def _measure_and_report(self, trainer: Trainer, epoch: int) -> None:
        assert self._meter is not None
        trial, spent = self._open, self._meter.spent()
        assert trial is not None
        assert self._recurrence is not None
        # duck-typed: ZeusPowerLimitCallback's module imports this one
        callbacks = trainer.callbacks  # type: ignore[attr-defined]
        self._recurrence.profiled |= any(getattr(each, "profiled", False) for each in callbacks)
        answer = on_rank_zero(
            trainer.strategy,
            lambda: trial.report(
                epoch, spent.time_s, spent.energy_j, monitored(trainer, self.monitor)
            ),
        )
        self._follow(trainer, answer)
        self._log(trainer)

    def _follow(self, trainer: Trainer, answer: Answer) -> None:
        """Do, on every rank, what rank zero has heard or decided."""
        recurrence = self._recurrence
        assert recurrence is not None
        if answer.report is not None:
            recurrence.report = answer.report
        if answer.outcome is None:
            if answer.report is not None and recurrence.reached:
                trainer.should_stop = True  # the report is kept: the service is away
        else:
            self._let_go()
            recurrence.outcome, recurrence.reason = answer.outcome, answer.reason
            if answer.outcome == "converged" or answer.outcome in _FAILURES:
                trainer.should_stop = True
            if answer.outcome in _FAILURES:
                self._error = ZeusTrialFailed(recurrence.failure())
            say = rank_zero_warn if answer.outcome in ("interrupted", "lost") else rank_zero_info
            say(f"zeus: {recurrence.ending()}")
        self._tell(trainer)

    def _log(self, trainer: Trainer) -> None:
        assert self._recurrence is not None
        figures = self._recurrence.figures()
        for logger in trainer.loggers if figures else ():
            # the step Lightning gives to the metrics of this validation
            logger.log_metrics(figures, step=trainer.fit_loop.epoch_loop._batches_that_stepped)

    # --- the end ---------------------------------------------------------------------------------

    def _close(self, trainer: Trainer) -> None:
        """End a trial that is still open when training ends."""
        trial, recurrence = self._open, self._recurrence
        assert trial is not None
        assert recurrence is not None
        outcome, reason = at_train_end(trainer, recurrence)
        if outcome == "withdrawn":
            self._error = ZeusConfigError(
                f"training ended after {trainer.current_epoch} epochs without a validation, so "
                f"{self.monitor!r} was never seen and nothing was learned; let validation run, or "
                "monitor a metric of training with limit_val_batches=0"
            )
        self._follow(trainer, on_rank_zero(trainer.strategy, lambda: trial.end(outcome, reason)))

    def _end_from_here(self, trainer: Trainer, outcome: Outcome, reason: str) -> None:
        """End a trial still open from whichever rank this is: one short call, never an error."""
        trial, recurrence = self._let_go(), self._recurrence
        if trial is None or recurrence is None:
            return
        stands = outcome
        with suppress(Exception):  # whatever ended the run matters more; the lease covers the rest
            stands = trial.end_at_once(outcome, reason)
        if stands != outcome:
            reason = f"another rank has told so; here it was {reason}"
        recurrence.outcome, recurrence.reason = stands, reason
        self._tell(trainer)
        if outcome == "out_of_memory":
            _log.warning("zeus: %s", recurrence.failure())  # on the rank it struck
        else:
            rank_zero_info(f"zeus: {recurrence.ending()}")

    def _fail(self, error: ZeusError) -> None:
        if self._on_failure == "raise" or not isinstance(error, ZeusTrialFailed):
            raise error
        rank_zero_warn(f"zeus: {error.message}")

    def _release(self) -> None:
        """Leave the program as it was, ready for another fit."""
        with suppress(Exception):
            if self._injection is not None:
                self._injection.undo()
            if self._meter is not None:
                self._meter.close()
        self._injection = self._meter = None

    # --- processes that this one starts ----------------------------------------------------------

    @property
    def _known(self) -> Recurrence | None:
        """What is known of the last fit, also when processes that this one started ran it."""
        told = None if self._meter is not None else self._mailbox.read()
        return Recurrence.from_json(told) if told else self._recurrence

    def _tell(self, trainer: Trainer) -> None:
        """Tell the process that started this one."""
        if trainer.is_global_zero:
            self._mailbox.write(self._recurrence.to_json() if self._recurrence else {})

    def _hear_of_children(self) -> None:
        """Take over the trial of processes that have died: no hook of theirs could end it."""
        known = self._known
        if self._meter is None and known is not None and known.trial and known.outcome is None:
            with suppress(ZeusError):
                self._open, self._recurrence = Trial(self._connect(), known.trial), known
