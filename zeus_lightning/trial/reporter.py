"""`TrialReporter`: send a trial's reports, its heartbeats and its end to the service."""

from __future__ import annotations

import logging
import math
from contextlib import suppress
from dataclasses import dataclass, field
from uuid import uuid4

from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn

from zeus_lightning.client import BSOClient
from zeus_lightning.errors import ZeusServiceError, ZeusServiceUnavailable
from zeus_lightning.messages import FAILED, MAX_METRIC, Hardware, JobSpec, Outcome, Report
from zeus_lightning.meters import Reading
from zeus_lightning.trial.outcome_file import write_outcome
from zeus_lightning.trial.record import TrialRecord

_log = logging.getLogger(__name__)

_AWAY_TIMEOUT_S = 2.0  # of each call while the service is unavailable
_HEARTBEAT_TIMEOUT_S = 5.0
_LAST_TIMEOUT_S = 1.0  # after an exception; Lightning kills a ddp run 5 s after a rank's death


@dataclass(frozen=True, kw_only=True)
class Answer:
    """The result of rank zero's call to the service: a report was made, or the trial ended."""

    report: Report | None = None
    outcome: Outcome | None = None
    reason: str = ""


@dataclass
class TrialReporter:
    """Sends a trial's reports in order.

    While the service is unavailable, they are queued and sent later. The service never stops a
    healthy run: only `send_heartbeat` raises its errors.

    Args:
        client: The service.
        record: The trial.
        sequence: Sequence number of the last report made; 0 before any.
        unsent: Reports that the service has not received, in order.
    """

    client: BSOClient
    record: TrialRecord
    sequence: int = 0
    unsent: list[Report] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._unavailable = False

    def report(
        self,
        epoch: int,
        spent: Reading,
        metric: float,
        power_limits_w: tuple[float, float] | None = None,
    ) -> Answer:
        """Report a validation, following the reports not yet sent.

        Args:
            epoch: Epochs completed.
            spent: Since the start of training, over all devices; its joules are not finite if a
                meter failed.
            metric: The monitored metric.
            power_limits_w: The GPUs' power limit in force, and their default one, if known.
        """
        if not math.isfinite(spent.energy_j):
            return self._give_up("an energy meter failed", end=True)
        if not abs(metric) <= MAX_METRIC:  # also false for NaN
            return self.end("diverged", f"the metric is {metric} after {epoch} epochs")
        self.sequence += 1
        limit_w, default_limit_w = power_limits_w or (None, None)
        report = Report(
            sequence=self.sequence,
            epoch=epoch,
            time_s=float(spent.time_s),
            energy_j=float(spent.energy_j),
            metric=metric,
            power_limit_w=limit_w,
            default_power_limit_w=default_limit_w,
        )
        self.unsent.append(report)
        try:
            client = (
                self.client.without_retries(_AWAY_TIMEOUT_S) if self._unavailable else self.client
            )
            answer = self._send_reports(client)
        except ZeusServiceError as error:
            finished = error.fields.get("code") in ("trial_finished", "other_generation")
            return self._give_up(error.message, report, end=not finished)
        return answer or Answer(report=report)

    def end(self, outcome: Outcome, reason: str) -> Answer:
        """End the trial, unless the service decides so when it gets the reports not yet sent."""
        answered = ""
        try:
            answer = self._send_reports(self.client)
            if answer is not None and answer.outcome is not None:
                return answer
            if not self.unsent:
                self.client.end_trial(self.record.trial, outcome, reason)
                return Answer(outcome=outcome, reason=reason)
        except ZeusServiceError as error:
            text = f"the trial's end ({outcome}) could not be reported: {error.message}"
            rank_zero_warn(f"zeus: {text}")
            if _refused(error):
                answered = f"but the service answered: {error.message}"
        if outcome == "diverged":  # certain without the service
            return Answer(outcome=outcome, reason=reason)
        unreached = f"and the service could not be reached ({len(self.unsent)} reports not sent)"
        return Answer(outcome="lost", reason=f"{reason}, {answered or unreached}")

    def end_at_once(self, outcome: Outcome, reason: str) -> None:
        """End the trial as `end_quietly` does, write the outcome file and log how it ended."""
        self.end_quietly(outcome, reason)
        write_outcome(self.record)
        if outcome in FAILED:
            _log.warning("zeus: %s", self.record.failure())  # on the rank that had the error
        else:
            rank_zero_info(f"zeus: {self.record.summary()}")

    def end_quietly(self, outcome: Outcome, reason: str) -> None:
        """End the trial from any rank, in one call of a second at most; never raises.

        The record gets the outcome that stands: another rank's, if that rank was faster.
        """
        stands = outcome
        try:
            self.client.without_retries(_LAST_TIMEOUT_S).end_trial(
                self.record.trial, outcome, reason
            )
        except ZeusServiceError as error:
            stands = error.fields.get("outcome", outcome)
        except Exception:  # noqa: BLE001 - what ended the run matters more; the lease will expire
            pass
        if stands != outcome:
            reason = f"another rank reported this outcome first; on this rank: {reason}"
        self.record.outcome, self.record.reason = stands, reason

    def send_heartbeat(self) -> None:
        """Extend the trial's lease, in one call of five seconds at most."""
        self.client.without_retries(_HEARTBEAT_TIMEOUT_S).heartbeat(self.record.trial)

    def _give_up(self, reason: str, report: Report | None = None, *, end: bool) -> Answer:
        """Stop reporting while training continues, so that nothing is learned from this run."""
        nothing = "the service will learn nothing from this run"
        rank_zero_warn(f"zeus: {reason}; training continues, but {nothing}")
        self.unsent.clear()
        if end:
            self.end("errored", reason)
        return Answer(report=report, outcome="errored", reason=reason)

    def _send_reports(self, client: BSOClient) -> Answer | None:
        """Send the reports not yet sent, oldest first, until one cannot be sent or is the last.

        Returns the answer to the last report, if the service has received it.
        """
        answer = None
        while self.unsent:
            report = self.unsent[0]
            try:
                decision = client.report(self.record.trial, report)
            except ZeusServiceError as error:
                if _refused(error):
                    raise  # sending it again would not help
                if not self._unavailable:
                    later = "training continues, and reports are sent later"
                    rank_zero_warn(f"zeus: {error.message}; {later}")
                self._unavailable = True
                return None
            if self._unavailable:
                rank_zero_warn(
                    f"zeus: the batch size service at {client.url} answers again; the reports that "
                    f"waited for it are sent ({len(self.unsent)})"
                )
            self._unavailable = False
            self.unsent.pop(0)
            answer = Answer(report=report, outcome=decision.outcome, reason=decision.reason)
            if decision.decision == "stop":
                self.unsent.clear()
        return answer


def _refused(error: ZeusServiceError) -> bool:
    """Whether the service itself, not a proxy before it, refused the request for good."""
    return "code" in error.fields and error.fields["status"] < 500


def start_trial(
    client: BSOClient, job: JobSpec, hardware: Hardware, multiple_of: int
) -> TrialRecord:
    """Register a job and start a trial of it; withdraw one whose start was not answered.

    Args:
        client: The service.
        job: The job; the record has its registered values.
        hardware: What the trial uses.
        multiple_of: What its batch size is divided by.
    """
    job = client.register_job(job)
    key = uuid4().hex
    try:
        trial = client.start_trial(job.job_id, key, hardware, multiple_of)
    except (ZeusServiceUnavailable, KeyboardInterrupt):
        # the service may have started it all the same: the key names it
        with suppress(ZeusServiceError):
            once = client.without_retries(_LAST_TIMEOUT_S)
            trial = once.start_trial(job.job_id, key, hardware, multiple_of)
            reason = "the run never received the response to its start request"
            once.end_trial(trial, "withdrawn", reason)
        raise
    return TrialRecord(job=job, trial=trial, hardware=hardware)
