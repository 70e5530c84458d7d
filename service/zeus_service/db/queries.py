"""What the pages read: the list of jobs, a job's trials, a trial's reports, and points of figures.

Nothing here takes a lock, reads a policy's state, or sums over a job's trials. The versions are
cheap, and differ when a page would: a page that has not changed is neither read nor rendered.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

import sqlalchemy as sa
from sqlalchemy import Row, and_, case, func, or_, select
from sqlalchemy.orm import Session, aliased

from zeus_service.bandit.outcomes import Outcome
from zeus_service.db.clock import unix_now
from zeus_service.db.session import now, use_case
from zeus_service.db.tables import Job, PowerProfile, Report, Trial
from zeus_service.errors import unknown_job

# --- the list of jobs ----------------------------------------------------------------------------

JobState = Literal["learning", "settled", "exhausted", "stale"]
"""`settled`: the latest choices were for the best batch size. `exhausted`: every batch size has
failed. `stale`: no run for much longer than usual."""
JOB_STATES: tuple[JobState, ...] = get_args(JobState)

SETTLED_AFTER = 5
"""Choices for the best batch size in a row."""
STALE_INTERVALS = 4.0
"""A job is stale after this many of its mean intervals between runs without a run,"""
STALE_AT_LEAST_S = 2 * 86400.0
"""but not before this,"""
STALE_WITH_FEW_S = 30 * 86400.0
"""nor before this while it has had fewer than `FEW_TRIALS`."""
FEW_TRIALS = 3
SPARKLINE = 24
"""Latest trials whose costs are drawn next to a job."""
PAGE_SIZE = 50
"""Rows on a page of jobs, trials or reports."""

_IS_THERE = Job.job_id.is_not(None)
"""A job that is deleted keeps its row for a while, without its id."""
_HAS_LEASE = Trial.lease_expires_at >= unix_now()
_RUNNING = (
    select(Trial.job_key, func.count().label("running"))
    .join(Job, Job.key == Trial.job_key)
    .where(_IS_THERE, Trial.outcome.is_(None), _HAS_LEASE)
    .group_by(Trial.job_key)
    .subquery("running_trials")
)
_running = func.coalesce(_RUNNING.c.running, 0)

SORTS: dict[str, Any] = {
    "last_run": Job.updated_at,
    "job": Job.job_id,
    "best": Job.best_batch_size,
    "trials": Job.trials,
    "running": _running,
    "failures": Job.failures,
    "saved": Job.saved_energy_j,
}
"""What a list of jobs can be sorted by."""


@dataclass(frozen=True)
class JobQuery:
    """Which jobs to list: those in a state whose id contains `search`, in any case."""

    search: str = ""
    state: JobState | None = None
    sort: str = "last_run"
    """A key of `SORTS`."""
    descending: bool = True
    page: int = 1
    size: int = PAGE_SIZE


@dataclass(frozen=True)
class JobPage:
    """A page of the list.

    Args:
        query: What was asked for, with a page that exists.
        jobs: Rows in order: a job, its `state`, and how many of its trials are `running`.
        counts: Jobs that match the search, by state.
        running: Running trials whose lease has not expired, of all jobs.
        total: All jobs.
        costs: The costs of each job's latest trials that ended, in joules, by its key.
    """

    query: JobQuery
    jobs: Sequence[Row[tuple[Job, JobState, int]]]
    counts: dict[JobState, int]
    running: int
    total: int
    costs: dict[int, list[float]] = field(default_factory=dict)

    @property
    def found(self) -> int:
        """Jobs that match the search and the state."""
        if self.query.state is not None:
            return self.counts.get(self.query.state, 0)
        return sum(self.counts.values())

    @property
    def pages(self) -> int:
        """How many pages there are; at least 1."""
        return max(1, -(-self.found // self.query.size))


@use_case(read_only=True)
def list_version(session: Session) -> tuple[object, ...]:
    """Read what differs when the list of jobs does, by a minute at most: jobs become stale."""
    running = select(func.sum(_RUNNING.c.running)).scalar_subquery()
    query = select(unix_now(), func.count(), func.max(Job.updated_at), running)
    now, *values = session.execute(query.select_from(Job).where(_IS_THERE)).one()
    return (int(now // 60), *values)


@use_case(read_only=True)
def list_jobs(session: Session, query: JobQuery) -> JobPage:
    """Read the page of jobs that a query asks for; the last one if there are fewer pages."""
    search, state = query.search, _state(session)
    matching = and_(_IS_THERE, Job.job_id.icontains(search, autoescape=True))
    by_state = _with_running(select(state, func.count())).where(matching).group_by(state)
    counts: dict[JobState, int] = dict(session.execute(by_state).all())
    running = session.scalar(select(func.sum(_RUNNING.c.running))) or 0
    total = session.scalar(select(func.count()).select_from(Job).where(_IS_THERE)) or 0
    found = JobPage(query, (), counts, int(running), total)
    query = replace(query, page=min(query.page, found.pages))
    key = SORTS[query.sort]
    page = (
        _with_running(select(Job, state.label("state"), _running.label("running")))
        .where(matching, state == query.state if query.state else sa.true())
        .order_by(key.is_(None), key.desc() if query.descending else key.asc(), Job.job_id)
        .limit(query.size)
        .offset((query.page - 1) * query.size)
    )
    rows = session.execute(page).all()
    costs = _latest_costs(session, [row.Job for row in rows])
    return replace(found, query=query, jobs=rows, costs=costs)


@use_case(read_only=True)
def job_state(session: Session, job_id: str) -> JobState | None:
    """Read a job's state, or None if there is no such job."""
    query = _with_running(select(_state(session))).where(Job.job_id == job_id)
    state: JobState | None = session.scalar(query)
    return state


