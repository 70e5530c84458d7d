"""`Run`: one run of a recurring job, from its start or resumption to its end."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from lightning.pytorch.strategies import Strategy
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn

from zeus_lightning.client import BSOClient
from zeus_lightning.errors import ZeusServiceError, ZeusServiceUnavailable, ZeusTrialFailed
from zeus_lightning.messages import FAILED, MAX_METRIC, Decision, JobSpec, Outcome, Report
from zeus_lightning.meters import EnergyMeter, Reading
from zeus_lightning.program.batch_size import check_shares
from zeus_lightning.run.ranks import local_rank_of, on_rank_zero
from zeus_lightning.run.record import TrialRecord, epochs_text
from zeus_lightning.run.run_meter import RunMeter
from zeus_lightning.run.trial_calls import end_at_once, start_heartbeat, start_trial

_AWAY_TIMEOUT_S = 2.0  # of each call while the service is unavailable
_HEARTBEAT_TIMEOUT_S = 5.0


class Run:
    """One run of a recurring job, as one rank sees it; a Trainer's fit or a loop of one's own.

    All ranks call each method together, except `checkpoint` and `abort`. Only rank zero
    talks to the service. The service never stops a healthy run: while it is unavailable, reports
    are queued and sent later. The target is checked in this process, so a run without a trial also
    ends when it is reached.

    Args:
        ranks: The run's ranks.
        client: The service.
        job: The job that the arguments and the program make.
        meter: The run's energy meter, as for `open_meter`; whoever makes a run closes its `meter`.
        share: What a global batch size is divided by, such as the number of devices.
        require_service: Whether a service that is unavailable at the start is an error.
        outcome_files: Where each node's local rank zero writes the trial's record.

    Attributes:
        job: With its registered values once a trial has started, and the trial's target.
        record: The trial, also after its end; None if there is none.
        is_open: Whether the trial is running, so that reports go to the service.
        is_without_service: Whether the service was unavailable as the run started or resumed.
        failure: The error to end the run with, once the batch size has failed.
        meter: What the run takes, over all ranks.
    """

    def __init__(
        self,
        ranks: Strategy,
        client: BSOClient,
        job: JobSpec,
        meter: str | EnergyMeter,
        *,
        share: int,
        require_service: bool,
        outcome_files: Sequence[Path] = (),
    ) -> None:
        self._ranks, self._client = ranks, client
        self._share, self._require_service = share, require_service
        self._outcome_files = outcome_files
        self._stop_heartbeat: Callable[[], None] = lambda: None
        self._sequence = 0  # of the last report made
        self._is_unavailable = False  # the service, as far as this rank knows
        self._has_stopped = False  # training was told to stop
        self._beginning = ""  # which trial this run trains, until that is logged
        self.job = job
        self.record: TrialRecord | None = None
        self.is_open = False
        self.is_without_service = False
        self.failure: ZeusTrialFailed | None = None
        self.meter = RunMeter(meter, ranks)
        is_estimate = self.meter.hardware.estimated
        verb, why = "estimating" if is_estimate else "measuring", ""
        if is_estimate and meter == "auto":
            why = "; no energy counter: see `zeus-lightning doctor`"
        rank_zero_info(f"zeus: {verb} the energy of {self.meter.scope()}{why}")

    def start(self) -> int:
        """Start a trial.

        Returns:
            The batch size to train with; without the service, unless it is required, the default.
        """
        try:
            record = on_rank_zero(
                self._ranks,
                lambda: start_trial(self._client, self.job, self.meter.hardware, self._share),
            )
        except ZeusServiceUnavailable as error:
            if self._require_service:
                raise ZeusServiceUnavailable(
                    f"{error.message}; check the service, or pass "
                    "require_service=False to train without it",
                    error.fields,
                ) from None
            self.is_without_service = True
            size = self.job.default_batch_size
            text = f"zeus: {error.message}; training without it, with batch size {size}"
            if "higher_is_better" in self.job.omitted and self.job.target_metric is not None:
                text += "; pass mode=... to stop at the target"
            rank_zero_warn(text)
            return size
        trial = record.trial
        self._open(record)
        self._beginning = (
            f"{record} trains with batch size {trial.batch_size} ({trial.why}): {trial.reason}"
        )
        return trial.batch_size

    def resume(self, saved: TrialRecord) -> int:
        """Resume a checkpoint's trial, in place of one that `start` has started.

        Returns:
            The batch size to train with.

        Raises:
            ZeusConfigError: The trial cannot be resumed.
        """
        size = saved.trial.batch_size
        check_shares([size], saved.job.divisor(self._share))
        try:
            if not self.is_without_service:
                job, received = on_rank_zero(self._ranks, lambda: self._resume_trial(saved))
                self.meter.resume_from(saved.spent)
                self._open(saved.reopened(job, received), received)
                self._beginning = f"resuming {saved} with batch size {size}"
                return size
        except ZeusServiceUnavailable:
            if self._require_service:
                raise
            self.is_without_service = True
        self.forget()
        rank_zero_warn(
            f"zeus: training from the checkpoint without the service, so {saved} gets no reports"
        )
        return size

    def log_beginning(self) -> None:
        """Log which trial this run trains, once it is known whether a checkpoint resumes one."""
        if self._beginning and self.is_open:
            rank_zero_info(f"zeus: {self._beginning}")
        self._beginning = ""

    def report(self, epochs: int, read_metric: Callable[[], float | None]) -> Decision | None:
        """Measure, report a validation, and apply the service's decision.

        Args:
            epochs: Epochs completed.
            read_metric: Returns the monitored metric; rank zero's counts. None: there is none yet.

        Returns:
            What follows, in which `stop` is also set by a target that is reached without the
            service; None if there was no metric.
        """
        record = self.record
        if record is None or not self.is_open:
            metric = on_rank_zero(self._ranks, read_metric)
            if metric is None:
                return None
            decision = Decision()
            if record is not None:
                outcome, reason = record.outcome, record.reason
                decision = Decision(outcome=outcome, cost=record.cost_j, reason=reason)
        else:
            spent, limits_w = self.meter.spent(), self.meter.power_limits_w()
            answer = on_rank_zero(
                self._ranks, lambda: self._send(epochs, spent, read_metric(), limits_w)
            )
            if answer is None:
                return None
            metric, report, decision = answer
            if report is not None:
                record.cost_j = report.cost(record.job, record.hardware)
                record.report, record.spent = report, spent
            self._apply(decision)
            decision = replace(decision, cost=record.cost_j)
        is_alone = self.record is None and not self._has_stopped
        if is_alone and self.job.is_reached_by(metric):
            rank_zero_info(f"zeus: the target is reached ({self.job.monitor} {metric:.6g})")
        self._has_stopped |= decision.stop or self.job.is_reached_by(metric)
        return replace(decision, decision="stop") if self._has_stopped else decision

    def end(self, outcome: Outcome, reason: str) -> None:
        """End the trial, if it is still open."""
        if self.is_open:
            self._apply(on_rank_zero(self._ranks, lambda: self._end(outcome, reason)))

    def checkpoint(self) -> TrialRecord | None:
        """The trial as it is now, for a checkpoint; None if there is none."""
        return None if self.record is None else self.record.saved(self.meter.spent_by_now())

    def forget(self) -> None:
        """Have no trial any more, without ending the one that was open."""
        self._stop_reporting()
        self.record = None
        if local_rank_of(self._ranks) == 0:
            for path in self._outcome_files:
                TrialRecord.remove(path)

    def abort(self, outcome: Outcome, reason: str) -> None:
        """End the trial, if it is still open, from this rank alone, as after an exception.

        It takes two seconds at most, and never raises an error of the service. If the trial can be
        resumed, the record gets what was spent by now.
        """
        was_open, record = self.is_open, self.record
        self._stop_reporting()
        if record is None:
            return
        try:
            if was_open:
                end_at_once(self._client, record, outcome, reason)
                self._write(record, from_any_rank=outcome in FAILED)
        finally:
            if record.is_resumable:
                with suppress(Exception):
                    self.record = record.saved(self.meter.spent_at_end())

    def _open(self, record: TrialRecord, received: int = 0) -> None:
        """Switch reporting to this trial and start its heartbeats."""
        self._stop_reporting()
        # a trial that is resumed takes the place of the one just started
        self.job, self.record, self.is_open = record.job, record, True
        self._sequence = max([received, *(report.sequence for report in record.unsent)])
        if self._ranks.is_global_zero:
            trial = record.trial
            client = self._client.without_retries(_HEARTBEAT_TIMEOUT_S)
            self._stop_heartbeat = start_heartbeat(lambda: client.heartbeat(trial), trial.lease_s)
        self._write(record)

    def _apply(self, decision: Decision) -> None:
        """Record a decision, and end reporting if the trial has ended."""
        record = self.record
        assert record is not None
        if decision.outcome is not None:
            self._stop_reporting()
            record.outcome, record.reason = decision.outcome, decision.reason
            if record.report is not None:
                rank_zero_info(f"zeus: {record.measured()}")
        self._write(record)
        if record.outcome in FAILED:
            self.failure = ZeusTrialFailed(record.failure())  # logged as the run ends
        elif record.outcome is not None:
            is_warning = record.asks_for_action or record.outcome in ("interrupted", "lost")
            (rank_zero_warn if is_warning else rank_zero_info)(f"zeus: {record.summary()}")

    def _stop_reporting(self) -> None:
        self._stop_heartbeat()
        self.is_open = False

    def _write(self, record: TrialRecord, *, from_any_rank: bool = False) -> None:
        """Write the record for the program that launched the run."""
        if from_any_rank or local_rank_of(self._ranks) == 0:
            for path in self._outcome_files:
                record.write(path)

    # What follows is for rank zero alone.

    def _resume_trial(self, saved: TrialRecord) -> tuple[JobSpec, int]:
        """Withdraw the trial that this run has started, and check that a saved one can be resumed.

        Returns:
            The job with its registered values, and the number of reports the service has received.
        """
        job = self.job
        if self.record is None or not self.is_open:
            job = self._client.register_job(job)
        else:
            end_at_once(self._client, self.record, "withdrawn", f"the run resumes {saved}")
        status = self._client.trial_status(job.job_id, saved.trial.trial_number)
        saved.check_resumable(job, self.meter.hardware, status)
        job = replace(job, target_metric=saved.trial.target_metric)
        return job, 0 if status is None else status.reports

    def _send(
        self,
        epochs: int,
        spent: Reading,
        metric: float | None,
        limits_w: tuple[float, float] | None,
    ) -> tuple[float, Report | None, Decision] | None:
        """Send a report, after those not yet sent; return the metric, the report and what follows.

        None if there is no metric to report.
        """
        record = self.record
        if record is None or metric is None:
            return None
        if not math.isfinite(spent.energy_j):
            return metric, None, self._give_up("an energy meter failed", end=True)
        if not abs(metric) <= MAX_METRIC:  # also false for NaN
            reason = f"the metric is {metric} after {epochs_text(epochs)}"
            return metric, None, self._end("diverged", reason)
        if record.trial.trial_number == 1 and not self._sequence and self.job.is_reached_by(metric):
            rank_zero_warn(
                "zeus: the first validation of the job's first run already reaches the target: "
                f"{self.job.monitor} is {metric:.6g}; check target_metric="
                f"{self.job.target_metric:g} and mode={self.job.mode!r}"
            )
        self._sequence += 1
        limit_w, default_limit_w = limits_w or (None, None)
        report = Report(
            sequence=self._sequence,
            epoch=epochs,
            time_s=float(spent.time_s),
            energy_j=float(spent.energy_j),
            metric=metric,
            power_limit_w=limit_w,
            default_power_limit_w=default_limit_w,
            host_load=self.meter.host_load(),
        )
        record.unsent.append(report)
        away = self._client.without_retries(_AWAY_TIMEOUT_S)
        try:
            decision = self._send_unsent(record, away if self._is_unavailable else self._client)
        except ZeusServiceError as error:
            gone = error.fields.get("code") in ("trial_finished", "other_generation", "not_found")
            return metric, report, self._give_up(error.message, end=not gone)
        return metric, report, decision or Decision()

    def _end(self, outcome: Outcome, reason: str) -> Decision:
        """End the trial, unless the service decides so when it gets the reports not yet sent."""
        record = self.record
        assert record is not None
        end = Decision(decision="stop", outcome=outcome, reason=reason)
        answered = ""
        try:
            decision = self._send_unsent(record, self._client)
            if decision is not None and decision.outcome is not None:
                return decision
            if not record.unsent:
                ended = self._client.end_trial(record.trial, outcome, reason)
                return replace(end, outcome=ended.outcome, reason=ended.reason)
        except ZeusServiceError as error:
            rank_zero_warn(
                f"zeus: the trial's end ({outcome}) could not be reported: {error.message}"
            )
            if _refused(error):
                answered = "but the service refused this outcome"
        if outcome == "diverged":  # certain without the service
            return end
        unreached = f"and the service could not be reached (reports not sent: {len(record.unsent)})"
        return replace(end, outcome="lost", reason=f"{reason}, {answered or unreached}")

    def _give_up(self, reason: str, *, end: bool) -> Decision:
        """Stop reporting while training continues, so that nothing is learned from this run."""
        rank_zero_warn(f"zeus: training continues without reports: {reason}")
        assert self.record is not None
        self.record.unsent.clear()
        if end:
            self._end("errored", reason)
        return Decision(outcome="errored", reason=reason)

    def _send_unsent(self, record: TrialRecord, client: BSOClient) -> Decision | None:
        """Send the reports not yet sent, oldest first, until one cannot be sent or ends the trial.

        Returns the decision on the last report, if the service has received it.
        """
        decision = None
        while record.unsent:
            try:
                decision = client.report(record.trial, record.unsent[0])
            except ZeusServiceError as error:
                if _refused(error):
                    raise  # sending it again would not help
                if not self._is_unavailable:
                    later = "training continues, and reports will be sent later"
                    rank_zero_warn(f"zeus: {error.message}; {later}")
                self._is_unavailable = True
                return None
            if self._is_unavailable:
                rank_zero_warn(
                    f"zeus: the batch size service at {client.url} is reachable again; sending "
                    f"the queued reports ({len(record.unsent)})"
                )
            self._is_unavailable = False
            record.unsent.pop(0)
            if decision.stop:
                record.unsent.clear()
        return decision


def _refused(error: ZeusServiceError) -> bool:
    """Whether the service itself, not a proxy before it, refused the request for good."""
    return "code" in error.fields and error.fields["status"] < 500
