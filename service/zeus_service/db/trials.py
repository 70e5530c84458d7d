"""Trials and their reports as they are stored. An unknown trial raises `NotFound`."""

from typing import Any

from pydantic import FiniteFloat, TypeAdapter
from sqlalchemy import Connection, Row, Select, select

from zeus_service.bandit.spec import JobSpec
from zeus_service.db import statements
from zeus_service.db.clock import unix_now
from zeus_service.db.damage import REBUILD, read_each, reading
from zeus_service.db.jobs import read_spec
from zeus_service.db.tables import REPORTS, TRIALS
from zeus_service.db.writes import bind_values
from zeus_service.errors import NotFound
from zeus_service.messages import Decision, Report, Trial, TrialEnd, TrialList, TrialStart
from zeus_service.savings import power as power_limits


def get_with_job(
    connection: Connection, job_id: str, trial_number: int
) -> tuple[Trial, JobSpec, float | None]:
    """Read a trial, its job's specification, and its job's early-stop bound in joules."""
    row = _one(connection, statements.TRIAL_WITH_JOB, job_id, trial_number)
    spec = read_spec(job_id, row.spec)
    with reading(f"the cost_bound of job {job_id!r}", REBUILD):
        cost_bound = _COST_BOUND.validate_python(row.cost_bound)
    return _trial(row), spec, cost_bound


def get(connection: Connection, job_id: str, trial_number: int, *, lock: bool = False) -> Trial:
    """Read a trial, and lock it if asked to."""
    query = statements.LOCKED_TRIAL if lock else statements.TRIAL
    return _trial(_one(connection, query, job_id, trial_number))


def page(connection: Connection, job_id: str, *, after: int, limit: int) -> TrialList:
    """Read a job's trials with a number greater than `after`, ordered by number."""
    rows = connection.execute(
        select(TRIALS)
        .where(TRIALS.c.job_id == job_id, TRIALS.c.trial_number > after)
        .order_by(TRIALS.c.trial_number)
        .limit(limit)
    )
    trials, broken = read_each(rows, _trial, "trial_number")
    return TrialList(trials=trials, broken=broken)


def running_batch_size(connection: Connection, job_id: str) -> int | None:
    """Read the batch size of the running trial that was started first, fallbacks aside.

    A trial whose lease has expired does not count: it will be marked as lost.
    """
    query = (
        select(TRIALS.c.batch_size)
        .where(TRIALS.c.job_id == job_id, TRIALS.c.outcome.is_(None), TRIALS.c.why != "fallback")
        .where(TRIALS.c.lease_expires_at >= unix_now())
        .order_by(TRIALS.c.trial_number)
        .limit(1)
    )
    return connection.execute(query).scalar()


def get_start(
    connection: Connection, job_id: str, trial_number: int, *, lease_s: float
) -> TrialStart:
    """Read the answer to the start of a trial."""
    row = _one(connection, statements.TRIAL, job_id, trial_number)
    with reading(f"trial {trial_number} of job {job_id!r}"):
        return TrialStart(
            job_id=job_id,
            trial_number=trial_number,
            generation=row.generation,
            batch_size=row.batch_size,
            why=row.why,
            reason=row.start_reason,
            cost_bound=row.start_cost_bound,
            lease_s=lease_s,
        )


def start_values(start: TrialStart, idempotency_key: str | None) -> dict[str, Any]:
    """Values of a new trial for `statements.START`."""
    trial = {
        **start.model_dump(include={"job_id", "trial_number", "generation", "batch_size", "why"}),
        "idempotency_key": idempotency_key,
        "start_reason": start.reason,
        "start_cost_bound": start.cost_bound,
        "reason": "",
        "lease_expires_at": start.lease_s,
        **dict.fromkeys(("outcome", "metric", "power_limit_w", "default_power_limit_w")),
        **dict.fromkeys(("reports", "epoch", "time_s", "energy_j", "cost"), 0),
    }
    return bind_values(TRIALS, trial)


def get_report(
    connection: Connection, trial: Trial, sequence: int
) -> tuple[Report, Decision] | None:
    """Read a report of a trial and the answer to it; return None if there is none.

    The report lacks the default power limit: only that of the trial's last report is stored.
    """
    this = {"this_job": trial.job_id, "this_trial": trial.trial_number, "this_sequence": sequence}
    row = connection.execute(statements.REPORT, this).one_or_none()
    if row is None:
        return None
    with reading(f"report {sequence} of trial {trial.trial_number} of job {trial.job_id!r}"):
        report = Report.model_validate(row, from_attributes=True)
        return report, Decision.model_validate(row, from_attributes=True)


def report_values(
    trial: Trial, report: Report, decision: Decision, *, lease_s: float
) -> dict[str, Any]:
    """Values of a report for `statements.REPORT_TO_TRIAL` and `statements.REPORT_TO_JOB`."""
    limit_w, default_limit_w = power_limits.of_run(trial, report)
    reported = {
        "reports": report.sequence,
        **report.model_dump(exclude={"sequence"}),
        "power_limit_w": limit_w,
        "default_power_limit_w": default_limit_w,
        "cost": decision.cost,
        "lease_expires_at": lease_s,
        "outcome": decision.outcome,
        "reason": decision.reason if decision.outcome else "",
    }
    this = {"job_id": trial.job_id, "trial_number": trial.trial_number}
    measured = report.model_dump(exclude={"default_power_limit_w"})
    stored = {**this, **measured, **decision.model_dump()}
    return {
        "this_job": trial.job_id,
        "this_trial": trial.trial_number,
        "read_reports": trial.reports,
        "read_outcome": trial.outcome,
        "read_generation": trial.generation,
        **bind_values(TRIALS, reported),
        **bind_values(REPORTS, stored),
    }


def end_values(trial_number: int, end: TrialEnd) -> dict[str, Any]:
    """Values of a trial that ends for `statements.END`."""
    return {"this_trial": trial_number, **bind_values(TRIALS, end.model_dump())}


_COST_BOUND: TypeAdapter[float | None] = TypeAdapter(FiniteFloat | None)


def _trial(row: Row[Any]) -> Trial:
    with reading(f"trial {row.trial_number} of job {row.job_id!r}"):
        return Trial.model_validate(row, from_attributes=True)


def _one(connection: Connection, query: Select[Any], job_id: str, trial_number: int) -> Row[Any]:
    this = {"this_job": job_id, "this_trial": trial_number}
    with reading(f"the specification of job {job_id!r}"):
        row = connection.execute(query, this).one_or_none()
    if row is None:
        raise NotFound(f"no trial {trial_number} of job {job_id!r}; start one first")
    return row
