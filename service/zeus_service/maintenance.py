"""The operator's use cases: drop old reports, delete a job, and rebuild a job's state.

None of them holds a lock for longer than some milliseconds: what takes long is many small
transactions, with pauses in which others get their turn. Each may be interrupted anywhere.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar

from sqlalchemy import ColumnElement, delete, exc, or_, select
from sqlalchemy.orm import Session

from zeus_service.bandit.spec import JobSpec
from zeus_service.db import jobs, savings
from zeus_service.db.rebuild import Rebuilt
from zeus_service.db.session import now, use_case
from zeus_service.db.tables import Era, Job, PowerProfile, Report, Trial
from zeus_service.errors import Contended, JobBusy
from zeus_service.savings.power import Profiles

P = ParamSpec("P")
R = TypeVar("R")

logger = logging.getLogger(__name__)

TRIALS_AT_ONCE = 50
"""Trials of which one transaction deletes rows."""

SWEEPS = 3
"""Transactions in which the deletion of a job removes rows of jobs that were deleted."""


@dataclass
class Dropped:
    """How many reports were deleted, and how many rows of jobs that had been deleted before."""

    reports: int = 0
    rows: int = 0


def prune(*, older_than_s: float) -> Dropped:
    """Drop the reports of trials that ended long ago, and what deleted jobs have left.

    Reports are dropped of trials that ended longer ago than this. Trials are kept: they are the
    job's history. So are the reports of baselines that have not converged, since the job learns its
    target from them.
    """
    dropped = Dropped()
    before = _now() - older_than_s
    for key in _all_jobs():
        after = 0
        while numbers := _with_old_reports(key, before, after=after):
            dropped.reports += _paced(_drop_reports, key, numbers, before)
            after = numbers[-1]
    while (count := _paced(_sweep)) is not None:
        dropped.rows += count
    return dropped


def delete_job(job_id: str, *, force: bool = False) -> None:
    """Delete a job. Its id is free at once; its rows go in small steps, later ones by `prune`.

    Raises:
        NotFound: No such job.
        JobBusy: It has running trials, and `force` is not set.
    """
    _free_id(job_id, force)
    try:
        for _ in range(SWEEPS):
            _sweep()
    except (Contended, exc.DBAPIError, exc.TimeoutError) as error:
        text = "job %r was deleted, but rows remain, which `zeus-service prune` removes: %s"
        logger.warning(text, job_id, error)


@use_case(read_only=True)
def check_deletable(session: Session, job_id: str, *, force: bool = False) -> None:
    """Raise what `delete_job` would now: `NotFound`, or `JobBusy`."""
    _check_deletable(session, jobs.get(session, job_id), force)


def rebuild(job_id: str) -> bool:
    """Replay a job's trials, and store the state if it differs; return whether it was the same.

    The replay needs no lock. Its result is stored only if no trial was started or ended meanwhile;
    otherwise it is replayed again.

    Raises:
        NotFound: No such job.
        BrokenJob: Its specification is not valid.
    """
    while True:
        job, spec, rows, profiles = _history(job_id)
        same = _store(job_id, job, spec, Rebuilt(spec, rows, profiles))
        if same is not None:
            return same


_now = use_case(read_only=True)(now)


@use_case(read_only=True)
def _all_jobs(session: Session) -> Sequence[int]:
    """The keys of all jobs."""
    return session.scalars(select(Job.key).where(Job.job_id.is_not(None))).all()


@use_case(read_only=True)
def _with_old_reports(session: Session, key: int, before: float, *, after: int) -> Sequence[int]:
    """The next trials of a job that ended before an instant, and have reports."""
    has_reports = select(Report.sequence).where(
        Report.job_key == Trial.job_key, Report.trial_number == Trial.trial_number
    )
    query = select(Trial.trial_number).where(
        Trial.job_key == key,
        Trial.trial_number > after,
        Trial.ended_at < before,
        or_(Trial.why != "baseline", Trial.outcome == "converged"),
        has_reports.exists(),
    )
    return session.scalars(query.order_by(Trial.trial_number).limit(TRIALS_AT_ONCE)).all()


@use_case()
def _drop_reports(session: Session, key: int, numbers: Sequence[int], before: float) -> int:
    is_old = Report.reported_at < before  # a trial that was revived meanwhile keeps its newer ones
    return _delete(session, Report, Report.job_key == key, Report.trial_number.in_(numbers), is_old)


@use_case()
def _free_id(session: Session, job_id: str, force: bool) -> None:
    job = jobs.lock(session, job_id)
    _check_deletable(session, job, force)
    job.job_id = None


def _check_deletable(session: Session, job: Job, force: bool) -> None:
    running = len(jobs.running(session, job))
    if running and not force:
        remedy = "to delete it anyway, pass --force, or force=true over HTTP"
        raise JobBusy(
            f"job {job.job_id!r} has running trials ({running}); {remedy}", running=running
        )


@use_case()
def _sweep(session: Session) -> int | None:
    """Delete some rows of a job that was deleted; return how many, or None if there is no job."""
    key = session.scalar(select(Job.key).where(Job.job_id.is_(None)).limit(1))
    if key is None:
        return None
    query = select(Trial.trial_number).where(Trial.job_key == key).order_by(Trial.trial_number)
    numbers = session.scalars(query.limit(TRIALS_AT_ONCE)).all()
    if not numbers:
        tables: tuple[type[Any], ...] = (Era, PowerProfile)
        rows = sum(_delete(session, table, table.job_key == key) for table in tables)
        return rows + _delete(session, Job, Job.key == key)
    first, last = numbers[0], numbers[-1]
    return sum(
        _delete(session, table, table.job_key == key, table.trial_number.between(first, last))
        for table in (Report, Trial)
    )


def _delete(session: Session, table: type[Any], *where: ColumnElement[bool]) -> int:
    """Delete rows; return how many. None of them is loaded in the session."""
    statement = delete(table).where(*where)
    result: Any = session.execute(statement, execution_options={"synchronize_session": False})
    return int(result.rowcount)


@use_case(read_only=True)
def _history(session: Session, job_id: str) -> tuple[Job, JobSpec, Sequence[Any], Profiles]:
    """A job, its specification, its trials to replay, and the default's power profiles."""
    job = jobs.get(session, job_id)
    spec, rows = jobs.specification(job, repair=True), jobs.history(session, job)
    return job, spec, rows, savings.default_profiles(session, job, spec)


@use_case()
def _store(
    session: Session,
    job_id: str,
    read: Job,
    spec: JobSpec,
    rebuilt: Rebuilt,
) -> bool | None:
    """Store what was rebuilt; return whether it was the same, or None if it is out of date."""
    job = jobs.lock(session, job_id)
    if (job.key, job.sequence) != (read.key, read.sequence):
        return None
    return rebuilt.store(session, job, spec)


def _paced(transaction: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Call a use case, and pause for as long as it took, so that others get their turn."""
    began = time.monotonic()
    try:
        return transaction(*args, **kwargs)
    finally:
        time.sleep(min(time.monotonic() - began, 1.0))
