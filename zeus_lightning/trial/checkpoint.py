"""The trial in a checkpoint, and how a run resumes it."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Self

from zeus_lightning.client import BSOClient
from zeus_lightning.errors import ZeusConfigError
from zeus_lightning.messages import Hardware, JobSpec, Report, TrialStatus
from zeus_lightning.meters import Reading
from zeus_lightning.trial.record import TrialRecord
from zeus_lightning.trial.reporter import TrialReporter

RESUMABLE = (None, "interrupted", "errored", "lost")
"""Outcomes of trials that can be resumed; None: the trial is running."""


@dataclass(frozen=True)
class SavedTrial:
    """A trial at the moment of a checkpoint, with the reports not yet sent."""

    record: TrialRecord
    spent: Reading
    unsent: tuple[Report, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Plain values only: checkpoints are read with `weights_only=True`."""
        return {
            "record": self.record.to_json(),
            "energy_j": float(self.spent.energy_j),
            "time_s": float(self.spent.time_s),
            "cpu_energy_j": float(self.spent.cpu_energy_j),
            "unsent": [report.to_json() for report in self.unsent],
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        """Build from the values of `to_json`."""
        return cls(
            TrialRecord.from_json(data["record"]),
            Reading(data["energy_j"], data["time_s"], data.get("cpu_energy_j", 0.0)),
            tuple(map(Report.from_json, data["unsent"])),
        )

    @property
    def is_resumable(self) -> bool:
        """Whether it can be resumed, as far as this process knows."""
        return self.record.outcome in RESUMABLE and math.isfinite(self.spent.energy_j)

    def __str__(self) -> str:
        return f"trial {self.record.trial.trial_number} of job {self.record.job.job_id!r}"

    def reopen(self, client: BSOClient, job: JobSpec, received: int) -> TrialReporter:
        """Return the reporter of the resumed trial, of which the service has `received` reports.

        Reports made after the checkpoint are made again, with other figures and new numbers.
        """
        unsent = [report for report in self.unsent if report.sequence > received]
        last = max([received, *(report.sequence for report in unsent)])
        record = replace(self.record, job=job, outcome=None, reason="")
        return TrialReporter(client, record, last, unsent)

    def check_resumable(self, job: JobSpec, hardware: Hardware, status: TrialStatus | None) -> None:
        """Raise a `ZeusConfigError` unless the job's run can resume a trial of this status."""
        trial = self.record.trial
        if self.record.job.job_id != job.job_id:
            problem = f"but this run's job is {job.job_id!r}"
        elif self.record.hardware != hardware:
            problem = f"which ran on {self.record.hardware}, and this run is on {hardware}"
        elif status is None or status.batch_size != trial.batch_size:
            problem = "which the service does not know"
        elif status.generation != trial.generation:
            problem = "of a job that was deleted or restored since"
        elif status.outcome not in RESUMABLE:
            problem = f"which has ended as {status.outcome} ({status.reason.rstrip('.')})"
        else:
            return
        raise ZeusConfigError(
            f"the checkpoint belongs to {self}, {problem}; for the job's next run, call fit() "
            "without ckpt_path, or pass no state= to Recurrence, and save each run's checkpoints "
            "in a folder of its own; to start a new trial from these weights, load them into the "
            "module; to continue without the service, remove this callback, or Recurrence"
        )


def resume_trial(
    client: BSOClient,
    job: JobSpec,
    hardware: Hardware,
    saved: SavedTrial,
    *,
    instead_of: TrialReporter | None,
) -> tuple[JobSpec, int]:
    """Withdraw the trial that this run may have started, and check that a saved one can be resumed.

    Returns:
        The job with its registered values, and the number of reports that the service has of it.
    """
    if instead_of is None:
        job = client.register_job(job)
    else:
        instead_of.end_quietly("withdrawn", f"the run resumes {saved}")
        job = instead_of.record.job
    status = client.trial_status(job.job_id, saved.record.trial.trial_number)
    saved.check_resumable(job, hardware, status)
    return job, 0 if status is None else status.reports
