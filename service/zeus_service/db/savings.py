"""Sums of what jobs have saved and spent."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import chain
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection, Row, case, func, select

from zeus_service.bandit.spec import JobSpec
from zeus_service.db.tables import JOBS, SAVED_ON_DAYS, TRIALS
from zeus_service.savings.expected import Amounts, Expectation, as_amounts
from zeus_service.savings.ledger import QUANTITIES, Saved, new_ledger

_LARGEST = 1e30
"""Amounts beyond this are damaged."""

COLUMNS: tuple[str, ...] = tuple(
    f"saved_{name}{end}" for name in QUANTITIES for end in ("", "_error")
)
"""What a job has saved, in `JOBS`."""


@dataclass(frozen=True)
class Portion:
    """Adjoining trials of a job that have ended.

    Args:
        last_trial: The highest trial number.
        ended_at: Unix seconds, of the trial that ended last.
        recurrences: Trials that converged.
        spent: By all of them.
    """

    last_trial: int
    ended_at: float
    recurrences: int
    spent: Amounts


@dataclass(frozen=True)
class Total:
    """What jobs with one kind of meter have saved.

    Args:
        estimated: Whether the meters estimate.
        jobs: All jobs.
        known: Jobs with an expectation.
        saved: By those.
    """

    estimated: bool
    jobs: int
    known: int
    saved: Saved


def totals(connection: Connection) -> list[Total]:
    """Sum what all jobs have saved; the errors of jobs are independent."""
    columns = [JOBS.c[name] for name in COLUMNS]
    known = _are_numbers(*columns)
    values = [case((known, column), else_=0.0) for column in columns]
    means = [func.sum(value) for value in values[::2]]
    squares = [func.sum(value * value) for value in values[1::2]]
    estimated = case((JOBS.c.estimated.is_(sa.true()), 1), else_=0).label("is_estimated")
    counts = func.count(), func.sum(case((known, 1), else_=0))
    query = select(estimated, *counts, *means, *squares).group_by(estimated).order_by(estimated)
    rows = connection.execute(query).all()
    return [Total(bool(row[0]), row[1], int(row[2]), _saved(row[3:6], row[6:])) for row in rows]


def days(
    connection: Connection, *, since: int, job_id: str | None = None
) -> list[tuple[int, int, Saved]]:
    """Sum what was saved on each day, of one job or of all.

    Args:
        connection: In a transaction.
        since: The first day, counted from 1970.
        job_id: The job; None for all.

    Returns:
        Days that have trials, ascending: the day, recurrences, and what was saved.
    """
    table = SAVED_ON_DAYS
    means = [func.sum(table.c[name]) for name in QUANTITIES]
    errors = [table.c.recurrences * table.c[f"{name}_error"] for name in QUANTITIES]
    squares = [func.sum(error * error) for error in errors]
    query = select(table.c.day, func.sum(table.c.recurrences), *means, *squares)
    amounts = [table.c[f"{name}{end}"] for name in QUANTITIES for end in ("", "_error")]
    query = query.where(table.c.day >= since, _are_numbers(*amounts))
    if job_id is not None:
        query = query.where(table.c.job_id == job_id)
    rows = connection.execute(query.group_by(table.c.day).order_by(table.c.day)).all()
    return [(row[0], int(row[1]), _saved(row[2:5], row[5:])) for row in rows]


def portions(connection: Connection, job_id: str, *, trials: int, limit: int) -> list[Portion]:
    """Sum what the trials of a job that have ended have spent, in at most `limit` portions.

    Args:
        connection: In a transaction.
        job_id: The job.
        trials: The number of its latest trial.
        limit: Each portion has as many trial numbers as the others.
    """
    width = max(1, -(-trials // limit))
    portion = (TRIALS.c.trial_number - 1 - (TRIALS.c.trial_number - 1) % width).label("portion")
    spent = [func.sum(TRIALS.c[name]) for name in QUANTITIES]
    query = (
        select(
            func.max(TRIALS.c.trial_number),
            func.max(TRIALS.c.ended_at),
            func.sum(case((TRIALS.c.outcome == "converged", 1), else_=0)),
            *spent,
        )
        .where(
            TRIALS.c.job_id == job_id,
            TRIALS.c.outcome.is_not(None),
            _are_numbers(TRIALS.c.ended_at, *(TRIALS.c[name] for name in QUANTITIES)),
        )
        .group_by(portion)
        .order_by(func.max(TRIALS.c.trial_number))
    )
    rows = connection.execute(query).all()
    return [Portion(row[0], row[1], int(row[2]), as_amounts(row[3:])) for row in rows]


def _are_numbers(*columns: sa.ColumnElement[Any]) -> sa.ColumnElement[bool]:
    """Whether values are numbers, none of them null: SQLite may have anything there."""
    return sa.and_(*(column.between(-_LARGEST, _LARGEST) for column in columns))


def savings_of(row: Row[Any]) -> Saved | None:
    """What a job has saved, from the columns of `JOBS`; ValueError if they are damaged."""
    values = [getattr(row, name) for name in COLUMNS]
    if all(value is None for value in values):
        return None
    if not all(isinstance(value, int | float) and math.isfinite(value) for value in values):
        raise ValueError("what it has saved is no number")
    return Saved(as_amounts(values[::2]), as_amounts(values[1::2]))


def savings_values(saved: Saved | None) -> dict[str, float | None]:
    """The columns of `JOBS` for what a job has saved."""
    if saved is None:
        return dict.fromkeys(COLUMNS)
    pairs = zip(saved.mean, saved.error, strict=True)
    return dict(zip(COLUMNS, chain.from_iterable(pairs), strict=True))


def no_savings(spec: JobSpec) -> dict[str, Any]:
    """The columns of `JOBS` for a job that has had no trial."""
    return {"ledger": new_ledger(), "estimated": spec.estimated, **savings_values(None)}


def savings_added(
    before: Saved | None, after: Saved | None, expected: Expectation | None
) -> dict[str, Any]:
    """The amounts in `SAVED_ON_DAYS` for a change of what a job has saved."""
    added: dict[str, Any] = {}
    for index, name in enumerate(QUANTITIES):
        now, earlier = (each.mean[index] if each else 0.0 for each in (after, before))
        added[name] = now - earlier
        added[f"{name}_error"] = expected.error[index] if expected else 0.0
    return added


def _saved(means: tuple[float, ...], squares: tuple[float, ...]) -> Saved:
    return Saved(as_amounts(means), as_amounts(square**0.5 for square in squares))
