"""`OpenTrial`: the trial of a run, from its start or resumption to its end, on one rank."""

from __future__ import annotations

from collections.abc import Callable

from lightning.pytorch.strategies import Strategy
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn

from zeus_lightning.client import BSOClient
from zeus_lightning.errors import ZeusTrialFailed
from zeus_lightning.messages import FAILED, JobSpec, Outcome
from zeus_lightning.meters import Reading
from zeus_lightning.ranks.distributed import on_rank_zero
from zeus_lightning.ranks.run_meter import RunMeter
from zeus_lightning.trial.checkpoint import SavedTrial, resume_trial
from zeus_lightning.trial.earlier_trials import earlier_failures, warn_of_target
from zeus_lightning.trial.heartbeat import start_heartbeat
from zeus_lightning.trial.outcome_file import write_outcome
from zeus_lightning.trial.record import TrialRecord
from zeus_lightning.trial.reporter import Answer, TrialReporter, start_trial


class OpenTrial:
    """The trial of a run, which a Trainer's fit and an author's own loop keep alike.

    All ranks call each method together, except `saved`, `forget` and `close`.

    Args:
        ranks: The run's ranks.
        is_running: Whether the run continues; when it does not, heartbeats end. A thread keeps it.

    Attributes:
        on_change: Called on rank zero with the record, each time that it has changed.
        record: The trial, also after its end; None if there is none.
        reporter: Reports to the service, from the trial's start to its end; else None.
        failure: The error to end the run with, once the batch size has failed.
    """

    def __init__(self, ranks: Strategy, is_running: Callable[[], bool] = lambda: True) -> None:
        self._ranks = ranks
        self._is_running = is_running
        self.on_change: Callable[[TrialRecord], None] = lambda _: None
        self._stop_heartbeat: Callable[[], None] = lambda: None
        self.record: TrialRecord | None = None
        self.reporter: TrialReporter | None = None
        self.failure: ZeusTrialFailed | None = None

    def start(self, client: BSOClient, job: JobSpec, meter: RunMeter, share: int) -> TrialRecord:
        """Start a trial of a job.

        Args:
            client: The service.
            job: The job; the record has its registered values.
            meter: The run's meter.
            share: What the batch size is divided by.
        """
        record = on_rank_zero(self._ranks, lambda: start_trial(client, job, meter.hardware, share))
        self._open(TrialReporter(client, record))
        trial = record.trial
        rank_zero_info(
            f"zeus: trial {trial.trial_number} of job {trial.job_id!r} trains with batch size "
            f"{trial.batch_size} ({trial.why}): {trial.reason}"
        )
        return record

    def resume(self, client: BSOClient, job: JobSpec, meter: RunMeter, saved: SavedTrial) -> None:
        """Resume a checkpoint's trial, in place of one that `start` has started."""
        started = self.reporter
        registered, received = on_rank_zero(
            self._ranks,
            lambda: resume_trial(client, job, meter.hardware, saved, instead_of=started),
        )
        meter.resume_from(saved.spent)
        self._open(saved.reopen(client, registered, received))
        rank_zero_info(f"zeus: resuming {saved} with batch size {saved.record.trial.batch_size}")

    def _open(self, reporter: TrialReporter) -> None:
        """Switch reporting to this trial and start its heartbeats."""
        self._stop_reporting()
        self.reporter, self.record = reporter, reporter.record
        if self._ranks.is_global_zero:
            self._stop_heartbeat = start_heartbeat(
                reporter.send_heartbeat, self._is_running, self.record.trial.lease_s
            )
        self._publish(self.record)

    def report(self, send: Callable[[TrialReporter], Answer | None]) -> bool:
        """Report a validation with `send`, on rank zero, and apply the service's decision.

        Returns:
            Whether there was a report to send; if not, `send` returns None.
        """
        reporter = self.reporter
        assert reporter is not None
        record, is_first = reporter.record, reporter.record.report is None
        answer = on_rank_zero(self._ranks, lambda: send(reporter))
        if answer is None:
            return False
        self._apply(answer, reporter)
        if is_first:
            warn_of_target(self._ranks, reporter.client, record)
        return True

    def end(self, outcome: Outcome, reason: str) -> None:
        """End the trial, if it is still open."""
        if (reporter := self.reporter) is not None:
            answer = on_rank_zero(self._ranks, lambda: reporter.end(outcome, reason))
            self._apply(answer, reporter)

    def _apply(self, answer: Answer, reporter: TrialReporter) -> None:
        """Record an answer, and end reporting if the trial has ended."""
        record = reporter.record
        if answer.report is not None:
            record.reported(answer.report)
        if answer.outcome is not None:
            self._stop_reporting()
            record.outcome, record.reason = answer.outcome, answer.reason
        self._publish(record)
        if record.outcome in FAILED:
            earlier = on_rank_zero(self._ranks, lambda: earlier_failures(reporter.client, record))
            self.failure = ZeusTrialFailed(record.failure(earlier))
        if record.outcome is not None:
            log = rank_zero_warn if record.outcome in ("interrupted", "lost") else rank_zero_info
            log(f"zeus: {record.summary()}")

    @property
    def should_stop(self) -> bool:
        """Whether training shall end: the target is reached, or the batch size has failed."""
        if self.record is None:
            return False
        if self.record.outcome is None:  # the service may be unavailable, and will decide later
            return self.record.target_reached
        return self.record.outcome in ("converged", *FAILED)

    def saved(self, spent: Reading) -> SavedTrial:
        """The trial as it is now, for a checkpoint; there must be one."""
        assert self.record is not None
        unsent = () if self.reporter is None else tuple(self.reporter.unsent)
        return SavedTrial(self.record, spent, unsent)

    def forget(self) -> None:
        """Have no trial any more, without ending the one that was open."""
        self._stop_reporting()
        self.record = None

    def close(self, outcome: Outcome, reason: str) -> None:
        """End the trial, if it is still open, from this rank alone; never raises.

        It takes a second at most.
        """
        reporter = self.reporter
        self._stop_reporting()
        if reporter is not None:
            reporter.end_at_once(outcome, reason)
            self._publish(reporter.record)

    def _stop_reporting(self) -> None:
        self._stop_heartbeat()
        self.reporter = None

    def _publish(self, record: TrialRecord) -> None:
        """Write the record for the program that launched the run, and share it."""
        if self._ranks.is_global_zero:
            self.on_change(record)
            write_outcome(record)
