"""What jobs have saved, in the database: the eras of a job, and sums over trials, eras and jobs.

`savings` computes; here its values are loaded and stored. What changes a job is called with the
job's row locked.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from datetime import UTC, date, datetime
from typing import Any

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Row,
    bindparam,
    case,
    cast,
    delete,
    func,
    insert,
    literal_column,
    select,
    update,
)
from sqlalchemy.orm import Session

from zeus_service.bandit.spec import Hardware, JobSpec
from zeus_service.db import tables
from zeus_service.db.session import unix_now
from zeus_service.db.tables import Job, PowerProfile, Trial
from zeus_service.savings.expected import Expected
from zeus_service.savings.ledger import Era, record, with_spending_of
from zeus_service.savings.power import Profiles
from zeus_service.savings.report import Amounts, Estimate, saved

_WEEK_S = 7 * 86400
_SINCE_MONDAY_S = 3 * 86400
"""Seconds from a Monday to the beginning of 1970, a Thursday."""


def record_end(session: Session, job: Job, spec: JobSpec, trial: Trial) -> None:
    """Add a trial that has just ended to a locked job's savings."""
    before, profiles = load_eras(session, job), default_profiles(session, job, spec)
    job.ledger, eras, trial.era = record(spec, job.ledger, before, trial, profiles)
    _store(session, job, eras, before)


def take_back(session: Session, job: Job, trial: Trial, others: Iterable[Any]) -> None:
    """Take what a trial had spent from the era that it counts in: it is running again.

    `others` are the job's other trials, in the order of their ends.
    """
    if trial.era is None:
        return
    before = load_eras(session, job)
    rest = [other for other in others if other.era == trial.era]
    eras = [with_spending_of(era, rest) if era.number == trial.era else era for era in before]
    trial.era = None
    _store(session, job, eras, before)


def replace(session: Session, job: Job, ledger: dict[str, Any], eras: Sequence[Era]) -> bool:
    """Replace a locked job's savings by rebuilt ones; return whether these are the same.

    Sums may differ by rounding. Eras may get other numbers: a trial that runs again ends later than
    the one that had opened its era.
    """
    before = _sums(job)
    session.connection().execute(_DELETE_ERAS, {"job": job.key})
    job.ledger = ledger
    _store(session, job, eras, ())
    pairs, scale = zip(before, _sums(job), strict=True), max(map(abs, before))
    return all(math.isclose(was, now, rel_tol=1e-6, abs_tol=1e-6 * scale) for was, now in pairs)


def _sums(job: Job) -> list[float]:
    """What a job has spent, and what it has saved of each quantity, with the errors."""
    return [job.spent_energy_j, *(getattr(job, name) or 0.0 for name in _SAVED)]


def default_profiles(session: Session, job: Job, spec: JobSpec) -> Profiles:
    """Read what was measured with a job's default batch size."""
    this = {"job": job.key, "size": spec.default_batch_size}
    return {
        (row.device_model, row.num_devices): sorted(
            (each["limit_w"], each["energy_j"], each["time_s"]) for each in row.profile["points"]
        )
        for row in session.connection().execute(_SELECT_PROFILES, this)
    }


def load_eras(session: Session, job: Job) -> list[Era]:
    """Read a job's eras, in the order of their numbers."""
    return list(map(_era, session.connection().execute(_SELECT_ERAS, {"job": job.key})))


def total(session: Session) -> tuple[Row[Any], Amounts]:
    """Sum what all jobs have saved; the errors of jobs are independent.

    Returns:
        A row, and what was saved. The row has the number of `jobs`, and how many of them have
        `known` savings. Of those, it has `since`, Unix seconds at which the first was registered
        (None without any); `spent_energy_j`, the joules that they have spent in the eras that
        count; and how many have an `estimated` part.
    """
    columns = [getattr(Job, name) for name in _SAVED]
    means = [func.coalesce(func.sum(column), 0.0) for column in columns[::2]]
    squares = [func.coalesce(func.sum(column * column), 0.0) for column in columns[1::2]]
    is_known = Job.saved_energy_j.is_not(None)
    query = select(
        func.count().label("jobs"),
        func.count(Job.saved_energy_j).label("known"),
        func.min(case((is_known, Job.created_at))).label("since"),
        func.coalesce(func.sum(Job.spent_energy_j), 0.0).label("spent_energy_j"),
        func.count(case((is_known & Job.estimated, 1))).label("estimated"),
        *means,
        *squares,
    ).where(Job.job_id.is_not(None))
    row = session.execute(query).one()
    return row, _saved(*_halves(row[-2 * len(_QUANTITIES) :]))


