"""Errors of the use cases, each with its HTTP status, and that of what cannot be used."""

from typing import Any, ClassVar


class OptimizerError(Exception):
    """A use case that cannot be carried out.

    Args:
        message: For a person: what is wrong and what to do.
        fields: For a program, like the error's `code`.
    """

    status: ClassVar[int]
    code: ClassVar[str]

    def __init__(self, message: str, **fields: Any) -> None:
        super().__init__(message)
        self.message = message
        self.fields = fields


class NotFound(OptimizerError):
    """No such job or trial."""

    status, code = 404, "not_found"


def unknown_job(job_id: str) -> NotFound:
    """The error of a job that is not registered."""
    return NotFound(f"no job {job_id!r}; run `zeus-service jobs` to list the jobs")


class JobConflict(OptimizerError):
    """The job is registered with other values, or keeps its hardware: see `differences`."""

    status, code = 409, "job_conflict"


def job_conflict(job_id: str, differences: dict[str, dict[str, Any]], advice: str) -> JobConflict:
    """The error of a job that is known with other values: `{name: {known, given}}`."""
    listed = "; ".join(
        f"{name} {each['known']!r}, not {each['given']!r}" for name, each in differences.items()
    )
    message = f"job {job_id!r} is registered with {listed}. {advice}"
    return JobConflict(message, differences=differences)


class JobBusy(OptimizerError):
    """The job has running trials."""

    status, code = 409, "job_busy"


class KeyConflict(OptimizerError):
    """The idempotency key was used for another job, or with another value of `control`."""

    status, code = 409, "key_conflict"


class ReportConflict(OptimizerError):
    """The sequence number was used with other figures, or is behind the last one."""

    status, code = 409, "report_conflict"


class OtherGeneration(OptimizerError):
    """The trial of this number is another one: this run's was deleted."""

    status, code = 409, "other_generation"


class TrialFinished(OptimizerError):
    """The trial has ended: see `outcome`."""

    status, code = 409, "trial_finished"


class NotCompleted(OptimizerError):
    """The trial cannot end as `completed`: it is not a baseline, or has no report."""

    status, code = 409, "not_completed"


class ExhaustedJob(OptimizerError):
    """Every batch size of the job has failed."""

    status, code = 409, "no_batch_size_left"


class BrokenJob(OptimizerError):
    """The job's row is not valid, or its policy is not installed; the message says which."""

    status, code = 500, "broken_job"


class InvalidJob(OptimizerError):
    """A field of the job is missing, or has no valid value: see `errors`."""

    status, code = 422, "invalid"


class Contended(OptimizerError):
    """Too many transactions change the same rows at once."""

    status, code = 503, "unavailable"


class Unusable(RuntimeError):
    """Raised when the settings, an address, the database, or what a command needs is unusable.

    The message names it, says why, and what to do; it contains no secrets. Gunicorn prints a
    `RuntimeError` at its start in one line, and exits with status 1.
    """
