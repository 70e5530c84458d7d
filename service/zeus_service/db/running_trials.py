"""A job's running trials, and how far they have come."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import ColumnElement, Connection, FromClause, and_, select

from zeus_service.db.damage import fits, is_sound
from zeus_service.db.tables import REPORTS, TRIALS
from zeus_service.db.transactions import use_case

SHOWN = 20
"""Running trials that are shown of a job, those that were started last."""

_FIRST = REPORTS.alias("first_report")
_LAST = REPORTS.alias("last_report")


def _report_of_trial(report: FromClause, sequence: Any) -> ColumnElement[bool]:
    return and_(
        report.c.job_id == TRIALS.c.job_id,
        report.c.trial_number == TRIALS.c.trial_number,
        report.c.sequence == sequence,
    )


@use_case(read_only=True)
def read(connection: Connection, job_id: str) -> Sequence[Any]:
    """Read a job's running trials, with `first_metric` and `reported_at` of their reports.

    Those that cannot be shown are left out; the list of trials has them as broken.
    """
    columns = TRIALS.c[
        *("trial_number", "batch_size", "why", "start_reason", "started_at", "lease_expires_at"),
        *("reports", "epoch", "time_s", "energy_j", "metric", "cost", "start_cost_bound"),
    ]
    query = (
        select(*columns, _FIRST.c.metric.label("first_metric"), _LAST.c.reported_at)
        .outerjoin(_FIRST, _report_of_trial(_FIRST, 1))
        .outerjoin(_LAST, _report_of_trial(_LAST, TRIALS.c.reports))
        .where(TRIALS.c.job_id == job_id, TRIALS.c.outcome.is_(None))
        .order_by(TRIALS.c.trial_number.desc())
        .limit(SHOWN)
    )
    rows = connection.execute(query).all()
    return [row for row in rows if is_sound(row, TRIALS) and _has_sound_reports(row)]


def _has_sound_reports(row: Any) -> bool:
    values = {"metric": row.first_metric, "reported_at": row.reported_at}
    return all(value is None or fits(value, REPORTS.c[name]) for name, value in values.items())
