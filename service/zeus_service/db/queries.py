"""What pages and commands read: jobs, a job's trials, a trial's reports, and points of figures.

Nothing here takes a job's lock or reads a policy's state. The versions are cheap, and differ when a
page would: a page that has not changed is neither read nor rendered.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import sqlalchemy as sa
from sqlalchemy import Row, and_, case, func, select
from sqlalchemy.orm import InstrumentedAttribute, Session

from zeus_service.bandit.outcomes import Outcome
from zeus_service.bandit.policy import UNBOUNDED
from zeus_service.db import jobs
from zeus_service.db.session import unix_now, use_case
from zeus_service.db.tables import Era, Job, PowerProfile, Report, Secret, Trial
from zeus_service.errors import unknown_job

PAGE_SIZE = 50
"""Rows on a page of jobs, trials or reports."""
POINTS = 1000
"""The latest trials or reports that a figure draws."""
RUNNING_SHOWN = 20
"""How many of a job's running trials are shown: the latest."""

# --- the list of jobs ----------------------------------------------------------------------------

JobState = Literal["exhausted", "failing", "stale", "settled", "learning"]
"""The state of a job on pages, on the command line and in the API: the first that holds.

`exhausted`: every batch size has failed, so a run can only be a control trial. `failing`: the
latest runs failed. `stale`: no run for several times as long as between its runs. `settled`: the
latest choices were for the best batch size."""
JOB_STATES: tuple[JobState, ...] = get_args(JobState)
NEEDS_ATTENTION = JOB_STATES[:3]
FAILING_AFTER = 3
"""Failures in a row."""
SETTLED_AFTER = 5
"""Choices for the best batch size in a row."""
STALE_AFTER = 3
"""Times the mean time between runs, and a day more, for which a stale job has not changed."""

# Literals, not parameters: PostgreSQL groups by the expression only if it is the same text.
_literal = sa.literal_column
_idle_s = unix_now() - Job.updated_at
_between_runs_s = (Job.updated_at - Job.created_at) / func.nullif(Job.trials, _literal("0"))
_longest_s: sa.ColumnElement[Any] = _literal("86400") + _literal(str(STALE_AFTER)) * _between_runs_s
state_column: sa.ColumnElement[Any] = case(
    (Job.exhausted, _literal("'exhausted'")),
    (Job.failures >= _literal(str(FAILING_AFTER)), _literal("'failing'")),
    (_idle_s > _longest_s, _literal("'stale'")),
    (Job.exploits >= _literal(str(SETTLED_AFTER)), _literal("'settled'")),
    else_=_literal("'learning'"),
).label("state")
"""The state of a job, which is not stored: it also depends on the time."""
_ranks = {state: rank for rank, state in enumerate(reversed(NEEDS_ATTENTION), start=1)}
_urgency = case(_ranks, value=state_column.element, else_=0)
_number = Trial.trial_number
_IS_THERE = Job.job_id.is_not(None)
"""A job that is deleted keeps its row for a while, without its id."""
_HAS_LEASE = (Trial.lease_expires_at >= unix_now()).label("has_lease")
_RUNNING = (
    select(Trial.job_key, func.count().label("running"))
    .join(Job, Job.key == Trial.job_key)
    .where(_IS_THERE, Trial.outcome.is_(None), _HAS_LEASE)
    .group_by(Trial.job_key)
    .subquery("running_trials")
)
_running = func.coalesce(_RUNNING.c.running, 0).label("running")

SORTS: dict[str, Any] = {
    "attention": _urgency,
    "job": Job.job_id,
    "saved": Job.saved_energy_j,
    "last_run": Job.updated_at,
}
"""What a list of jobs can be sorted by; among equals, the one that changed last comes first."""
LATEST = 12
"""How many of a job's latest trials a list shows."""


@dataclass(frozen=True)
class JobQuery:
    """Which jobs to list: those in a state whose id contains `search`, in any case."""

    search: str = ""
    state: JobState | None = None
    sort: str = "attention"
    """A key of `SORTS`."""
    descending: bool = True
    page: int = 1


@dataclass(frozen=True)
class JobPage:
    """A page of the list.

    Args:
        query: What was asked for, with a page that exists.
        jobs: Rows in order: a job, its `state`, and how many of its trials are `running`.
        latest: By the key of each of these jobs, its latest trials that have ended, ascending.
        counts: Jobs that match the search, by state.
        pages: How many pages there are; at least 1.
    """

    query: JobQuery
    jobs: Sequence[Row[Job, JobState, int]]
    latest: dict[int, list[Row[int, str | None, float]]]
    counts: dict[JobState, int]
    pages: int


