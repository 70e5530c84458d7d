"""The tables. Instants are Unix seconds, so that every database stores them the same way."""

from __future__ import annotations

from typing import Annotated, Any

import sqlalchemy as sa
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy.dialects.postgresql import VARCHAR
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column


class Base(DeclarativeBase):
    """Base of the tables; constraints have names, so that migrations can alter them."""

    metadata = sa.MetaData(
        naming_convention={
            "ix": "ix_%(table_name)s_%(column_0_N_name)s",
            "uq": "uq_%(table_name)s_%(column_0_N_name)s",
            "fk": "fk_%(table_name)s_%(column_0_N_name)s_%(referred_table_name)s",
            "pk": "pk_%(table_name)s",
        }
    )


# Not in `Base`, which Flask-SQLAlchemy copies: SQLAlchemy accepts no map beside a registry.
Base.registry.update_type_annotation_map({float: sa.Double, dict[str, Any]: sa.JSON})


db = SQLAlchemy(model_class=Base, disable_autonaming=True)

_TABLE = {
    "mysql_engine": "InnoDB",
    "mysql_charset": "utf8mb4",
    "mysql_collate": "utf8mb4_bin",  # by default, "Job" equals "job"
}
_Id = sa.String(300).with_variant(VARCHAR(300, collation="C"), "postgresql")
"""Compared and ordered by its bytes on every database, and not by the operating system's locale,
whose upgrades break indices."""
_JobId = Annotated[
    str, mapped_column(_Id, sa.ForeignKey("jobs.job_id", ondelete="CASCADE"), primary_key=True)
]


# type: ignore, since Flask-SQLAlchemy makes `db.Model` at run time.
class JobRow(db.Model):  # type: ignore[name-defined, misc]
    """A recurring job and its bandit state: the fold of its events."""

    __tablename__ = "jobs"
    # Each start and end writes a new version of the row. While half of a page is free, PostgreSQL
    # stores the versions on that page, and removes old ones when it reads the page.
    __table_args__ = ({**_TABLE, "postgresql_with": {"fillfactor": 50}},)

    job_id: Mapped[str] = mapped_column(_Id, primary_key=True)
    spec: Mapped[dict[str, Any]]
    state: Mapped[dict[str, Any]]
    cost_bound: Mapped[float | None]
    """Derived from the state, so that a report need not read it."""
    trials: Mapped[int]
    """Trials started so far; the number of the latest."""
    events: Mapped[int]
    """Events recorded so far; the sequence of the latest."""
    created_at: Mapped[float]
    updated_at: Mapped[float]
    ledger: Mapped[dict[str, Any]]
    """What the job has spent, and what its default is expected to spend: see `savings.ledger`.
    The columns below are derived from it, for sums over jobs and to sort them."""
    estimated: Mapped[bool]
    """Whether the job's meter estimates."""
    saved_energy_j: Mapped[float | None]
    """Joules saved so far; null without an expectation, as all that follow."""
    saved_energy_j_error: Mapped[float | None]
    """Half the width of the 95 % interval."""
    saved_time_s: Mapped[float | None]
    saved_time_s_error: Mapped[float | None]
    saved_cost: Mapped[float | None]
    saved_cost_error: Mapped[float | None]
    # What lists of jobs show, sort and filter by; see `store.standing`.
    stage: Mapped[str] = mapped_column(sa.String(255))
    best_batch_size: Mapped[int | None]
    exploits: Mapped[int]
    failures: Mapped[int]


class TrialRow(db.Model):  # type: ignore[name-defined, misc]
    """One run of a job. `outcome` is null while it runs; figures are those of its last report."""

    __tablename__ = "trials"
    # The index finds a job's running trials. PostgreSQL keeps plans that it made when the table was
    # empty: with the job first in the index, it would use it to look up single trials; were it not
    # partial, it would find running trials by the primary key. Both read all trials of the job.
    __table_args__ = (
        sa.Index(None, "outcome", "job_id", postgresql_where=sa.text("outcome IS NULL")),
        _TABLE,
    )

    job_id: Mapped[_JobId]
    trial_number: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    generation: Mapped[str] = mapped_column(sa.String(32))
    """Random, of this start: numbers are used again after the job was deleted or restored."""
    idempotency_key: Mapped[str | None] = mapped_column(_Id, unique=True)
    batch_size: Mapped[int]
    why: Mapped[str] = mapped_column(sa.String(32))
    start_reason: Mapped[str] = mapped_column(sa.String(255))
    start_cost_bound: Mapped[float | None]
    outcome: Mapped[str | None] = mapped_column(sa.String(32))
    reason: Mapped[str] = mapped_column(sa.String(1000))
    started_at: Mapped[float]
    ended_at: Mapped[float | None]
    lease_expires_at: Mapped[float]
    reports: Mapped[int]
    """Sequence of the last report; 0 before the first."""
    epoch: Mapped[int]
    time_s: Mapped[float]
    energy_j: Mapped[float]
    metric: Mapped[float | None]
    cost: Mapped[float]
    power_limit_w: Mapped[float | None]
    """Mean of the GPUs' power limit over the run's time; null if a report had none."""
    default_power_limit_w: Mapped[float | None]


