"""`Fit`: one `fit` of a Trainer, as a run of a recurring job."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn

from zeus_lightning.client import BSOClient
from zeus_lightning.errors import (
    ZeusConfigError,
    ZeusServiceError,
    ZeusTrialFailed,
)
from zeus_lightning.messages import FAILED, JobSpec, Outcome
from zeus_lightning.meters import EnergyMeter
from zeus_lightning.program import batch_size as sizes
from zeus_lightning.program import dataloaders
from zeus_lightning.program.injection import Injection
from zeus_lightning.program.internals import step_of_logs
from zeus_lightning.program.lr_scaling import (
    has_rate_finder,
    lr_factor,
    scale_optimizers,
    too_short_schedule,
)
from zeus_lightning.run.gloo_at_exit import destroy_gloo_at_exit
from zeus_lightning.run.job import READ_FROM_PROGRAM, JobArguments, no_max_epochs
from zeus_lightning.run.outcomes import outcome_at_train_end, outcome_of, reason_of
from zeus_lightning.run.ranks import on_every_rank, on_rank_zero
from zeus_lightning.run.record import TrialRecord
from zeus_lightning.run.run import Run

_trained: WeakKeyDictionary[LightningModule, set[str]] = WeakKeyDictionary()
"""The jobs whose fits have trained a module in this process."""


class Fit:
    """One `fit` of a program on one rank: its `Run`, and what is set on the program.

    All ranks call each method together, except `outcome_and_reason` and `close`.

    Attributes:
        run: The run; its trial, if it has one.
        injection: What is set on the program.
        step_of_logs: Returns the step under which Lightning logs a metric now.
        lacks_monitor: Whether neither the program nor the registered job names a metric.
        reports_after_epoch: Whether the first validation did not log the metric.
        value_before: The metric's value as the latest validation began; None if there was none.
        has_reported: Whether this fit, not only an earlier one of its trial, has reported.
    """

    def __init__(
        self,
        trainer: Trainer,
        module: LightningModule,
        arguments: JobArguments,
        client: BSOClient,
        meter: str | EnergyMeter,
        *,
        require_service: bool,
        outcome_files: Sequence[Path],
    ) -> None:
        self.trainer, self.module = trainer, module
        self._arguments = arguments
        self._strategy = trainer.strategy
        self.injection = Injection(module)
        self.step_of_logs = step_of_logs(trainer)
        self.reports_after_epoch = False
        self.value_before: Any = None
        self.lacks_monitor = False
        self.has_reported = False
        self._mistake: ZeusConfigError | None = None  # of the program, found as training ended
        self._continues = False  # an earlier fit, so without a trial, unless a checkpoint is loaded
        self._has_seen_batch = False  # of this fit
        self._misfit: str | None = None  # why the program cannot train with this batch size
        self._lr_factor = 1.0
        self._attribute = arguments.batch_arg_name or sizes.size_attribute(trainer)
        self._kept_loaders = dataloaders.kept_loaders(trainer, module)
        destroy_gloo_at_exit()
        job = on_every_rank(self._strategy, lambda: arguments.job(trainer, module))
        self._share = sizes.share(trainer, arguments.batch_size_scope)
        self._own_batch_size = job.default_batch_size  # of the program, with its learning rate
        self.run = Run(
            self._strategy,
            client,
            job,
            meter,
            share=self._share,
            require_service=require_service,
            outcome_files=outcome_files,
        )

    def has_trained_module(self) -> bool:
        """Whether an earlier fit of this job has trained the module."""
        return self.run.job.job_id in _trained.get(self.module, ())

    def start(self) -> None:
        """Start a trial, and set its batch size on the program.

        If no metric is known to monitor, there is none: the first validation shows which there are.
        """
        own = self.run.job
        try:
            batch_size = self.run.start()
            if self.run.is_without_service and self.run.job.max_epochs < 1:
                raise no_max_epochs(self.trainer)  # no registered job can be asked
            self._inject(batch_size, self.run.job)
        except ZeusServiceError as error:
            missing = error.fields.get("errors", {})
            if "max_epochs" in missing:
                raise no_max_epochs(self.trainer) from None
            self.lacks_monitor = "monitor" in missing
            if not self.lacks_monitor:
                raise
        own = replace(own, default_batch_size=self._own_batch_size)
        kept = [
            f"{name} {getattr(self.run.job, name)} (not {getattr(own, name)})"
            for name, field in READ_FROM_PROGRAM.items()
            if field in own.suggested
            and name != "batch_sizes"
            and getattr(self.run.job, name) != getattr(own, name)
        ]
        if kept:
            rank_zero_info(f"zeus: job {own.job_id!r} keeps its registered {', '.join(kept)}")

    def continue_earlier_fit(self) -> None:
        """Start no trial: training does not start from scratch, unless it loads a checkpoint."""
        self._continues = True

    def resume(self, saved: TrialRecord) -> None:
        """Resume a checkpoint's trial, in place of one that `start` has started."""
        if self.run.record is not None and saved.trial == self.run.record.trial:
            return  # Lightning's tuners restore what they have saved at their start
        self._inject(self.run.resume(saved), saved.job)
        self._continues = False

    def resume_without_trial(self) -> None:
        """Withdraw the trial that `start` has started; train with the program's own batch size.

        The checkpoint that is loaded has no trial.
        """
        rank_zero_warn(
            "zeus: the checkpoint was saved without a trial, so this run uses the program's own "
            "batch size and is not measured; to start a trial, call fit() without ckpt_path"
        )
        self.run.abort("withdrawn", "resumed from a checkpoint without a trial")
        self.run.forget()
        self.injection.undo()
        self._lr_factor, self._continues = 1.0, False

    def _inject(self, batch_size: int, job: JobSpec) -> None:
        if job.divisor(self._share) != self._share:  # as only the registered job says
            if self._arguments.default_batch_size is None:
                self._own_batch_size //= self._share
            self._share = 1
        self.injection.undo()
        self.injection.set_batch_size(self._attribute, batch_size // self._share)
        rule = self._arguments.lr_scaling
        if rule is not None and not has_rate_finder(self.trainer):
            self._lr_factor = lr_factor(rule, batch_size, self._own_batch_size)

    def scale_learning_rates(self) -> None:
        """Scale the learning rates with the batch size.

        Lightning has built the optimizers; if it resumes a checkpoint, it will load their states,
        with the rates that were scaled for the same batch size.
        """
        if self._lr_factor != 1:
            on_every_rank(self._strategy, lambda: scale_optimizers(self.trainer, self._lr_factor))
            rank_zero_info(f"zeus: multiplied the learning rates by {self._lr_factor:.6g}")

    def start_measuring(self) -> None:
        """Check that dataloaders and schedulers fit the batch size, and start the meter.

        Raises:
            ZeusConfigError: A dataloader has another batch size, or a schedule ends before a run of
                this one would.
        """
        if self._continues:
            rank_zero_warn(
                "zeus: this Trainer or module was already used for training, so this fit is not "
                "measured; for a new trial, create a new Trainer and module"
            )
        self.run.log_beginning()
        record = self.run.record
        if record is None or not self.run.is_open:
            return
        on_every_rank(self._strategy, self._start_measuring)
        size = record.trial.batch_size
        short = on_rank_zero(self._strategy, lambda: too_short_schedule(self.trainer, size))
        if short is not None and size != record.job.default_batch_size:
            self._misfit = short
            remedy = "create it with total_steps=trainer.estimated_stepping_batches"
            raise ZeusConfigError(f"{short}; {remedy}")

    def _start_measuring(self) -> None:
        self.check_loaders()
        if self.run.record is not None and len(self.run.record.job.batch_sizes) > 1:
            kept = self._kept_loaders
            dataloaders.warn_of_kept(self.trainer, self.module, self._attribute, kept)
        self.run.meter.begin()

    def check_loaders(self, batch: Any = None) -> None:
        """Check the dataloaders' batch size, as training starts or an epoch's first batch comes."""
        record = self.run.record
        if record is None or not self.run.is_open:
            return
        if batch is not None:
            reloads = self.trainer.reload_dataloaders_every_n_epochs  # type: ignore[attr-defined]
            if self._has_seen_batch and not reloads:
                return
            self._has_seen_batch = True
        size, own = record.trial.batch_size // self._share, self._own_batch_size // self._share
        dataloaders.check_loaders(self.trainer, self.module, self._attribute, size, own, batch)

    def end(self) -> None:
        """End a trial that is still open when training ends."""
        record = self.run.record
        if record is None or not self.run.is_open:
            return
        outcome, reason = outcome_at_train_end(self.trainer, record)
        if outcome in ("completed", "not_converged") and self._is_short(record.job.max_epochs):
            outcome = "interrupted"
            reason = f"the Trainer's max_epochs is {self.trainer.max_epochs}, but the job's is "
            reason += (
                f"{record.job.max_epochs}; pass max_epochs={record.job.max_epochs} to the Trainer"
            )
        if outcome == "errored":
            self._mistake = ZeusConfigError(
                f"{reason}, so {self.run.job.monitor!r} was never logged and nothing was learned; "
                "make sure that the Trainer validates"
            )
        self.run.end(outcome, reason)

    def _is_short(self, max_epochs: int) -> bool:
        """Whether the Trainer has ended before the job's epochs were used up, as a trial run."""
        most = self.trainer.max_epochs or 0
        return self._arguments.max_epochs is None and (
            0 < most < max_epochs and self.trainer.current_epoch >= most
        )

    @property
    def error(self) -> ZeusConfigError | ZeusTrialFailed | None:
        """What the callback raises as `fit` ends."""
        return self.run.failure or self._mistake

    @property
    def has_had_batches(self) -> bool:
        """Whether training has had a batch, also before the checkpoint that it resumes."""
        return self.trainer.fit_loop.epoch_loop.batch_progress.total.ready > 0

    def end_without_batches(self) -> None:
        """End a trial whose dataloaders had no batch, for which Lightning just trains nothing.

        Raises:
            ZeusConfigError: The default batch size has none.
        """
        record = self.run.record
        if record is None or not self.run.is_open:
            return
        reason = (
            f"the {sizes.loader_origin(self.trainer, self.module)} has no full batch of "
            f"{record.trial.batch_size // self._share} samples, so nothing was trained"
        )
        has_failed = record.trial.batch_size != record.job.default_batch_size
        self.run.end("not_converged" if has_failed else "errored", reason)
        self.trainer.should_stop |= record.outcome in FAILED
        if not has_failed:
            raise ZeusConfigError(f"{reason}; lower the batch size, or pass drop_last=False")

    def outcome_and_reason(self, exception: BaseException) -> tuple[Outcome, str]:
        """The outcome of a trial that an exception ends, and why."""
        outcome = outcome_of(exception)
        if outcome in ("errored", "withdrawn") and (misfit := self._why_misfit()):
            return "not_converged", misfit
        return outcome, reason_of(exception)

    def _why_misfit(self) -> str | None:
        """Why the program cannot train with this batch size, unless it is the default.

        Its schedule is too short for so many steps, or its epochs for so few batches.
        """
        record = self.run.record
        if record is None or self.has_had_batches:
            return None
        if record.trial.batch_size == self.run.job.default_batch_size:
            return None
        if self._misfit is not None:
            return self._misfit
        with suppress(Exception):  # of the user's code: the error at hand must not be replaced
            return dataloaders.too_few_batches(self.trainer)
        return None

    def warn_of_unsaved_model(self) -> None:
        """Warn if the target was reached before the Trainer's first checkpoint was due."""
        record = self.run.record
        savers = [
            each
            for each in self.trainer.callbacks  # type: ignore[attr-defined]
            if type(each).__name__ == "ModelCheckpoint" and (each.save_top_k or each.save_last)
        ]
        if record is None or record.outcome != "converged" or not savers:
            return
        if not any(each.best_model_path or each.last_model_path for each in savers):
            rank_zero_warn(
                "zeus: the run reached its target before ModelCheckpoint saved a checkpoint, so "
                "the model is lost when this process ends; pass save_last=True to ModelCheckpoint"
            )

    def remember_module(self) -> None:
        """Remember that this fit has trained the module, if it ended in order."""
        if self.trainer.global_step:
            _trained.setdefault(self.module, set()).add(self.run.job.job_id)

    def close(self, outcome: Outcome, reason: str) -> TrialRecord | None:
        """End a trial that is still open, from this rank alone, and restore the program.

        It takes two seconds at most, and raises no error of the service, the meter or the program.

        Returns:
            The trial as it ended, for checkpoints that are saved after this; None if there is none.
        """
        try:
            self.run.abort(outcome, reason)
        finally:
            with suppress(Exception), closing(self.run.meter):
                self.injection.undo()
        return self.run.record
