"""`Fit`: one `fit` of a program, trained as one trial of a job."""

from __future__ import annotations

from contextlib import closing, suppress
from dataclasses import dataclass, replace

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn

from zeus_lightning.client import BSOClient
from zeus_lightning.errors import (
    ZeusConfigError,
    ZeusError,
    ZeusServiceUnavailable,
    ZeusTrialFailed,
)
from zeus_lightning.messages import Outcome
from zeus_lightning.meters import EnergyMeter
from zeus_lightning.program import batch_size as sizes
from zeus_lightning.program import dataloaders
from zeus_lightning.program.hyperparameters import log_hyperparameters
from zeus_lightning.program.injection import Injection
from zeus_lightning.program.internals import logging_step, starts_ranks_itself
from zeus_lightning.program.job import JobArguments
from zeus_lightning.program.lr_scaling import ScaledSteps, has_rate_finder, lr_factor
from zeus_lightning.program.metric import look_after_sanity_check, monitored
from zeus_lightning.program.trained_modules import is_trained, remember
from zeus_lightning.ranks.at_exit import leave_at_exit
from zeus_lightning.ranks.distributed import gather, on_every_rank, on_rank_zero
from zeus_lightning.ranks.run_meter import RunMeter
from zeus_lightning.trial.checkpoint import RESUMABLE, SavedTrial
from zeus_lightning.trial.open_trial import OpenTrial
from zeus_lightning.trial.outcome import outcome_at_train_end
from zeus_lightning.trial.reporter import Answer, TrialReporter
from zeus_lightning.trial.shared_record import SharedRecord