def by_week(session: Session, weeks: int) -> list[tuple[date, int, Amounts]]:
    """Sum up the latest weeks: the Monday, the recurrences, and what was saved.

    Errors of different jobs and eras count as independent: in few weeks does a job have two eras.

    Args:
        session: In a transaction.
        weeks: How many weeks, the current one included, by the database's clock.
    """
    era = tables.Era
    week = _week(Trial.ended_at).label("week")
    expected = [getattr(era, f"expected_{name}") for name in _EXPECTED]
    is_known = era.expected_energy_j.is_not(None)
    inner = (
        select(
            week,
            func.sum(case((Trial.outcome == "converged", 1), else_=0)).label("converged"),
            func.sum(Trial.energy_j).label("energy_j"),
            func.sum(Trial.time_s).label("time_s"),
            func.max(Trial.__table__.c.num_devices).label("devices"),  # an era's are the same
            *expected,
        )
        .join(era, (era.job_key == Trial.job_key) & (era.era == Trial.era))
        .join(Job, Job.key == Trial.job_key)
        .where(week > _week(unix_now()) - weeks, is_known, Job.job_id.is_not(None))
        .group_by(week, Trial.job_key, Trial.era, *expected)
        .subquery()
    )
    this, n = inner.c, inner.c.converged
    time_s, time_error_s = n * this.expected_time_s - this.time_s, n * this.expected_time_error_s
    parts = [
        (n * this.expected_energy_j - this.energy_j, n * this.expected_energy_error_j),
        (time_s, time_error_s),
        (this.devices * time_s, this.devices * time_error_s),
    ]
    means = [func.sum(mean) for mean, _ in parts]
    squares = [func.sum(error * error) for _, error in parts]
    query = select(this.week, func.sum(n), *means, *squares).group_by(this.week)
    rows = session.execute(query.order_by(this.week)).all()
    return [(_monday(row[0]), int(row[1]), _saved(*_halves(row[2:]))) for row in rows]


_QUANTITIES = tuple(Amounts.__dataclass_fields__)
_SAVED = tuple(f"saved_{name}{end}" for name in _QUANTITIES for end in ("", "_error"))
_EXPECTED = tuple(Expected.__dataclass_fields__)
# Built once: each end of a trial uses them.
_ERA = tables.Era.__table__
_SELECT_ERAS = select(_ERA).where(_ERA.c.job_key == bindparam("job")).order_by(_ERA.c.era)
_INSERT_ERA = insert(_ERA)
_UPDATE_ERA = update(_ERA).where(
    _ERA.c.job_key == bindparam("job"), _ERA.c.era == bindparam("number")
)
_DELETE_ERAS = delete(_ERA).where(_ERA.c.job_key == bindparam("job"))
_PROFILE = PowerProfile.__table__
_SELECT_PROFILES = select(_PROFILE).where(
    _PROFILE.c.job_key == bindparam("job"), _PROFILE.c.batch_size == bindparam("size")
)


def _week(instant: Any) -> ColumnElement[int]:
    """Weeks since the Monday before 1970, in UTC, of an instant in Unix seconds."""
    # Literals, not parameters: PostgreSQL groups by the expression only if it is the same text.
    since_monday_s, week_s = (
        literal_column(str(seconds), BigInteger) for seconds in (_SINCE_MONDAY_S, _WEEK_S)
    )
    weeks = (cast(instant, BigInteger) + since_monday_s) // week_s
    return cast(weeks, BigInteger)  # MariaDB's is a decimal number


def _monday(week: int) -> date:
    """The Monday, in UTC, on which a week begins that `_week` has numbered."""
    return datetime.fromtimestamp(week * _WEEK_S - _SINCE_MONDAY_S, UTC).date()


def _era(row: Any) -> Era:
    expected = None
    if row.expected_energy_j is not None:
        expected = Expected(*(getattr(row, f"expected_{name}") for name in _EXPECTED))
    spent = row.spent_energy_j, row.spent_time_s, row.spent_cost
    return Era(row.era, Hardware(**row.hardware), row.recurrences, *spent, expected)


def _store(session: Session, job: Job, eras: Sequence[Era], before: Sequence[Era]) -> None:
    """Store a job's eras, if they differ from those stored `before`, and what it has saved."""
    execute, stored = session.connection().execute, {era.number: era for era in before}
    for era in eras:
        spent = {"energy_j": era.energy_j, "time_s": era.time_s, "cost": era.cost}
        values = {
            "hardware": asdict(era.hardware),
            "recurrences": era.recurrences,
            **{f"spent_{name}": value for name, value in spent.items()},
            **{f"expected_{name}": getattr(era.expected, name, None) for name in _EXPECTED},
        }
        if era.number not in stored:
            execute(_INSERT_ERA, {"job_key": job.key, "era": era.number, **values})
        elif era != stored[era.number]:
            execute(_UPDATE_ERA, {"job": job.key, "number": era.number, **values})
    in_all = saved(eras)
    for name in _QUANTITIES:
        estimate = None if in_all is None else getattr(in_all, name)
        setattr(job, f"saved_{name}", None if estimate is None else estimate.estimate)
        setattr(job, f"saved_{name}_error", None if estimate is None else estimate.error)
    job.spent_energy_j = sum(era.energy_j for era in eras if era.expected)


def _halves(values: Sequence[float]) -> tuple[Sequence[float], Sequence[float]]:
    return values[: len(_QUANTITIES)], values[len(_QUANTITIES) :]


def _saved(means: Sequence[float], squares: Sequence[float]) -> Amounts:
    pairs = zip(means, squares, strict=True)
    return Amounts(*(Estimate.of(mean, square**0.5) for mean, square in pairs))
