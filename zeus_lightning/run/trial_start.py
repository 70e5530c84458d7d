"""Start a trial of a job, or a control trial if no batch size is left to try."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from uuid import uuid4

from lightning.pytorch.utilities import rank_zero_warn

from zeus_lightning.client import NO_BATCH_SIZE_LEFT, BSOClient
from zeus_lightning.environment import is_control
from zeus_lightning.errors import ZeusServiceError, ZeusServiceUnavailable
from zeus_lightning.messages import Hardware, JobSpec, TrialStart
from zeus_lightning.run.quiet_calls import LAST_TIMEOUT_S
from zeus_lightning.run.record import TrialRecord


def start_trial(client: BSOClient, job: JobSpec, hardware: Hardware, share: int) -> TrialRecord:
    """Register a job and start a trial, from rank zero alone.

    The user's training does not stop because every batch size has failed: the run then warns, and
    trains with the default batch size as a control trial. If that reaches the target, the job goes
    on with this batch size.

    Args:
        client: The service.
        job: The job that the arguments and the program make.
        hardware: What the trial trains on.
        share: What a batch size is divided by, such as the number of devices.
    """
    job = client.register_job(job)

    def start(*, control: bool) -> TrialStart:
        return _request_trial(client, job.job_id, hardware, share, control=control)

    try:
        trial = start(control=is_control())
    except ZeusServiceError as error:
        if error.fields.get("code") != NO_BATCH_SIZE_LEFT:
            raise
        rank_zero_warn(
            f"zeus: job {job.job_id!r} has no batch size left to try, so this run trains with "
            f"the default, {job.default_batch_size}, to its end; if the target is out of reach, "
            "use another job_id"
        )
        trial = start(control=True)
    job = replace(job, target_metric=trial.target_metric)
    return TrialRecord(job=job, trial=trial, hardware=hardware)


def _request_trial(
    client: BSOClient, job_id: str, hardware: Hardware, share: int, *, control: bool
) -> TrialStart:
    """Request a trial; withdraw one whose start was not answered."""
    key = uuid4().hex
    try:
        return client.start_trial(job_id, key, hardware, share, control=control)
    except (ZeusServiceUnavailable, KeyboardInterrupt):
        # the service may have started it all the same: the key names it
        with suppress(ZeusServiceError):
            once = client.without_retries(LAST_TIMEOUT_S)
            trial = once.start_trial(job_id, key, hardware, share, control=control)
            reason = "the run never received the response to its start request"
            once.end_trial(trial, "withdrawn", reason)
        raise
