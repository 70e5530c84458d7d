"""The tables. Instants are Unix seconds, so that every database keeps them alike."""

from __future__ import annotations

from typing import Any

from sqlalchemy import JSON, Double, ForeignKey, ForeignKeyConstraint, Index, String, Table, text
from sqlalchemy.dialects.postgresql import VARCHAR
from sqlalchemy.orm import Mapped, mapped_column

from zeus_service.extensions import db

_TABLE = {
    "mysql_engine": "InnoDB",
    "mysql_charset": "utf8mb4",
    "mysql_collate": "utf8mb4_bin",  # the default takes "Job" for "job"
}
_Id = String(255).with_variant(VARCHAR(255, collation="C"), "postgresql")
"""Compared and ordered by its bytes: alike everywhere, and not by the operating system's locale,
whose upgrades break indices."""


# The comments to the type checker: Flask-SQLAlchemy makes `db.Model` when it runs.
class Job(db.Model):  # type: ignore[name-defined, misc]
    """A recurring job and its bandit state: the fold of its events."""

    __tablename__ = "jobs"
    # Each start and end writes the row anew: PostgreSQL keeps the versions on one page, and clears
    # them away as it reads it, while half of the page is free.
    __table_args__ = ({**_TABLE, "postgresql_with": {"fillfactor": 50}},)

    job_id: Mapped[str] = mapped_column(_Id, primary_key=True)
    spec: Mapped[dict[str, Any]] = mapped_column(JSON)
    state: Mapped[dict[str, Any]] = mapped_column(JSON)
    cost_bound: Mapped[float | None] = mapped_column(Double)
    """Derived from the state, so that a report need not read it."""
    trials: Mapped[int]
    """Trials started so far; the number of the latest."""
    events: Mapped[int]
    """Events recorded so far; the sequence of the latest."""
    created_at: Mapped[float] = mapped_column(Double)
    updated_at: Mapped[float] = mapped_column(Double)


class Trial(db.Model):  # type: ignore[name-defined, misc]
    """One run of a job. `outcome` is null while it runs; figures are those of its last report."""

    __tablename__ = "trials"
    # For the running trials of a job with many. PostgreSQL plans while the table is empty and has
    # no statistics: were the job first, it would look up single trials by this index; were it not
    # partial, running trials by the primary key. Either goes through all trials of the job.
    __table_args__ = (
        Index(None, "outcome", "job_id", postgresql_where=text("outcome IS NULL")),
        _TABLE,
    )

    job_id: Mapped[str] = mapped_column(
        _Id, ForeignKey("jobs.job_id", ondelete="CASCADE"), primary_key=True
    )
    trial_number: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    idempotency_key: Mapped[str | None] = mapped_column(_Id, unique=True)
    batch_size: Mapped[int]
    why: Mapped[str] = mapped_column(String(32))
    start_reason: Mapped[str] = mapped_column(String(255))
    start_cost_bound: Mapped[float | None] = mapped_column(Double)
    outcome: Mapped[str | None] = mapped_column(String(32))
    reason: Mapped[str] = mapped_column(String(1000))
    started_at: Mapped[float] = mapped_column(Double)
    ended_at: Mapped[float | None] = mapped_column(Double)
    lease_expires_at: Mapped[float] = mapped_column(Double)
    reports: Mapped[int]
    """Sequence of the last report; 0 before the first."""
    epoch: Mapped[int]
    time_s: Mapped[float] = mapped_column(Double)
    energy_j: Mapped[float] = mapped_column(Double)
    metric: Mapped[float | None] = mapped_column(Double)
    cost: Mapped[float] = mapped_column(Double)


class Report(db.Model):  # type: ignore[name-defined, misc]
    """What a run reported, and what it was answered."""

    __tablename__ = "reports"
    __table_args__ = (
        ForeignKeyConstraint(
            ["job_id", "trial_number"],
            ["trials.job_id", "trials.trial_number"],
            ondelete="CASCADE",
        ),
        _TABLE,
    )

    job_id: Mapped[str] = mapped_column(_Id, primary_key=True)
    trial_number: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    sequence: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    epoch: Mapped[int]
    time_s: Mapped[float] = mapped_column(Double)
    energy_j: Mapped[float] = mapped_column(Double)
    metric: Mapped[float] = mapped_column(Double)
    decision: Mapped[str] = mapped_column(String(32))
    outcome: Mapped[str | None] = mapped_column(String(32))
    cost: Mapped[float] = mapped_column(Double)
    cost_bound: Mapped[float | None] = mapped_column(Double)
    reason: Mapped[str] = mapped_column(String(1000))
    reported_at: Mapped[float] = mapped_column(Double)


class Event(db.Model):  # type: ignore[name-defined, misc]
    """A line of a job's append-only history; see `zeus_service.history`."""

    __tablename__ = "events"
    __table_args__ = _TABLE

    job_id: Mapped[str] = mapped_column(
        _Id, ForeignKey("jobs.job_id", ondelete="CASCADE"), primary_key=True
    )
    sequence: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    kind: Mapped[str] = mapped_column(String(32))
    trial_number: Mapped[int]
    batch_size: Mapped[int]
    why: Mapped[str] = mapped_column(String(32))
    outcome: Mapped[str | None] = mapped_column(String(32))
    cost: Mapped[float] = mapped_column(Double)
    happened_at: Mapped[float] = mapped_column(Double)


class PowerProfile(db.Model):  # type: ignore[name-defined, misc]
    """What a batch takes at each power limit of a GPU model; see `zeus_service.power_profiles`."""

    __tablename__ = "power_profiles"
    __table_args__ = _TABLE

    job_id: Mapped[str] = mapped_column(
        _Id, ForeignKey("jobs.job_id", ondelete="CASCADE"), primary_key=True
    )
    batch_size: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    device_model: Mapped[str] = mapped_column(_Id, primary_key=True)
    profile: Mapped[dict[str, Any]] = mapped_column(JSON)
    updated_at: Mapped[float] = mapped_column(Double)


JOBS: Table = Job.__table__
TRIALS: Table = Trial.__table__
REPORTS: Table = Report.__table__
EVENTS: Table = Event.__table__
POWER_PROFILES: Table = PowerProfile.__table__