class ReportRow(db.Model):  # type: ignore[name-defined, misc]
    """A report of a run, and the answer to it."""

    __tablename__ = "reports"
    __table_args__ = (
        sa.ForeignKeyConstraint(
            ["job_id", "trial_number"], ["trials.job_id", "trials.trial_number"], ondelete="CASCADE"
        ),
        _TABLE,
    )

    job_id: Mapped[str] = mapped_column(_Id, primary_key=True)
    trial_number: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    sequence: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    epoch: Mapped[int]
    time_s: Mapped[float]
    energy_j: Mapped[float]
    metric: Mapped[float]
    decision: Mapped[str] = mapped_column(sa.String(32))
    outcome: Mapped[str | None] = mapped_column(sa.String(32))
    cost: Mapped[float]
    cost_bound: Mapped[float | None]
    reason: Mapped[str] = mapped_column(sa.String(1000))
    reported_at: Mapped[float]
    power_limit_w: Mapped[float | None]
    """In force; the default one, which changes only with the GPU, is in the trial's row."""


class EventRow(db.Model):  # type: ignore[name-defined, misc]
    """An event of a job's append-only history; see `zeus_service.bandit.fold`."""

    __tablename__ = "events"
    __table_args__ = _TABLE

    job_id: Mapped[_JobId]
    sequence: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    kind: Mapped[str] = mapped_column(sa.String(32))
    trial_number: Mapped[int]
    batch_size: Mapped[int]
    why: Mapped[str] = mapped_column(sa.String(32))
    outcome: Mapped[str | None] = mapped_column(sa.String(32))
    cost: Mapped[float]
    happened_at: Mapped[float]


class CheckpointRow(db.Model):  # type: ignore[name-defined, misc]
    """A job's state after the events that were dropped; see `zeus_service.db.checkpoints`."""

    __tablename__ = "checkpoints"
    __table_args__ = _TABLE

    job_id: Mapped[_JobId]
    sequence: Mapped[int]
    """The last event that the state contains."""
    state: Mapped[dict[str, Any]]


class PowerProfileRow(db.Model):  # type: ignore[name-defined, misc]
    """Measurements at the power limits of a GPU model; see `messages.PowerProfile`."""

    __tablename__ = "power_profiles"
    __table_args__ = _TABLE

    job_id: Mapped[_JobId]
    batch_size: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    device_model: Mapped[str] = mapped_column(_Id, primary_key=True)
    profile: Mapped[dict[str, Any]]
    updated_at: Mapped[float]


class SavedOnDayRow(db.Model):  # type: ignore[name-defined, misc]
    """By how much a job's savings changed on a day.

    Those of all days add up to the job's savings, which change with the expectation, too.
    """

    __tablename__ = "saved_on_days"
    __table_args__ = (sa.Index(None, "job_id"), _TABLE)

    day: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    """Days since 1970, in UTC."""
    job_id: Mapped[_JobId]
    recurrences: Mapped[int]
    """Runs that converged."""
    energy_j: Mapped[float]
    energy_j_error: Mapped[float]
    """Half the width of the 95 % interval, for each recurrence."""
    time_s: Mapped[float]
    time_s_error: Mapped[float]
    cost: Mapped[float]
    cost_error: Mapped[float]


class SecretRow(db.Model):  # type: ignore[name-defined, misc]
    """A secret that all replicas share; see `zeus_service.db.secret_key`."""

    __tablename__ = "secrets"
    __table_args__ = _TABLE

    name: Mapped[str] = mapped_column(sa.String(32), primary_key=True)
    value: Mapped[str] = mapped_column(sa.String(255))


JOBS: sa.Table = JobRow.__table__
TRIALS: sa.Table = TrialRow.__table__
REPORTS: sa.Table = ReportRow.__table__
EVENTS: sa.Table = EventRow.__table__
CHECKPOINTS: sa.Table = CheckpointRow.__table__
POWER_PROFILES: sa.Table = PowerProfileRow.__table__
SAVED_ON_DAYS: sa.Table = SavedOnDayRow.__table__
SECRETS: sa.Table = SecretRow.__table__
