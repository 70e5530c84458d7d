"""Start a trial of a job, or a control trial if no batch size is left to try."""

from __future__ import annotations

from dataclasses import replace
from uuid import uuid4

from lightning.pytorch.utilities import rank_zero_warn

from zeus_lightning.client import NO_BATCH_SIZE_LEFT, BSOClient
from zeus_lightning.environment import is_control
from zeus_lightning.errors import ZeusServiceError
from zeus_lightning.messages import Hardware, JobSpec, TrialStart
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
            f"the default, {job.default_batch_size}, to its end; if the target is out of reach, "
            "use another job_id"
        )
        trial = start(control=True)
    job = replace(job, target_metric=trial.target_metric)
    return TrialRecord(job=job, trial=trial, hardware=hardware)