@dataclass
class Fit:
    """One `fit` of a program, from `setup` to `teardown` or an exception, on one rank.

    All ranks call each method together, except `saved_trial` and `close`.

    Attributes:
        strict: Whether a service that cannot be reached at the start is an error.
        shared: Where the process that started this one reads the trial's record.
        job: The job that the arguments and the program make.
        injection: What is set on the program.
        trial: The trial, if there is one.
        reports_after_epoch: Whether the first validation has not logged the metric.
    """

    trainer: Trainer
    module: LightningModule
    arguments: JobArguments
    client: BSOClient
    meter: str | EnergyMeter
    shared: SharedRecord
    strict: bool
    pue: float = 1.0
    allow_mixed_devices: bool = False

    def __post_init__(self) -> None:
        self.injection = Injection(self.module)
        self._mistake: ZeusConfigError | None = None  # of the program, found as training ended
        self._strategy = self.trainer.strategy
        state = self.trainer.state  # a thread must not keep the Trainer, and so the module
        self.trial = OpenTrial(self._strategy, is_running=lambda: state.status == "running")
        if starts_ranks_itself(self.trainer):
            self.trial.on_change = self.shared.write
        self._away = False  # the service, at the start
        self._continues = False  # an earlier fit, and no checkpoint
        self._previous: SavedTrial | None = None  # of that fit
        self.reports_after_epoch = False
        self._has_reported = False  # this fit, not only an earlier one of its trial
        self._batch_size: int | None = None  # set on the program; global
        self._steps = ScaledSteps(self.trainer)
        self._attribute = self.arguments.batch_size_attribute
        leave_at_exit()
        self._meter = RunMeter(
            self.meter, self._strategy, self.pue, allow_mixed=self.allow_mixed_devices
        )
        rank_zero_info(f"zeus: {self._meter.scope()}")
        try:
            self.job = on_every_rank(
                self._strategy, lambda: self.arguments.job(self.trainer, self.module)
            )
        except BaseException:
            self._meter.close()
            raise
        self._own_batch_size = self.job.default_batch_size  # of the program, with its learning rate

    def has_trained_module(self) -> bool:
        """Whether an earlier fit of this job has trained the module, which is as it left it."""
        return on_rank_zero(self._strategy, lambda: is_trained(self.module, self.job.job_id))

    def start(self) -> None:
        """Start a trial and set its batch size; unless `strict`, the default one if that fails."""
        try:
            record = self.trial.start(self.client, self.job, self._meter, self._share())
            self.job, batch_size = record.job, record.trial.batch_size
        except ZeusServiceUnavailable as error:
            if self.strict:
                raise ZeusServiceUnavailable(
                    f"{error.message}; start one with `zeus-service serve`, correct the URL, or "
                    "pass strict=False to train without it",
                    error.fields,
                ) from None
            self._away = True
            batch_size = self.job.default_batch_size
            rank_zero_warn(f"zeus: {error.message}; training without it on batch size {batch_size}")
        self._inject(batch_size)

    def start_again(self, previous: SavedTrial | None) -> None:
        """Start no trial: this continues an earlier fit, unless the Trainer loads a checkpoint.

        Args:
            previous: The trial of that fit, if it was of the same Trainer and module.
        """
        self._continues = True
        if previous is not None and previous.is_resumable:
            self._previous = previous
            self._inject(previous.record.trial.batch_size)

    def _continue(self) -> None:
        """Resume the trial of the fit before this one, or train without a trial."""
        self._continues = False
        why = "its trial has ended, or it was of another module or callback object"
        if self._previous is not None:
            try:
                self.resume(self._previous)
            except ZeusError as error:
                why = error.message
        if self.trial.reporter is None:
            earlier = "an earlier one of its Trainer, with its epochs"
            if self.trainer.global_step == 0:
                earlier = "an earlier one of its module, with its weights"
                why = "it was of another Trainer"
            rank_zero_warn(
                f"zeus: this fit() continues {earlier}, so it cannot be measured from its start, "
                f"and cannot resume its trial ({why}); it trains without a trial. For a new one, "
                "make a new Trainer and module"
            )

    def _inject(self, batch_size: int) -> None:
        self.injection.undo()
        self.injection.set_batch_size(self._attribute, batch_size // self._share())
        self._batch_size = batch_size
        rule = self.arguments.lr_scaling
        if rule is not None and not has_rate_finder(self.trainer):
            self._steps.factor = lr_factor(rule, batch_size, self._own_batch_size)

    def scale_learning_rates(self) -> None:
        """Scale the learning rates with the batch size, and log what is trained with."""
        if self._batch_size is None:
            return
        if self.arguments.lr_scaling is not None:
            on_every_rank(self._strategy, self._steps.start)
        if self._steps.factor != 1:
            rank_zero_info(
                f"zeus: each optimizer step multiplies the learning rates by "
                f"{self._steps.factor:.6g}; LearningRateMonitor shows the program's own rates"
            )
        self._log_hyperparameters(self._batch_size)

    def _log_hyperparameters(self, batch_size: int) -> None:
        log_hyperparameters(self.trainer, self.module, batch_size, self._steps.factor)

    def _share(self) -> int:
        return sizes.share(self.trainer, self.arguments.batch_size_scope)

    def start_measuring(self) -> None:
        """Check that the dataloaders have the batch size, and start the meter."""
        if self._continues:
            self._continue()
        if (reporter := self.trial.reporter) is not None:
            batch_size = reporter.record.trial.batch_size // self._share()
            on_every_rank(self._strategy, lambda: self._start_measuring(batch_size))

    def _start_measuring(self, batch_size: int) -> None:
        dataloaders.check_loaders(self.trainer, self.module, self._attribute, batch_size)
        self._meter.begin()

    def saved_trial(self) -> SavedTrial | None:
        """The trial as it is now, for a checkpoint; None if there is none."""
        if self.trial.record is None:
            return self._previous if self._continues else None
        return self.trial.saved(self._meter.spent_by_now())

    def resume(self, saved: SavedTrial) -> None:
        """Resume a checkpoint's trial, in place of one that `start` has started."""
        record = self.trial.record
        if record is not None and saved.record.trial == record.trial:
            return  # Lightning's tuners restore what they have saved at their start
        away = self._away
        batch_size = saved.record.trial.batch_size
        sizes.check_shares([batch_size], self._share())
        try:
            if not away:
                self.trial.resume(self.client, self.job, self._meter, saved)
        except ZeusServiceUnavailable:
            if self.strict or saved is self._previous:
                raise
            away = True
            self.trial.forget()
            self.shared.clear()
        if away:
            rank_zero_warn(
                f"zeus: resuming from the checkpoint without the service; {saved} is not continued"
            )
        self._continues = False
        self._inject(batch_size)
        if self._strategy.restore_checkpoint_after_setup:
            self._log_hyperparameters(batch_size)

    def look_for_monitor(self) -> None:
        """Log a line if the sanity check has not logged the monitored metric."""
        if self.trial.reporter is not None:
            look_after_sanity_check(self.trainer, self.arguments.monitor)

    def report_validation(self, epoch: int) -> None:
        """Report a validation, unless the metric is one of training, which comes later."""
        if not self.reports_after_epoch:
            self.report(epoch, may_wait=True)

    def report(self, epoch: int, *, may_wait: bool = False) -> None:
        """Measure and report, with the epochs completed, and apply the service's decision.

        With `may_wait`, a metric that this fit has not logged is waited for until the epoch's end.
        """
        if self.trial.reporter is None:
            return
        spent, limits_w = self._meter.spent(), self._meter.power_limits_w()
        record, monitor = self.trial.reporter.record, self.arguments.monitor
        # ZeusPowerLimitCallback, by its attribute: its module imports that of ZeusBSOCallback
        callbacks = self.trainer.callbacks  # type: ignore[attr-defined]
        record.profiled |= any(getattr(each, "profiled", False) for each in callbacks)

        def send(reporter: TrialReporter) -> Answer | None:
            if may_wait and not self._has_reported and monitor not in self.trainer.callback_metrics:
                return None
            metric = monitored(self.trainer, monitor, self.job.target_metric)
            return reporter.report(epoch, spent, metric, limits_w)

        if not self.trial.report(send):
            self.reports_after_epoch = True
            return
        self._has_reported = True
        self.trainer.should_stop |= self.trial.should_stop
        metrics = record.metrics()
        if metrics:
            metrics |= self._meter.apart(spent)
        for logger in self.trainer.loggers if metrics else ():
            logger.log_metrics(metrics, step=logging_step(self.trainer))

    def end(self) -> None:
        """End a trial that is still open when training ends."""
        if (reporter := self.trial.reporter) is None:
            return
        outcome, reason = outcome_at_train_end(self.trainer, reporter.record)
        if outcome == "errored":
            self._mistake = ZeusConfigError(
                f"{reason}, so {self.arguments.monitor!r} was never seen and nothing was learned; "
                "let validation run, or monitor a metric of training with limit_val_batches=0"
            )
        self.trial.end(outcome, reason)

    @property
    def error(self) -> ZeusConfigError | ZeusTrialFailed | None:
        """What the callback raises as `fit` ends."""
        return self.trial.failure or self._mistake

    @property
    def has_had_batches(self) -> bool:
        """Whether training has had a batch, also before the checkpoint that it resumes."""
        return self.trainer.fit_loop.epoch_loop.batch_progress.total.ready > 0

    def end_without_batches(self) -> None:
        """End a trial whose dataloaders had no batch, for which Lightning just trains nothing.

        That is a verdict against the batch size, if there are fewer samples in the data.

        Raises:
            ZeusConfigError: There are none, or it is unknown how many: it may be the batch size.
        """
        if (reporter := self.trial.reporter) is None:
            return
        size = reporter.record.trial.batch_size // self._share()
        found = gather(self._strategy, dataloaders.too_few_samples(self.trainer, size))
        few = next(filter(None, found), None)
        reason = (
            f"the train_dataloader() of {sizes.data_owner(self.trainer, self.module)} has no batch "
            "(drop_last=True drops one that is not full), so nothing was trained: "
            + (few or f"there is no data, or less than a batch of {size}")
        )
        outcome: Outcome = "not_converged" if few else "errored"
        self.trial.end(outcome, reason)
        self.trainer.should_stop |= self.trial.should_stop
        if few is None:
            raise ZeusConfigError(reason)

    def too_few_batches(self) -> str | None:
        """Why Lightning has refused epochs as short as this batch size makes them; None if not.

        With the default batch size, that is an error of the program.
        """
        record = self.trial.record
        if record is None or self.has_had_batches:
            return None
        if record.trial.batch_size == self.job.default_batch_size:
            return None
        with suppress(Exception):  # of the user's code: the error at hand must not be replaced
            return dataloaders.too_few_batches(self.trainer)
        return None

    def remember_module(self) -> None:
        """Remember that this fit has trained the module, if it ended in order."""
        with suppress(Exception):
            if self.trainer.global_step:
                remember(self.module, self.job.job_id)

    def close(self, outcome: Outcome, reason: str) -> SavedTrial | None:
        """End a trial that is still open, from this rank alone, and restore the program.

        It takes two seconds at most, and raises no error of the service, the meter or the program.

        Returns:
            The trial as it ended, for checkpoints that are saved after this; None if there is none.
        """
        saved = None if self.trial.record is None else self.trial.saved(self.trial.record.spent)
        try:
            self.trial.close(outcome, reason)
        finally:
            self._steps.stop()
            with suppress(Exception), closing(self._meter):
                if saved is not None and saved.record.outcome in RESUMABLE:
                    saved = replace(saved, spent=self._meter.spent_at_end())
                self.injection.undo()
        return saved
