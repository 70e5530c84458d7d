"""Calls around a trial: its start, its heartbeats, and its end after an exception."""

import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from threading import Event, Thread
from uuid import uuid4

from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn

from zeus_lightning.client import NO_BATCH_SIZE_LEFT, BSOClient, connect
from zeus_lightning.environment import is_control, outcome_files
from zeus_lightning.errors import ZeusError, ZeusServiceError
from zeus_lightning.messages import FAILED, Hardware, JobSpec, Outcome, TrialStart
from zeus_lightning.run.record import TrialRecord

_log = logging.getLogger(__name__)

LAST_TIMEOUT_S = 1.0
"""Of a call after an exception; Lightning kills a ddp run 5 s after a rank's death."""


def start_trial(client: BSOClient, job: JobSpec, hardware: Hardware, share: int) -> TrialRecord:
    """Register a job and start a trial, from rank zero alone.

    The user's training does not stop because every batch size has failed: the run then warns, and
    trains with the default batch size as a control trial. If that reaches the target, the job goes
    on with this batch size.

    Args:
        client: The service.
        job: The job that the arguments and the program make.
        hardware: What the trial trains on.
        share: What a global batch size is divided by, such as the number of devices.
    """
    job = client.register_job(job)
    divisor = job.divisor(share)

    def start(*, control: bool) -> TrialStart:
        return client.start_trial(job.job_id, uuid4().hex, hardware, divisor, control=control)

    try:
        trial = start(control=is_control())
    except ZeusServiceError as error:
        if error.fields.get("code") != NO_BATCH_SIZE_LEFT:
            raise
        rank_zero_warn(
            f"zeus: job {job.job_id!r} has no batch size left to try, so this run trains with "
            f"the default, {job.default_batch_size}, without early stopping; if the target is out "
            "of reach, use another job_id"
        )
        trial = start(control=True)
    job = replace(job, target_metric=trial.target_metric)
    return TrialRecord(job=job, trial=trial, hardware=hardware)


def start_heartbeat(send: Callable[[], object], lease_s: float) -> Callable[[], None]:
    """Call `send` three times per lease in a daemon thread, until it is stopped.

    Errors of `send` are ignored: the next heartbeat makes up for one that fails, and a trial whose
    lease has expired is revived by its next report.

    Args:
        send: Sends one heartbeat to the service, in a bounded time.
        lease_s: Seconds without a heartbeat or a report after which the trial is lost.

    Returns:
        A function that stops the heartbeats, without waiting for one that is being sent.
    """
    stopped = Event()

    def run() -> None:
        while not stopped.wait(lease_s / 3):
            with suppress(Exception):
                send()

    Thread(target=run, name="zeus-heartbeat", daemon=True).start()
    return stopped.set


def end_at_once(client: BSOClient, record: TrialRecord, outcome: Outcome, reason: str) -> None:
    """End a trial from any rank, in one call of a second at most, and log it; never raises.

    The record gets the outcome that counts: another rank's, if that rank was faster.
    """
    counts = outcome
    try:
        client.without_retries(LAST_TIMEOUT_S).end_trial(record.trial, outcome, reason)
    except ZeusServiceError as error:
        counts = error.fields.get("outcome", outcome)
    except Exception:  # noqa: BLE001 - what ended the run matters more; the lease will expire
        pass
    if counts != outcome:
        reason = f"another rank reported this outcome first; on this rank: {reason}"
    record.outcome, record.reason = counts, reason
    if record.report is not None and outcome != "withdrawn":
        rank_zero_info(f"zeus: {record.measured()}")
    if outcome in FAILED:
        _log.warning("zeus: %s", record.failure())  # on the rank that had the error
    elif outcome != "withdrawn":
        rank_zero_info(f"zeus: {record.summary()}")


def end_trial_of_dead_ranks(
    url: str | None, record_file: Path, outcome: Outcome, reason: str
) -> None:
    """End a trial after its ranks have died, from the process that started them.

    Lightning then calls hooks in that process only.

    Args:
        url: The service's URL, as for `connect`.
        record_file: The ranks' record of the trial; it is written again, with the outcome.
        outcome: How the trial ended, unless the record says that already.
        reason: Why, in one sentence.
    """
    record = TrialRecord.read(record_file)
    if record is None or record.outcome is not None:
        return
    with suppress(ZeusError):
        end_at_once(connect(url), record, outcome, reason)
    for path in [record_file, *outcome_files()]:
        record.write(path)
