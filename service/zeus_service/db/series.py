"""Series of a job's trials and of a trial's reports, thinned by the database.

A series is cut into at most `BUCKETS` buckets of as many numbers each. Of a bucket stay the rows
with the lowest and the highest value: extremes are kept, and a series has at most `MAX_POINTS`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection, Row, and_, func, or_, select

from zeus_service.bandit.spec import MAX_INTEGER
from zeus_service.db.damage import fits, is_sound
from zeus_service.db.tables import JOBS, REPORTS, TRIALS
from zeus_service.db.transactions import use_case
from zeus_service.errors import unknown_job

MAX_POINTS = 2000
BUCKETS = MAX_POINTS // 2
LATEST = 1000
"""Trials whose costs are drawn over the batch size."""

_ENDED = and_(TRIALS.c.outcome.is_not(None), TRIALS.c.outcome != "withdrawn")
"""Withdrawn trials have trained nothing."""
_DRAWN = TRIALS.c["trial_number", "batch_size", "outcome", "cost"]


@dataclass(frozen=True)
class Thinned:
    """Rows of a series in order, and how many there are in all."""

    rows: Sequence[Row[Any]]
    total: int


@dataclass(frozen=True)
class BatchSizeTrials:
    """A job's trials, for a figure over the batch size.

    Args:
        groups: Rows of batch_size, outcome (None: running), trials, lowest and highest cost.
        latest: The latest `LATEST` trials that ended.
    """

    groups: Sequence[Any]
    latest: Sequence[Any]

    @property
    def total(self) -> int:
        """Trials that ended."""
        return sum(row.trials for row in self.groups if row.outcome not in (None, "withdrawn"))


@use_case(read_only=True)
def version(connection: Connection, job_id: str) -> tuple[float, ...]:
    """Read what changes with every event of a job, and at a registration or rebuild of it."""
    columns = JOBS.c["created_at", "updated_at", "events"]
    row = connection.execute(select(*columns).where(JOBS.c.job_id == job_id)).one_or_none()
    if row is None:
        raise unknown_job(job_id)
    return tuple(row)


@use_case(read_only=True)
def costs(connection: Connection, job_id: str) -> Thinned:
    """Read the costs of a job's trials that ended, ordered by number."""
    where = [TRIALS.c.job_id == job_id, _ENDED]
    return _thinned(connection, TRIALS.c.trial_number, TRIALS.c.cost, where, _DRAWN)


@use_case(read_only=True)
def by_batch_size(connection: Connection, job_id: str) -> BatchSizeTrials:
    """Read what the trials of each batch size came to, and the latest of them one by one."""
    keys = TRIALS.c["batch_size", "outcome"]
    cost = TRIALS.c.cost
    extremes = func.min(cost).label("lowest"), func.max(cost).label("highest")
    found = connection.execute(
        select(*keys, func.count().label("trials"), *extremes)
        .where(TRIALS.c.job_id == job_id)
        .group_by(*keys)
        .order_by(TRIALS.c.batch_size)
    ).all()
    latest = connection.execute(
        select(*_DRAWN)
        .where(TRIALS.c.job_id == job_id, _ENDED)
        .order_by(TRIALS.c.trial_number.desc())
        .limit(LATEST)
    ).all()
    groups = [row for row in _sound(found, TRIALS) if _has_sound_costs(row)]
    return BatchSizeTrials(groups, _sound(latest, TRIALS))


def _has_sound_costs(row: Any) -> bool:
    return all(fits(cost, TRIALS.c.cost) for cost in (row.lowest, row.highest))


@use_case(read_only=True)
def reports(connection: Connection, job_id: str, trial_number: int) -> Thinned:
    """Read a trial's reports, ordered by sequence; the extremes kept are those of the metric."""
    where = [REPORTS.c.job_id == job_id, REPORTS.c.trial_number == trial_number]
    columns = REPORTS.c["sequence", "epoch", "time_s", "energy_j", "metric", "cost", "cost_bound"]
    return _thinned(connection, REPORTS.c.sequence, REPORTS.c.metric, where, columns)


def _thinned(
    connection: Connection,
    number: sa.Column[int],
    value: sa.Column[float],
    where: Sequence[sa.ColumnElement[bool]],
    columns: Iterable[sa.ColumnElement[Any]],
) -> Thinned:
    where = [*where, number.between(0, MAX_INTEGER)]  # a row may be damaged
    query = select(*columns).where(*where).order_by(number)
    first, width = _cut(connection, number, where)
    if width * BUCKETS <= MAX_POINTS:
        rows = _sound(connection.execute(query).all(), number.table)
        return Thinned(rows, len(rows))
    # Windows: a join of the rows with their extremes would be a nested loop on SQLite.
    bucket = _bucket(number, first, width)
    # One sort: the last of a bucket in the order of its values is as far on as the bucket has rows.
    place = func.row_number().over(partition_by=bucket, order_by=(value, number))
    size = func.count().over(partition_by=bucket)
    inner = select(*columns, place.label("place"), size.label("size")).where(*where)
    placed = inner.subquery("placed")
    is_extreme = or_(placed.c.place == 1, placed.c.place == placed.c.size)
    kept = select(placed).where(is_extreme).order_by(placed.c[number.name])
    rows = _sound(connection.execute(kept).all(), number.table)
    return Thinned(rows, sum(row.size for row in rows if row.place == 1))


def _sound(rows: Iterable[Any], table: Any) -> list[Row[Any]]:
    return [row for row in rows if is_sound(row, table)]


def _cut(
    connection: Connection, number: sa.Column[int], where: Sequence[sa.ColumnElement[bool]]
) -> tuple[int, int]:
    """The first number, and the width of each of at most `BUCKETS` buckets from there."""
    # Each of them reads one row; min() and max() together would read all on SQLite.
    ends = (select(number).where(*where).order_by(o).limit(1) for o in (number, number.desc()))
    first, last = (connection.execute(end).scalar() or 0 for end in ends)
    return first, max(1, -(-(last - first + 1) // BUCKETS))


def _bucket(number: sa.Column[int], first: int, width: int) -> sa.ColumnElement[int]:
    # Literals, not parameters: PostgreSQL groups by the expression only if it is the same text.
    return (number - sa.literal_column(str(first))) // sa.literal_column(str(width))
