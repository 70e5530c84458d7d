"""What the pages read: the list of jobs, a job's trials, a trial's reports, and points of figures.

Nothing here takes a lock, reads a policy's state, or sums over a job's trials. The versions are
cheap, and differ when a page would: a page that has not changed is neither read nor rendered.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

import sqlalchemy as sa
from sqlalchemy import Connection, Row, and_, case, func, or_, select

from zeus_service.bandit.outcomes import Outcome
from zeus_service.db.clock import unix_now
from zeus_service.db.tables import JOBS, POWER_PROFILES, REPORTS, TRIALS
from zeus_service.db.transactions import use_case
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
"""Latest trials whose costs are drawn beside a job."""
PAGE_SIZE = 50
"""Rows on a page of jobs, trials or reports."""

_HAS_LEASE = TRIALS.c.lease_expires_at >= unix_now()
_RUNNING = (
    select(TRIALS.c.job_id, func.count().label("running"))
    .where(TRIALS.c.outcome.is_(None), _HAS_LEASE)
    .group_by(TRIALS.c.job_id)
    .subquery("running_trials")
)
_running = func.coalesce(_RUNNING.c.running, 0)
_JOBS = JOBS.outerjoin(_RUNNING, _RUNNING.c.job_id == JOBS.c.job_id)

SORTS: dict[str, sa.ColumnElement[Any]] = {
    "last_run": JOBS.c.updated_at,
    "job": JOBS.c.job_id,
    "best": JOBS.c.best_batch_size,
    "trials": JOBS.c.trials,
    "running": _running,
    "failures": JOBS.c.failures,
    "saved": JOBS.c.saved_energy_j,
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
        jobs: Rows in order: columns of `JOBS`, `state` and `running`.
        counts: Jobs that match the search, by state.
        running: Running trials whose lease has not expired, of all jobs.
        total: All jobs.
        defaults: The default batch size of each of `jobs`, by id.
        costs: The costs of its latest trials that ended, in joules, by id.
    """

    query: JobQuery
    jobs: Sequence[Row[Any]]
    counts: dict[JobState, int]
    running: int
    total: int
    defaults: dict[str, int] = field(default_factory=dict)
    costs: dict[str, list[float]] = field(default_factory=dict)

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
def list_version(connection: Connection, *, now: float) -> tuple[object, ...]:
    """Read what differs when the list of jobs does: by a minute at most, since jobs become stale.

    Args:
        connection: In a transaction.
        now: Unix seconds.
    """
    running = select(func.count()).where(TRIALS.c.outcome.is_(None), _HAS_LEASE).scalar_subquery()
    query = select(func.count(), func.max(JOBS.c.updated_at), running).select_from(JOBS)
    row = connection.execute(query).one()
    return (int(now // 60), *row)


@use_case(read_only=True)
def list_jobs(connection: Connection, query: JobQuery, *, now: float) -> JobPage:
    """Read a page of jobs; the last one if there are fewer pages.

    Args:
        connection: In a transaction.
        query: Which jobs.
        now: Unix seconds.
    """
    state = _state(now)
    matching = JOBS.c.job_id.icontains(query.search, autoescape=True) if query.search else sa.true()
    by_state = select(state, func.count()).select_from(_JOBS).where(matching).group_by(state)
    counts: dict[JobState, int] = dict(connection.execute(by_state).all())
    running = connection.execute(select(func.sum(_RUNNING.c.running))).scalar() or 0
    total = connection.execute(select(func.count()).select_from(JOBS)).scalar_one()
    found = JobPage(query, (), counts, int(running), total)
    query = replace(query, page=min(query.page, found.pages))
    key = SORTS[query.sort]
    names = ("job_id", "best_batch_size", "trials", "failures", "updated_at", "estimated")
    columns = JOBS.c[*names, "saved_energy_j", "saved_energy_j_error"]
    rows: Sequence[Any] = connection.execute(
        select(*columns, state.label("state"), _running.label("running"))
        .select_from(_JOBS)
        .where(matching, state == query.state if query.state else sa.true())
        .order_by(key.is_(None), key.desc() if query.descending else key.asc(), JOBS.c.job_id)
        .limit(query.size)
        .offset((query.page - 1) * query.size)
    ).all()
    defaults, costs = _defaults(connection, rows), _latest_costs(connection, rows)
    return replace(found, query=query, jobs=rows, defaults=defaults, costs=costs)


@use_case(read_only=True)
def job_state(connection: Connection, job_id: str, *, now: float) -> JobState | None:
    """Read a job's state, or None if there is no such job."""
    query = select(_state(now)).select_from(_JOBS).where(JOBS.c.job_id == job_id)
    return connection.execute(query).scalar()


def _state(now: float) -> sa.ColumnElement[Any]:
    interval = (JOBS.c.updated_at - JOBS.c.created_at) / JOBS.c.trials
    idle = now - JOBS.c.updated_at
    few = JOBS.c.trials < FEW_TRIALS
    is_stale = and_(
        JOBS.c.trials > 0,
        _running == 0,
        idle > STALE_AT_LEAST_S,
        case((few, idle > STALE_WITH_FEW_S), else_=idle > STALE_INTERVALS * interval),
    )
    # Literals, not parameters: PostgreSQL groups by the expression only if it is the same text.
    return case(
        (JOBS.c.stage == sa.literal_column("'exhausted'"), sa.literal_column("'exhausted'")),
        (is_stale, sa.literal_column("'stale'")),
        (JOBS.c.exploits >= SETTLED_AFTER, sa.literal_column("'settled'")),
        else_=sa.literal_column("'learning'"),
    )


def _defaults(connection: Connection, jobs: Sequence[Row[Any]]) -> dict[str, int]:
    ids = [job.job_id for job in jobs]
    specs = connection.execute(select(*JOBS.c["job_id", "spec"]).where(JOBS.c.job_id.in_(ids)))
    return {job_id: spec["default_batch_size"] for job_id, spec in specs}


def _latest_costs(connection: Connection, jobs: Sequence[Row[Any]]) -> dict[str, list[float]]:
    costs: dict[str, list[float]] = {job.job_id: [] for job in jobs}
    latest = (
        and_(TRIALS.c.job_id == job.job_id, TRIALS.c.trial_number > job.trials - SPARKLINE)
        for job in jobs
    )
    query = select(*TRIALS.c["job_id", "cost"]).where(or_(sa.false(), *latest), _TRAINED)
    for job_id, cost in connection.execute(query.order_by(TRIALS.c.job_id, _number)):
        costs[job_id].append(cost)
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

_number = TRIALS.c.trial_number
_TRAINED = and_(TRIALS.c.outcome.is_not(None), TRIALS.c.outcome != "withdrawn")
"""Trials that have ended; withdrawn ones have trained nothing."""
_FIRST, _LAST = REPORTS.alias("first_report"), REPORTS.alias("last_report")


def _is_report(report: sa.FromClause, sequence: Any) -> sa.ColumnElement[bool]:
    is_mine = report.c.job_id == TRIALS.c.job_id, report.c.trial_number == _number
    return and_(*is_mine, report.c.sequence == sequence)


_PROGRESS = (
    select(
        *TRIALS.c[*TRIAL_COLUMNS, "lease_expires_at"],
        _FIRST.c.metric.label("first_metric"),
        _LAST.c.reported_at,
    )
    .outerjoin(_FIRST, _is_report(_FIRST, 1))
    .outerjoin(_LAST, _is_report(_LAST, TRIALS.c.reports))
)
"""Trials, and how far they have come."""


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
    """Trials, descending; `older` and `newer` are the `upto` of the pages beside this one."""

    query: TrialQuery
    trials: Sequence[Row[Any]]
    older: int | None
    newer: int | None


@dataclass(frozen=True)
class ReportPage:
    """Reports, descending; `older` is the `upto` of the next page."""

    reports: Sequence[Row[Any]]
    upto: int | None
    older: int | None


@use_case(read_only=True)
def job_version(connection: Connection, job_id: str) -> tuple[object, ...]:
    """Read what differs when a trial of a job starts or ends, or the job itself changes."""
    profiles = POWER_PROFILES.c.job_id == job_id
    newest = select(func.max(POWER_PROFILES.c.updated_at)).where(profiles).scalar_subquery()
    count = select(func.count()).select_from(POWER_PROFILES).where(profiles).scalar_subquery()
    columns = JOBS.c["created_at", "updated_at", "trials", "failures"]
    query = select(*columns, newest, count).where(JOBS.c.job_id == job_id)
    row = connection.execute(query).one_or_none()
    if row is None:
        raise unknown_job(job_id)
    return tuple(row)


@use_case(read_only=True)
def running_version(connection: Connection, job_id: str) -> tuple[object, ...]:
    """Read what differs when a running trial of a job reports, or its lease expires."""
    query = select(_number, TRIALS.c.reports, _HAS_LEASE)
    return tuple(map(tuple, connection.execute(_latest_running(query, job_id))))


@use_case(read_only=True)
def trial_version(
    connection: Connection, job_id: str, trial_number: int
) -> tuple[object, ...] | None:
    """Read what differs when a trial's page does; None if there is no such trial."""
    is_running = TRIALS.c.outcome.is_(None)
    row = connection.execute(
        select(
            JOBS.c.created_at,
            *TRIALS.c["started_at", "reports", "outcome", "ended_at"],
            case((is_running, JOBS.c.cost_bound)),  # the bound moves on when others end
            and_(is_running, _HAS_LEASE),
        )
        .join(JOBS, JOBS.c.job_id == TRIALS.c.job_id)
        .where(TRIALS.c.job_id == job_id, _number == trial_number)
    ).one_or_none()
    return None if row is None else tuple(row)


@use_case(read_only=True)
def list_trials(connection: Connection, job_id: str, query: TrialQuery) -> TrialPage:
    """Read a page of a job's trials."""
    where = [TRIALS.c.job_id == job_id]
    if query.outcome is not None:
        where.append(TRIALS.c.outcome == (None if query.outcome == RUNNING else query.outcome))
    if query.batch_size is not None:
        where.append(TRIALS.c.batch_size == query.batch_size)
    page = select(*TRIALS.c[TRIAL_COLUMNS]).where(*where).order_by(_number.desc())
    newer = None
    if query.upto is not None:
        above = select(_number).where(*where, _number > query.upto).order_by(_number)
        after = connection.execute(above.limit(query.size)).scalars().all()
        newer = after[-1] if after else None
        page = page.where(_number <= query.upto)
    rows = connection.execute(page.limit(query.size + 1)).all()
    older = rows[query.size].trial_number if len(rows) > query.size else None
    return TrialPage(query, rows[: query.size], older, newer)


def all_trials(job_id: str) -> Iterator[Sequence[Row[Any]]]:
    """All trials of a job, ascending, in portions that are read when they are asked for."""
    after = 0
    while rows := _portion(job_id, after):
        yield rows
        after = rows[-1].trial_number


@use_case(read_only=True)
def _portion(connection: Connection, job_id: str, after: int) -> Sequence[Row[Any]]:
    query = select(*TRIALS.c[TRIAL_COLUMNS]).where(TRIALS.c.job_id == job_id, _number > after)
    return connection.execute(query.order_by(_number).limit(PORTION)).all()


@use_case(read_only=True)
def get_trial(connection: Connection, job_id: str, trial_number: int) -> Any:
    """Read a trial with `first_metric` and `reported_at` of its reports, or None."""
    query = _PROGRESS.where(TRIALS.c.job_id == job_id, _number == trial_number)
    return connection.execute(query).one_or_none()


@use_case(read_only=True)
def running_trials(connection: Connection, job_id: str) -> Sequence[Row[Any]]:
    """Read a job's running trials as `get_trial` does, newest first."""
    return connection.execute(_latest_running(_PROGRESS, job_id)).all()


def _latest_running(query: sa.Select[Any], job_id: str) -> sa.Select[Any]:
    # By their start: to order them by number, SQLite would read all trials of the job.
    return (
        query.where(TRIALS.c.job_id == job_id, TRIALS.c.outcome.is_(None))
        .order_by(TRIALS.c.started_at.desc(), _number.desc())
        .limit(RUNNING_SHOWN)
    )


@use_case(read_only=True)
def latest_trials(connection: Connection, job_id: str) -> Sequence[Row[Any]]:
    """Read the latest `POINTS` trials that have ended, ascending: their batch sizes and costs."""
    query = select(*TRIALS.c["trial_number", "batch_size", "outcome", "cost"])
    query = query.where(TRIALS.c.job_id == job_id, _TRAINED)
    return connection.execute(query.order_by(_number.desc()).limit(POINTS)).all()[::-1]


@use_case(read_only=True)
def latest_reports(connection: Connection, job_id: str, trial_number: int) -> Sequence[Row[Any]]:
    """Read the latest `POINTS` reports of a trial, ascending."""
    return connection.execute(_reports(job_id, trial_number).limit(POINTS)).all()[::-1]


@use_case(read_only=True)
def list_reports(
    connection: Connection, job_id: str, trial_number: int, upto: int | None = None
) -> ReportPage:
    """Read a page of a trial's reports up to a sequence number, with the decisions on them."""
    query = _reports(job_id, trial_number)
    if upto is not None:
        query = query.where(REPORTS.c.sequence <= upto)
    rows = connection.execute(query.limit(PAGE_SIZE + 1)).all()
    older = rows[PAGE_SIZE].sequence if len(rows) > PAGE_SIZE else None
    return ReportPage(rows[:PAGE_SIZE], upto, older)


def _reports(job_id: str, trial_number: int) -> sa.Select[Any]:
    is_mine = REPORTS.c.job_id == job_id, REPORTS.c.trial_number == trial_number
    return select(REPORTS).where(*is_mine).order_by(REPORTS.c.sequence.desc())
