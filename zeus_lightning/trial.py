"""`Trial`: one trial, as the process that runs it sees it."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from uuid import uuid4

from lightning.pytorch.utilities import rank_zero_warn

from zeus_lightning.client import BSOClient
from zeus_lightning.errors import ZeusServiceError, ZeusServiceUnavailable
from zeus_lightning.messages import MAX_METRIC, Decision, JobSpec, Outcome, Report, TrialStart

_AWAY_S = 2.0  # how long to try again, at each validation, a service that has gone away
_BEAT_S = 5.0
_LAST_CALL_S = 1.0  # after an exception; Lightning kills a ddp run 5 s after a rank's death


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What every rank is to follow after one of them has spoken with the service.

    Args:
        report: What was reported, None when nothing was.
        outcome: How the trial ended, None while it goes on.
        reason: Why, in one sentence.
    """

    report: Report | None = None
    outcome: Outcome | None = None
    reason: str = ""


class Trial:
    """A trial's reports, sent in order and kept while the service is away, and its end.

    Nothing here raises because of the service: a healthy run is never stopped by it.

    Args:
        client: The service.
        start: What the service answered to the start.
        sequence: Of the last report made, 0 before any.
        unsent: Reports the service has not heard, in order.
    """

    def __init__(
        self,
        client: BSOClient,
        start: TrialStart,
        sequence: int = 0,
        unsent: Iterable[Report] = (),
    ) -> None:
        self._client = client
        self._job_id = start.job_id
        self._number = start.trial_number
        self._sequence = sequence
        self._unsent: deque[Report] = deque(unsent)
        self._away = False
        self._warned = False

    @property
    def unsent(self) -> tuple[Report, ...]:
        """Reports the service has not heard, in order."""
        return tuple(self._unsent)

    def report(self, epoch: int, time_s: float, energy_j: float, metric: float) -> Answer:
        """Report a validation's figures, after those still kept.

        Args:
            epoch: Epochs completed.
            time_s: Seconds since training began.
            energy_j: Joules since training began, over all devices; not finite: a meter failed.
            metric: The monitored metric.
        """
        if not math.isfinite(energy_j):
            return self.abandon("an energy meter failed")
        if not abs(metric) <= MAX_METRIC:  # nor is NaN
            return self.end("diverged", f"the metric is {metric} after {epoch} epochs")
        self._sequence += 1
        report = Report(
            sequence=self._sequence,
            epoch=epoch,
            time_s=float(time_s),
            energy_j=float(energy_j),
            metric=metric,
        )
        self._unsent.append(report)
        try:
            decision = self._flush(timeout_s=_AWAY_S if self._away else None)
        except ZeusServiceError as error:
            over = error.fields.get("code") == "trial_finished"
            return self.abandon(error.message, report, tell=not over)
        return Answer(report=report) if decision is None else decision

    def end(self, outcome: Outcome, reason: str) -> Answer:
        """End the trial; reports still kept go first, and what the service says to them stands."""
        try:
            answer = self._flush()
            if answer is not None and answer.outcome is not None:
                return answer
            if not self._unsent:
                self._client.end_trial(self._job_id, self._number, outcome, reason)
                return Answer(outcome=outcome, reason=reason)
        except ZeusServiceError as error:
            rank_zero_warn(f"zeus: the trial's end ({outcome}) was not told: {error.message}")
        if outcome == "diverged":  # that needs nobody's confirmation
            return Answer(outcome=outcome, reason=reason)
        reason = f"{reason}, and the service could not be told ({len(self._unsent)} reports kept)"
        return Answer(outcome="lost", reason=reason)

    def end_at_once(self, outcome: Outcome, reason: str) -> Outcome:
        """End the trial in one call of a second at most, whatever comes of it.

        Returns:
            The outcome that stands: another rank's, where that one was faster.
        """
        try:
            self._client.end_trial(self._job_id, self._number, outcome, reason, _LAST_CALL_S)
        except ZeusServiceError as error:  # the lease covers the rest
            stands: Outcome = error.fields.get("outcome", outcome)
            return stands
        return outcome

    def abandon(self, reason: str, report: Report | None = None, *, tell: bool = True) -> Answer:
        """Go on training without the service: what is measured from here on teaches nothing.

        Args:
            reason: Why, for the warning.
            report: What was to be reported.
            tell: Whether the service is to be told that the trial has ended.
        """
        rank_zero_warn(f"zeus: {reason}; training goes on, but this run teaches nothing")
        self._unsent.clear()
        if tell:
            self.end("errored", reason)
        return Answer(report=report, outcome="errored", reason=reason)

    def beat(self) -> None:
        """Tell the service that the trial is alive, in one short call.

        Raises:
            ZeusServiceError: It could not be told, or has ended the trial.
        """
        self._client.heartbeat(self._job_id, self._number, timeout_s=_BEAT_S)

    def _flush(self, timeout_s: float | None = None) -> Answer | None:
        """Send the reports kept, oldest first, until the service says stop.

        Args:
            timeout_s: Try each once, and for no longer than this; None: with retries.

        Returns:
            The answer to the last one sent; None when one could not be sent or none was kept.

        Raises:
            ZeusServiceError: The service refused a report.
        """
        answer = None
        while self._unsent:
            report = self._unsent[0]
            try:
                decision = self._client.report(self._job_id, self._number, report, timeout_s)
            except ZeusServiceError as error:
                if not _may_pass(error):
                    raise
                self._away = True
                self._warn_once(error)
                return None
            self._away = False
            self._unsent.popleft()
            answer = _answer(decision, report)
            if decision.decision == "stop":
                self._unsent.clear()
        return answer

    def _warn_once(self, error: ZeusServiceError) -> None:
        if not self._warned:
            rank_zero_warn(f"zeus: {error.message}; training goes on, reports are kept for later")
        self._warned = True


def start_trial(client: BSOClient, job: JobSpec) -> TrialStart:
    """Register a job and start a trial of it; one that is started but not heard of is withdrawn.

    Raises:
        ZeusServiceError: There is no trial; `ZeusServiceUnavailable` when nobody answers.
    """
    client.register_job(job)
    key = uuid4().hex
    try:
        return client.start_trial(job.job_id, key)
    except (ZeusServiceUnavailable, KeyboardInterrupt):
        # It may have been started all the same: the key names it.
        with suppress(ZeusServiceError):
            start = client.start_trial(job.job_id, key, timeout_s=_LAST_CALL_S)
            Trial(client, start).end_at_once("withdrawn", "its start was not heard")
        raise


def _answer(decision: Decision, report: Report) -> Answer:
    return Answer(report=report, outcome=decision.outcome, reason=decision.reason)


def _may_pass(error: ZeusServiceError) -> bool:
    """Whether it is worth sending again: anything but a refusal by the service itself."""
    refused = "code" in error.fields and error.fields["status"] < 500
    return isinstance(error, ZeusServiceUnavailable) or not refused