def _with_running(query: sa.Select[Any]) -> sa.Select[Any]:
    return query.select_from(Job).outerjoin(_RUNNING, _RUNNING.c.job_key == Job.key)


def _state(session: Session) -> sa.ColumnElement[Any]:
    interval = (Job.updated_at - Job.created_at) / Job.trials
    idle = now(session) - Job.updated_at
    few = Job.trials < FEW_TRIALS
    is_stale = and_(
        Job.trials > 0,
        _running == 0,
        idle > STALE_AT_LEAST_S,
        case((few, idle > STALE_WITH_FEW_S), else_=idle > STALE_INTERVALS * interval),
    )
    # Literals, not parameters: PostgreSQL groups by the expression only if it is the same text.
    return case(
        (Job.stage == sa.literal_column("'exhausted'"), sa.literal_column("'exhausted'")),
        (is_stale, sa.literal_column("'stale'")),
        (Job.exploits >= SETTLED_AFTER, sa.literal_column("'settled'")),
        else_=sa.literal_column("'learning'"),
    )


def _latest_costs(session: Session, jobs: Sequence[Job]) -> dict[int, list[float]]:
    costs: dict[int, list[float]] = {job.key: [] for job in jobs}
    latest = (
        and_(Trial.job_key == job.key, Trial.trial_number > job.trials - SPARKLINE) for job in jobs
    )
    query = select(Trial.job_key, Trial.cost).where(or_(sa.false(), *latest), _TRAINED)
    for key, cost in session.execute(query.order_by(Trial.job_key, Trial.trial_number)):
        costs[key].append(cost)
    return costs


# --- a job and its trials ------------------------------------------------------------------------

OUTCOMES: tuple[str, ...] = get_args(Outcome)
RUNNING = "running"
"""Stands for the outcome of a trial that has not ended."""
RUNNING_SHOWN = 20
"""Running trials that are shown of a job: those that started last."""
PORTION = 1000
"""Trials that are read at once for a file."""
POINTS = 1000
"""The latest trials or reports that a figure draws."""

TRIAL_COLUMNS = (
    *("trial_number", "batch_size", "why", "start_reason", "start_cost_bound", "outcome"),
    *("reason", "started_at", "ended_at", "reports", "epoch", "time_s", "energy_j", "metric"),
    "cost",
)
"""The columns of a trial that are shown and written to files."""

