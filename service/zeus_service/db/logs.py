"""Pages of what was recorded in order: a job's events, and a trial's reports. Newest first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Row, Select, Table, select

from zeus_service.db.damage import is_sound
from zeus_service.db.tables import EVENTS, REPORTS
from zeus_service.db.transactions import use_case

SIZE = 50


@dataclass(frozen=True)
class LogPage:
    """Rows, descending by `sequence`; `older` is the `upto` of the next page.

    `broken` are the places of rows that cannot be shown.
    """

    rows: Sequence[Row[Any]]
    upto: int | None
    older: int | None
    broken: frozenset[int]


@use_case(read_only=True)
def events(connection: Connection, job_id: str, upto: int | None = None) -> LogPage:
    """Read a job's events up to a sequence number."""
    columns = EVENTS.c[
        "sequence", "kind", "trial_number", "batch_size", "why", "outcome", "cost", "happened_at"
    ]
    query = select(*columns).where(EVENTS.c.job_id == job_id)
    return _page(connection, query, EVENTS, upto)


@use_case(read_only=True)
def reports(
    connection: Connection, job_id: str, trial_number: int, upto: int | None = None
) -> LogPage:
    """Read a trial's reports up to a sequence number, with the decisions on them."""
    columns = [each for each in REPORTS.c if each.name not in ("job_id", "trial_number")]
    query = select(*columns).where(
        REPORTS.c.job_id == job_id, REPORTS.c.trial_number == trial_number
    )
    return _page(connection, query, REPORTS, upto)


def _page(connection: Connection, query: Select[Any], table: Table, upto: int | None) -> LogPage:
    if upto is not None:
        query = query.where(table.c.sequence <= upto)
    query = query.order_by(table.c.sequence.desc()).limit(SIZE + 1)
    rows = connection.execute(query).all()
    older = rows[SIZE].sequence if len(rows) > SIZE else None
    broken = [place for place, row in enumerate(rows) if not is_sound(row, table)]
    return LogPage(rows[:SIZE], upto, older, frozenset(broken))
