"""Why a use case of `zeus_service.optimizer` cannot be carried out."""

from __future__ import annotations

from typing import Any


class OptimizerError(Exception):
    """A use case that cannot be carried out.

    Args:
        message: For a person: what is wrong and what to do.
        fields: For a program.
    """

    def __init__(self, message: str, **fields: Any) -> None:
        super().__init__(message)
        self.message = message
        self.fields = fields


class NotFound(OptimizerError):
    """No such job or trial."""


class JobConflict(OptimizerError):
    """The job id is known with another configuration."""


class JobBusy(OptimizerError):
    """The job has running trials."""


class Contended(OptimizerError):
    """Too many transactions change the same rows at once."""


class UnknownPolicy(OptimizerError):
    """No policy of that name."""


class KeyConflict(OptimizerError):
    """The idempotency key was used for another job."""


class ReportConflict(OptimizerError):
    """The report's sequence number was used with other figures, or comes too late."""


class TrialFinished(OptimizerError):
    """The trial has ended."""


class ExhaustedJob(OptimizerError):
    """Every batch size of the job has failed."""


def no_job(job_id: str) -> NotFound:
    """The error of a job id that is not known."""
    return NotFound(f"no job {job_id!r}; `zeus-service jobs` lists those there are")


def no_trial(job_id: str, trial_number: int) -> NotFound:
    """The error of a trial number that is not known."""
    return NotFound(f"no trial {trial_number} of job {job_id!r}; start one first")