_number = Trial.trial_number
_TRAINED = and_(Trial.outcome.is_not(None), Trial.outcome != "withdrawn")
"""Trials that have ended; withdrawn ones have trained nothing."""
_First, _Last = aliased(Report), aliased(Report)


def _columns(*names: str) -> list[Any]:
    return [getattr(Trial, name) for name in names]


def _is_report(report: type[Report], sequence: Any) -> sa.ColumnElement[bool]:
    is_mine = report.job_key == Trial.job_key, report.trial_number == _number
    return and_(*is_mine, report.sequence == sequence)


_PROGRESS = (
    select(
        *_columns(*TRIAL_COLUMNS),
        _HAS_LEASE.label("has_lease"),
        _First.metric.label("first_metric"),
        _Last.reported_at,
    )
    .outerjoin(_First, _is_report(_First, 1))
    .outerjoin(_Last, _is_report(_Last, Trial.reports))
)
"""Trials, and how far they have come."""


def _of_job(table: type[Trial | Report], job_id: str) -> sa.ColumnElement[bool]:
    key = select(Job.key).where(Job.job_id == job_id).scalar_subquery()
    is_mine: sa.ColumnElement[bool] = table.job_key == key
    return is_mine


@dataclass(frozen=True)
class TrialQuery:
    """Which trials to list: of an outcome and a batch size, with numbers up to `upto`."""

    outcome: str | None = None
    """Or `RUNNING`."""
    batch_size: int | None = None
    upto: int | None = None
    size: int = PAGE_SIZE


@dataclass(frozen=True)
class TrialPage:
    """Trials, descending; `older` and `newer` are the `upto` of the adjacent pages."""

    query: TrialQuery
    trials: Sequence[Row[Any]]
    older: int | None
    newer: int | None


@dataclass(frozen=True)
class ReportPage:
    """Reports, descending; `older` is the `upto` of the next page."""

    reports: Sequence[Report]
    upto: int | None
    older: int | None


@use_case(read_only=True)
def job_version(session: Session, job_id: str) -> tuple[object, ...]:
    """Read what differs when a trial of a job starts or ends, or the job itself changes."""
    profiles = PowerProfile.job_key == Job.key
    newest = select(func.max(PowerProfile.updated_at)).where(profiles).scalar_subquery()
    count = select(func.count()).select_from(PowerProfile).where(profiles).scalar_subquery()
    columns = Job.key, Job.sequence, Job.updated_at
    query = select(*columns, newest, count).where(Job.job_id == job_id)
    row = session.execute(query).one_or_none()
    if row is None:
        raise unknown_job(job_id)
    return tuple(row)


@use_case(read_only=True)
def running_version(session: Session, job_id: str) -> tuple[object, ...]:
    """Read what differs when a running trial of a job reports, or its lease expires."""
    query: sa.Select[Any] = select(*_columns("trial_number", "reports"), _HAS_LEASE)
    return tuple(map(tuple, session.execute(_latest_running(query, job_id))))


@use_case(read_only=True)
def trial_version(session: Session, job_id: str, trial_number: int) -> tuple[object, ...] | None:
    """Read what differs when a trial's page does; None if there is no such trial."""
    is_running = Trial.outcome.is_(None)
    columns = Trial.generation, Trial.reports, Trial.outcome, Trial.ended_at
    bound = case((is_running, Job.cost_bound))  # it moves on when others end
    query = select(*columns, bound, and_(is_running, _HAS_LEASE))
    query = query.join(Job, Job.key == Trial.job_key).where(Job.job_id == job_id)
    row = session.execute(query.where(_number == trial_number)).one_or_none()
    return None if row is None else tuple(row)


@use_case(read_only=True)
def count_controls(session: Session, job_id: str) -> int:
    """Count a job's control trials."""
    query = select(func.count()).where(_of_job(Trial, job_id), Trial.why == "control")
    return session.scalar(query) or 0


