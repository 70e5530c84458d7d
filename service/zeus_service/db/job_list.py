"""A page of the list of jobs: searched, filtered and sorted by the database.

It reads no policy's state. At 10,000 jobs a page takes a pass over the jobs' rows, and then reads
the rows and the latest trials of those that are shown.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

import sqlalchemy as sa
from sqlalchemy import Connection, and_, case, func, or_, select

from zeus_service.bandit.spec import MAX_JOB_ID
from zeus_service.db.damage import is_id, is_sound
from zeus_service.db.leases import IN_FORCE
from zeus_service.db.tables import JOBS, TRIALS
from zeus_service.db.transactions import use_case

JobState = Literal["learning", "settled", "exhausted", "stale"]
"""`settled`: the latest choices were for the best batch size. `exhausted`: every batch size has
failed. `stale`: no run for much longer than usual."""
JOB_STATES: tuple[JobState, ...] = get_args(JobState)

SETTLED_AFTER = 5
"""Choices for the best batch size in a row."""
STALE_INTERVALS = 4.0
"""A job is stale after so many of its mean intervals between runs without one,"""
STALE_AT_LEAST_S = 2 * 86400.0
"""but not before this,"""
STALE_WITH_FEW_S = 30 * 86400.0
"""nor before this while it has had fewer than `FEW_TRIALS`."""
FEW_TRIALS = 3
SPARKLINE = 24
"""Latest trials whose costs are drawn beside a job."""

_RUNNING = (
    select(TRIALS.c.job_id, func.count().label("running"))
    .where(IN_FORCE)
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
"""What a list can be sorted by."""


@dataclass(frozen=True)
class JobQuery:
    """Which jobs to list.

    Args:
        search: Part of the id, in any case.
        state: Only jobs in this state.
        sort: A key of `SORTS`.
        page: From 1.
        size: Jobs on a page.
    """

    search: str = ""
    state: JobState | None = None
    sort: str = "last_run"
    descending: bool = True
    page: int = 1
    size: int = 50


@dataclass(frozen=True)
class ListedJob:
    """A job in the list; `costs` are those of its latest trials that ended, in joules.

    One whose row cannot be read has the state `broken`, and zeros. `is_named` is whether its id is
    one; else it stands for what the row has in its place.
    `saved_energy_j` is what it has saved, None if unknown; `saved_energy_j_error` is half the width
    of its 95 % interval.
    """

    job_id: str
    state: JobState | Literal["broken"]
    stage: str
    best_batch_size: int | None
    trials: int
    running: int
    failures: int
    created_at: float
    updated_at: float
    estimated: bool
    saved_energy_j: float | None
    saved_energy_j_error: float | None
    default_batch_size: int | None = None
    costs: tuple[float, ...] = ()
    is_named: bool = True


@dataclass(frozen=True)
class JobPage:
    """A page of the list.

    Args:
        query: What was asked for, with a page that exists.
        jobs: In order.
        counts: Jobs that match the search, by state.
        running: Trials running whose lease is in force, of all jobs.
        total: All jobs.
    """

    query: JobQuery
    jobs: Sequence[ListedJob]
    counts: dict[JobState, int] = field(default_factory=dict)
    running: int = 0
    total: int = 0

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
def read(connection: Connection, query: JobQuery, *, now: float) -> JobPage:
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
    running = select(func.coalesce(func.sum(_RUNNING.c.running), 0))
    totals = connection.execute(
        select(select(func.count()).select_from(JOBS).scalar_subquery(), running.scalar_subquery())
    ).one()
    found = JobPage(query, (), counts, int(totals[1]), int(totals[0]))
    found = replace(found, query=replace(query, page=min(query.page, found.pages)))
    listed = _listed(connection, found.query, matching, state)
    return replace(found, jobs=_with_details(connection, listed))


@use_case(read_only=True)
def state_of(connection: Connection, job_id: str, *, now: float) -> JobState | None:
    """Read a job's state, or None if there is no such job."""
    query = select(_state(now)).select_from(_JOBS).where(JOBS.c.job_id == job_id)
    found: JobState | None = connection.execute(query).scalar()
    return found


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


def _listed(
    connection: Connection,
    query: JobQuery,
    matching: sa.ColumnElement[bool],
    state: sa.ColumnElement[Any],
) -> list[ListedJob]:
    key = SORTS[query.sort]
    order = key.desc() if query.descending else key.asc()
    names = ("job_id", "stage", "best_batch_size", "trials", "failures", "created_at", "estimated")
    columns = [JOBS.c[name] for name in (*names, "saved_energy_j", "saved_energy_j_error")]
    rows = connection.execute(
        select(*columns, JOBS.c.updated_at, state.label("state"), _running.label("running"))
        .select_from(_JOBS)
        .where(matching, state == query.state if query.state else sa.true())
        .order_by(key.is_(None), order, JOBS.c.job_id)
        .limit(query.size)
        .offset((query.page - 1) * query.size)
    )
    return [_checked(row) for row in rows]


def _checked(row: Any) -> ListedJob:
    """A job as it is listed; of a row that is broken, only its id is read."""
    if is_sound(row, JOBS):
        return ListedJob(**row._mapping)
    named = is_id(row.job_id)
    job_id = row.job_id if named else repr(row.job_id)[:MAX_JOB_ID]
    nothing = (None, 0, 0, 0, 0.0, 0.0, False, None, None)
    return ListedJob(job_id, "broken", "broken", *nothing, is_named=named)


def _with_details(connection: Connection, listed: list[ListedJob]) -> list[ListedJob]:
    if not listed:
        return []
    ids = [job.job_id for job in listed]
    # As text: a row that is not valid JSON must not hide the others.
    specs = select(JOBS.c.job_id, sa.cast(JOBS.c.spec, sa.Text)).where(JOBS.c.job_id.in_(ids))
    spec_of = {job_id: _parsed(text) for job_id, text in connection.execute(specs)}
    latest = or_(
        *(
            and_(
                TRIALS.c.job_id == job.job_id,
                TRIALS.c.trial_number.between(job.trials - SPARKLINE + 1, job.trials),
            )
            for job in listed
        )
    )
    costs: dict[str, list[float]] = {job_id: [] for job_id in ids}
    for job_id, cost in connection.execute(
        select(TRIALS.c.job_id, TRIALS.c.cost)
        .where(latest, TRIALS.c.outcome.is_not(None), TRIALS.c.outcome != "withdrawn")
        .order_by(TRIALS.c.job_id, TRIALS.c.trial_number)
    ):
        if isinstance(cost, int | float) and math.isfinite(cost):
            costs[job_id].append(cost)
    return [
        replace(
            job,
            default_batch_size=spec_of.get(job.job_id, {}).get("default_batch_size"),
            costs=tuple(costs[job.job_id]),
        )
        for job in listed
    ]


def _parsed(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