@use_case(read_only=True)
def list_version(session: Session) -> tuple[object, ...]:
    """Read what differs when the list of jobs does."""
    running = select(func.sum(_RUNNING.c.running)).scalar_subquery()
    urgency = func.sum(_urgency)  # a job becomes stale by itself
    query = select(func.count(), func.max(Job.updated_at), urgency, running)
    return tuple(session.execute(query.select_from(Job).where(_IS_THERE)).one())


@use_case(read_only=True)
def list_jobs(session: Session, query: JobQuery) -> JobPage:
    """Read the page of jobs that a query asks for; the last one if there are fewer pages."""
    matching = and_(_IS_THERE, Job.job_id.icontains(query.search, autoescape=True))
    by_state = select(state_column, func.count()).where(matching).group_by(state_column)
    counts: dict[JobState, int] = dict(session.execute(by_state).all())
    found = counts.get(query.state, 0) if query.state else sum(counts.values())
    pages = max(1, -(-found // PAGE_SIZE))
    query = replace(query, page=min(query.page, pages))
    key = SORTS[query.sort]
    page = (
        select(Job, state_column, _running)
        .outerjoin(_RUNNING, _RUNNING.c.job_key == Job.key)
        .where(matching)
        .order_by(key.is_(None), key.desc() if query.descending else key.asc())
        .order_by(Job.updated_at.desc(), Job.job_id)
        .limit(PAGE_SIZE)
        .offset((query.page - 1) * PAGE_SIZE)
    )
    if query.state is not None:
        page = page.where(state_column == query.state)
    rows = session.execute(page).all()
    latest = _latest_trials(session, [job.key for job, *_ in rows])
    return JobPage(query, rows, latest, counts, pages)


def _latest_trials(
    session: Session, keys: list[int]
) -> dict[int, list[Row[int, str | None, float]]]:
    query = (
        select(Trial.job_key, Trial.outcome, Trial.cost)
        .join(Job, Job.key == Trial.job_key)
        .where(Job.key.in_(keys), _number > Job.trials - LATEST, Trial.outcome.is_not(None))
        .order_by(_number)
    )
    found: dict[int, list[Row[int, str | None, float]]] = {key: [] for key in keys}
    for row in session.execute(query):
        found[row.job_key].append(row)
    return found


# --- a job and its trials ------------------------------------------------------------------------

OUTCOMES: tuple[str, ...] = get_args(Outcome)
RUNNING = "running"
"""Stands for the outcome of a trial that has not ended."""


@dataclass(frozen=True)
class Page:
    """Trials or reports, descending; `older` is the first number of the next page."""

    rows: Sequence[Any]
    older: int | None


@use_case(read_only=True)
def job_version(session: Session, job_id: str) -> tuple[object, ...]:
    """Read what differs when a trial of a job starts or ends, or the job itself changes."""
    profiles = PowerProfile.job_key == Job.key
    newest = select(func.max(PowerProfile.updated_at)).where(profiles).scalar_subquery()
    columns = Job.key, Job.sequence, Job.updated_at, state_column, newest
    query = select(*columns).where(Job.job_id == job_id)
    row = session.execute(query).one_or_none()
    if row is None:
        raise unknown_job(job_id)
    return tuple(row)


@use_case(read_only=True)
def running_version(session: Session, job_id: str) -> tuple[object, ...]:
    """Read what differs when a running trial of a job reports, or its lease is extended or ends."""
    columns: list[Any] = [_number, Trial.reports, Trial.lease_expires_at, _HAS_LEASE]
    return tuple(map(tuple, session.execute(_latest_running(job_id, *columns))))


@use_case(read_only=True)
def count_controls(session: Session, job_id: str) -> int:
    """Count a job's control trials, baselines included."""
    query = select(func.count()).where(_in_job(Trial, job_id), Trial.why.in_(UNBOUNDED))
    return session.scalar(query) or 0


@use_case(read_only=True)
def list_trials(
    session: Session,
    job_id: str,
    *,
    outcome: str | None = None,
    batch_size: int | None = None,
    above_cost: float | None = None,
    since: float | None = None,
    upto: int | None = None,
) -> Page:
    """Read a page of a job's trials.

    Args:
        session: In a transaction.
        job_id: The job.
        outcome: May be `RUNNING`.
        batch_size: Theirs.
        above_cost: In joules; theirs is higher.
        since: In Unix seconds; they were started then or later.
        upto: Their largest number.
    """
    query = select(Trial).where(_in_job(Trial, job_id))
    if outcome is not None:
        query = query.where(Trial.outcome == (None if outcome == RUNNING else outcome))
    if batch_size is not None:
        query = query.where(Trial.batch_size == batch_size)
    if above_cost is not None:
        query = query.where(Trial.cost > above_cost)
    if since is not None:
        query = query.where(Trial.started_at >= since)
    return _page(session, query, _number, upto)


@use_case(read_only=True)
def list_reports(session: Session, job_id: str, trial_number: int, upto: int | None = None) -> Page:
    """Read a page of a trial's reports up to a sequence number, with the decisions on them."""
    return _page(session, _reports(job_id, trial_number), Report.sequence, upto)


@use_case(read_only=True)
def get_trial(session: Session, job_id: str, trial_number: int) -> Row[Trial, bool]:
    """Read a trial, and whether its lease has not expired: `has_lease`.

    Raises:
        NotFound: No such job or trial.
    """
    query = select(Trial, _HAS_LEASE).where(_in_job(Trial, job_id), _number == trial_number)
    row = session.execute(query).one_or_none()
    if row is None:
        raise jobs.unknown_trial(job_id, trial_number)
    return row


@use_case(read_only=True)
def get_trials(session: Session, job_id: str, numbers: Sequence[int]) -> Sequence[Trial]:
    """Read those trials of a job that exist, by their numbers, descending."""
    query = select(Trial).where(_in_job(Trial, job_id), _number.in_(numbers))
    return session.scalars(query.order_by(_number.desc())).all()


@use_case(read_only=True)
def running_trials(session: Session, job_id: str) -> Sequence[Row[Trial, bool]]:
    """Read a job's running trials as `get_trial` does, newest first."""
    return session.execute(_latest_running(job_id, Trial, _HAS_LEASE)).all()


@use_case(read_only=True)
def latest_trials(session: Session, job_id: str) -> Sequence[Row[Trial, Era | None]]:
    """Read the latest `POINTS` trials that have ended, ascending, except withdrawn ones.

    Each comes with the era that it counts in; None if it counts in none.
    """
    has_trained = and_(Trial.outcome.is_not(None), Trial.outcome != "withdrawn")
    of_trial = and_(Era.job_key == Trial.job_key, Era.era == Trial.era)
    query = select(Trial, Era).outerjoin(Era, of_trial).where(_in_job(Trial, job_id), has_trained)
    return session.execute(query.order_by(_number.desc()).limit(POINTS)).all()[::-1]


@use_case(read_only=True)
def latest_reports(session: Session, job_id: str, trial_number: int) -> Sequence[Report]:
    """Read the latest `POINTS` reports of a trial, ascending."""
    query = _reports(job_id, trial_number).order_by(Report.sequence.desc())
    return session.scalars(query.limit(POINTS)).all()[::-1]


# --- signing in ----------------------------------------------------------------------------------

_KEY_NAME = "session_key"


@use_case()
def signing_key(session: Session) -> str:
    """Read the key that signs what browsers keep; make it if there is none.

    Called again if another replica has stored a key meanwhile: then that one counts.
    """
    found = session.get(Secret, _KEY_NAME)
    if found is None:
        found = Secret(name=_KEY_NAME, value=secrets.token_hex(32))
        session.add(found)
    return found.value


def _in_job(table: type[Trial | Report], job_id: str) -> sa.ColumnElement[bool]:
    key = select(Job.key).where(Job.job_id == job_id).scalar_subquery()
    is_mine: sa.ColumnElement[bool] = table.job_key == key
    return is_mine


def _latest_running(job_id: str, *columns: Any) -> sa.Select[Any]:
    # By their start: to order them by number, SQLite would read all trials of the job.
    return (
        select(*columns)
        .where(_in_job(Trial, job_id), Trial.outcome.is_(None))
        .order_by(Trial.started_at.desc(), _number.desc())
        .limit(RUNNING_SHOWN)
    )


def _reports(job_id: str, trial_number: int) -> sa.Select[Report]:
    return select(Report).where(_in_job(Report, job_id), Report.trial_number == trial_number)


def _page(
    session: Session, query: sa.Select[Any], number: InstrumentedAttribute[int], upto: int | None
) -> Page:
    if upto is not None:
        query = query.where(number <= upto)
    rows = session.scalars(query.order_by(number.desc()).limit(PAGE_SIZE + 1)).all()
    older = getattr(rows[-1], number.key) if len(rows) > PAGE_SIZE else None
    return Page(rows[:PAGE_SIZE], older)