@use_case(read_only=True)
def list_trials(session: Session, job_id: str, query: TrialQuery) -> TrialPage:
    """Read a page of a job's trials."""
    where = [_of_job(Trial, job_id)]
    if query.outcome is not None:
        where.append(Trial.outcome == (None if query.outcome == RUNNING else query.outcome))
    if query.batch_size is not None:
        where.append(Trial.batch_size == query.batch_size)
    page = select(*_columns(*TRIAL_COLUMNS)).where(*where).order_by(_number.desc())
    newer = None
    if query.upto is not None:
        above = select(_number).where(*where, _number > query.upto).order_by(_number)
        after = session.scalars(above.limit(query.size)).all()
        newer = after[-1] if after else None
        page = page.where(_number <= query.upto)
    rows = session.execute(page.limit(query.size + 1)).all()
    older = rows[query.size].trial_number if len(rows) > query.size else None
    return TrialPage(query, rows[: query.size], older, newer)


def all_trials(job_id: str) -> Iterator[Sequence[Row[Any]]]:
    """All trials of a job, ascending, in portions that are read when they are asked for."""
    after = 0
    while rows := _portion(job_id, after):
        yield rows
        after = rows[-1].trial_number


@use_case(read_only=True)
def _portion(session: Session, job_id: str, after: int) -> Sequence[Row[Any]]:
    query = select(*_columns(*TRIAL_COLUMNS)).where(_of_job(Trial, job_id), _number > after)
    return session.execute(query.order_by(_number).limit(PORTION)).all()


@use_case(read_only=True)
def get_trial(session: Session, job_id: str, trial_number: int) -> Any:
    """Read a trial with `first_metric`, `reported_at` and `has_lease`; None if there is none."""
    query = _PROGRESS.where(_of_job(Trial, job_id), _number == trial_number)
    return session.execute(query).one_or_none()


@use_case(read_only=True)
def running_trials(session: Session, job_id: str) -> Sequence[Row[Any]]:
    """Read a job's running trials as `get_trial` does, newest first."""
    return session.execute(_latest_running(_PROGRESS, job_id)).all()


def _latest_running(query: sa.Select[Any], job_id: str) -> sa.Select[Any]:
    # By their start: to order them by number, SQLite would read all trials of the job.
    return (
        query.where(_of_job(Trial, job_id), Trial.outcome.is_(None))
        .order_by(Trial.started_at.desc(), _number.desc())
        .limit(RUNNING_SHOWN)
    )


@use_case(read_only=True)
def latest_trials(session: Session, job_id: str) -> Sequence[Row[Any]]:
    """Read the latest `POINTS` trials that have ended, ascending: their batch sizes and costs."""
    query = select(*_columns("trial_number", "batch_size", "outcome", "cost"))
    query = query.where(_of_job(Trial, job_id), _TRAINED).order_by(_number.desc())
    return session.execute(query.limit(POINTS)).all()[::-1]


@use_case(read_only=True)
def latest_reports(session: Session, job_id: str, trial_number: int) -> Sequence[Report]:
    """Read the latest `POINTS` reports of a trial, ascending."""
    return session.scalars(_reports(job_id, trial_number).limit(POINTS)).all()[::-1]


@use_case(read_only=True)
def list_reports(
    session: Session, job_id: str, trial_number: int, upto: int | None = None
) -> ReportPage:
    """Read a page of a trial's reports up to a sequence number, with the decisions on them."""
    query = _reports(job_id, trial_number)
    if upto is not None:
        query = query.where(Report.sequence <= upto)
    rows = session.scalars(query.limit(PAGE_SIZE + 1)).all()
    older = rows[PAGE_SIZE].sequence if len(rows) > PAGE_SIZE else None
    return ReportPage(rows[:PAGE_SIZE], upto, older)


def _reports(job_id: str, trial_number: int) -> sa.Select[Report]:
    is_mine = _of_job(Report, job_id), Report.trial_number == trial_number
    return select(Report).where(*is_mine).order_by(Report.sequence.desc())
