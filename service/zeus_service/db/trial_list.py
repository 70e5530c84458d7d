"""Pages of a job's trials, newest first, and all of them in small portions for a file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, get_args

from sqlalchemy import Connection, Row, select

from zeus_service.bandit.outcomes import Outcome
from zeus_service.db.damage import is_sound
from zeus_service.db.tables import TRIALS
from zeus_service.db.transactions import use_case

OUTCOMES: tuple[str, ...] = get_args(Outcome)
RUNNING = "running"
"""Stands for the outcome of a trial that has not ended."""
PORTION = 1000

COLUMNS = (
    *("trial_number", "batch_size", "why", "start_reason", "start_cost_bound", "outcome"),
    *("reason", "started_at", "ended_at", "reports", "epoch", "time_s", "energy_j", "metric"),
    "cost",
)
"""The columns of a trial that are shown and written to files."""


@dataclass(frozen=True)
class TrialQuery:
    """Which trials to list.

    Args:
        outcome: Only those with this outcome, or `RUNNING`.
        batch_size: Only those of this batch size.
        upto: The highest number.
        size: Trials on a page.
    """

    outcome: str | None = None
    batch_size: int | None = None
    upto: int | None = None
    size: int = 50


@dataclass(frozen=True)
class TrialPage:
    """A page of trials, descending; `older` and `newer` are the `upto` of the pages beside it.

    `broken` are the numbers of those that cannot be shown.
    """

    query: TrialQuery
    trials: Sequence[Row[Any]]
    older: int | None
    newer: int | None
    broken: frozenset[int] = frozenset()


@use_case(read_only=True)
def read(connection: Connection, job_id: str, query: TrialQuery) -> TrialPage:
    """Read a page of a job's trials."""
    number = TRIALS.c.trial_number
    where = [TRIALS.c.job_id == job_id]
    if query.outcome is not None:
        where.append(TRIALS.c.outcome == (None if query.outcome == RUNNING else query.outcome))
    if query.batch_size is not None:
        where.append(TRIALS.c.batch_size == query.batch_size)
    page = select(*TRIALS.c[COLUMNS]).where(*where).order_by(number.desc())
    newer = None
    if query.upto is not None:
        above = select(number).where(*where, number > query.upto).order_by(number)
        after = connection.execute(above.limit(query.size)).scalars().all()
        newer = after[-1] if after else None
        page = page.where(number <= query.upto)
    rows = connection.execute(page.limit(query.size + 1)).all()
    older = rows[query.size].trial_number if len(rows) > query.size else None
    broken = [row.trial_number for row in rows if not is_sound(row, TRIALS)]
    return TrialPage(query, rows[: query.size], older, newer, frozenset(broken))


def portions(job_id: str) -> Iterator[Sequence[Row[Any]]]:
    """All trials of a job, ascending, in portions that are read when they are asked for."""
    after = 0
    while rows := _portion(job_id, after):
        yield rows
        after = rows[-1].trial_number


@use_case(read_only=True)
def _portion(connection: Connection, job_id: str, after: int) -> Sequence[Row[Any]]:
    number = TRIALS.c.trial_number
    query = select(*TRIALS.c[COLUMNS]).where(TRIALS.c.job_id == job_id, number > after)
    return connection.execute(query.order_by(number).limit(PORTION)).all()


@use_case(read_only=True)
def get(connection: Connection, job_id: str, trial_number: int) -> Any:
    """Read a trial, or None."""
    query = select(*TRIALS.c[COLUMNS], TRIALS.c.lease_expires_at).where(
        TRIALS.c.job_id == job_id, TRIALS.c.trial_number == trial_number
    )
    return connection.execute(query).one_or_none()
