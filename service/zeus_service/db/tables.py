"""The tables. Instants are Unix seconds, so that every database stores them the same way.

A job's trials are its history: `Trial.ended_seq` orders the ends from which its state follows, and
`Trial.started_seq` places each start among them. Trials are kept as long as their job.
"""

from __future__ import annotations

from typing import Annotated, Any

import sqlalchemy as sa
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy.dialects.postgresql import VARCHAR
from sqlalchemy.orm import DeclarativeBase, Mapped, composite, mapped_column

from zeus_service.bandit.spec import Hardware
from zeus_service.db.session import unix_now


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


# Not in `Base`, which Flask-SQLAlchemy copies: SQLAlchemy accepts a map or a registry, not both.
Base.registry.update_type_annotation_map(
    {float: sa.Double, dict[str, Any]: sa.JSON, list[Any]: sa.JSON}
)


db = SQLAlchemy(model_class=Base, disable_autonaming=True)

_TABLE = {
    "mysql_engine": "InnoDB",
    "mysql_charset": "utf8mb4",
    "mysql_collate": "utf8mb4_bin",  # by default, "Job" equals "job"
}
_Id = sa.String(300).with_variant(VARCHAR(300, collation="C"), "postgresql")
"""Compared and ordered by its bytes on every database, and not by the operating system's locale,
whose upgrades break indices."""
_JobKey = Annotated[
    int,
    mapped_column(sa.ForeignKey("jobs.key"), primary_key=True, autoincrement=False),
]
_Number = Annotated[int, mapped_column(primary_key=True, autoincrement=False)]
_Inserted = Annotated[float, mapped_column(default=unix_now())]
"""When the row was inserted."""
_Changed = Annotated[float, mapped_column(default=unix_now(), onupdate=unix_now())]
"""When the row was last changed."""

MAX_REASON = 1000
"""Characters of a reason that is stored; longer ones are shortened."""


# type: ignore, since Flask-SQLAlchemy makes `db.Model` at run time.
class Job(db.Model):  # type: ignore[name-defined, misc]
    """A recurring job and its bandit state: the replay of its trials."""

    __tablename__ = "jobs"
    # Each start and end writes a new version of the row. While half of a page is free, PostgreSQL
    # stores the versions on that page, and removes old ones when it reads the page.
    __table_args__ = ({**_TABLE, "postgresql_with": {"fillfactor": 50}},)

    key: Mapped[int] = mapped_column(primary_key=True)
    job_id: Mapped[str | None] = mapped_column(_Id, unique=True)
    """Null once the job is deleted: `maintenance` removes its rows in small steps."""
    trials: Mapped[int]
    """Number of the latest trial."""
    sequence: Mapped[int]
    """Counts starts, ends and revivals of trials: `started_seq` and `ended_seq` come from it."""
    created_at: Mapped[_Inserted]
    updated_at: Mapped[_Changed]
    keeps_hardware: Mapped[bool]
    """Whether a client of the Zeus project has registered it, with its hardware."""
    estimated: Mapped[bool]
    """Whether any meter of its hardware estimates: all that it has saved is an estimate then."""
    exhausted: Mapped[bool]
    """Whether every batch size has failed on the latest hardware; false before the target is
    known."""
    best_batch_size: Mapped[int | None]
    """On the latest hardware."""
    exploits: Mapped[int]
    """Latest choices in a row that were for the best batch size."""
    failures: Mapped[int]
    """Latest ends in a row that neither converged nor completed, without withdrawn trials."""
    completed_baselines: Mapped[int]
    """Baselines that trained to completion. The last one needed sets the specification's
    `target_metric`, which is null until then."""
    saved_energy_j: Mapped[float | None]
    """Sum over the job's eras; null while nothing is known of the default's cost."""
    saved_energy_j_error: Mapped[float | None]
    """Half the width of the 95 % interval."""
    saved_time_s: Mapped[float | None]
    saved_time_s_error: Mapped[float | None]
    saved_gpu_time_s: Mapped[float | None]
    saved_gpu_time_s_error: Mapped[float | None]
    spent_energy_j: Mapped[float]
    """By all trials of the eras that `saved_energy_j` is a sum over."""
    # Last, since SQLite reads past what comes before a column.
    spec: Mapped[dict[str, Any]]
    hardware: Mapped[list[Any]]
    """All hardware that its trials have used; the latest comes last. Each has the fields of
    `bandit.spec.Hardware`, and with them what follows from the state, so that a report after which
    its run continues does not load that: `best_batch_size` and `cost_bound`, the early-stopping
    threshold in joules."""
    state: Mapped[dict[str, Any]] = mapped_column(deferred=True, deferred_group="state")
    """The policy's state; large, so it is loaded only where it is needed."""
    inconclusive: Mapped[dict[str, Any]] = mapped_column(deferred=True, deferred_group="state")
    """Counts of ends without a result: see `bandit.fold`."""
    ledger: Mapped[dict[str, Any]] = mapped_column(deferred=True, deferred_group="state")
    """What is known of the costs of its batch sizes, for savings: see `savings.ledger`."""


class Trial(db.Model):  # type: ignore[name-defined, misc]
    """One attempt to train with a batch size. Measured values are those of its last report."""

    __tablename__ = "trials"
    # The first index finds a job's running trials. PostgreSQL keeps plans that it made when the
    # table was empty: with the job first in the index, it would use it to look up single trials;
    # were it not partial, it would find running trials by the primary key.
    __table_args__ = (
        sa.Index(None, "outcome", "job_key", postgresql_where=sa.text("outcome IS NULL")),
        sa.Index(None, "idempotency_key"),
        _TABLE,
    )

    job_key: Mapped[_JobKey]
    trial_number: Mapped[_Number]
    generation: Mapped[str] = mapped_column(sa.String(32))
    """Random: a trial of the same number exists again after a job was deleted or restored."""
    idempotency_key: Mapped[str | None] = mapped_column(_Id)
    batch_size: Mapped[int]
    hardware: Mapped[Hardware] = composite(
        mapped_column("device_model", sa.String(255)),
        mapped_column("num_devices"),
        mapped_column("max_power_w"),
        mapped_column("meter", sa.String(255)),
        mapped_column("estimated"),
    )
    why: Mapped[str] = mapped_column(sa.String(32))
    start_reason: Mapped[str] = mapped_column(sa.String(MAX_REASON))
    start_cost_bound: Mapped[float | None]
    outcome: Mapped[str | None] = mapped_column(sa.String(32))
    """Null while it runs."""
    reason: Mapped[str] = mapped_column(sa.String(MAX_REASON))
    started_seq: Mapped[int]
    ended_seq: Mapped[int | None]
    started_at: Mapped[_Inserted]
    ended_at: Mapped[float | None]
    lease_expires_at: Mapped[float]
    reports: Mapped[int]
    """Sequence number of the last report; 0 before the first."""
    epoch: Mapped[int]
    time_s: Mapped[float]
    energy_j: Mapped[float]
    metric: Mapped[float | None]
    cost: Mapped[float]
    power_limit_w: Mapped[float | None]
    """Mean of the GPUs' power limit over the run's time; null if a report had none."""
    default_power_limit_w: Mapped[float | None]
    host_load: Mapped[float | None]
    era: Mapped[int | None]
    """The era of the job's savings that its end counts in; see `savings`."""


class Report(db.Model):  # type: ignore[name-defined, misc]
    """A report of a run, and the answer to it."""

    __tablename__ = "reports"
    __table_args__ = (
        sa.ForeignKeyConstraint(
            ["job_key", "trial_number"], ["trials.job_key", "trials.trial_number"]
        ),
        _TABLE,
    )

    job_key: Mapped[_Number]
    trial_number: Mapped[_Number]
    sequence: Mapped[_Number]
    epoch: Mapped[int]
    time_s: Mapped[float]
    energy_j: Mapped[float]
    metric: Mapped[float]
    decision: Mapped[str] = mapped_column(sa.String(32))
    outcome: Mapped[str | None] = mapped_column(sa.String(32))
    cost: Mapped[float]
    cost_bound: Mapped[float | None]
    reason: Mapped[str] = mapped_column(sa.String(MAX_REASON))
    reported_at: Mapped[_Inserted]
    power_limit_w: Mapped[float | None]
    """At the time of the report; the default limit, which changes only with the GPU, is in the
    trial's row."""


class Era(db.Model):  # type: ignore[name-defined, misc]
    """A span of a job's history on one hardware in which its default batch size cost the same."""

    __tablename__ = "eras"
    __table_args__ = _TABLE

    job_key: Mapped[_JobKey]
    era: Mapped[_Number]
    recurrences: Mapped[int]
    """Trials that converged."""
    spent_energy_j: Mapped[float]
    spent_time_s: Mapped[float]
    spent_cost: Mapped[float]
    expected_energy_j: Mapped[float | None]
    """Of one run of the default; null while nothing is known, like the columns below."""
    expected_energy_error_j: Mapped[float | None]
    """Half the width of the 95 % interval."""
    expected_time_s: Mapped[float | None]
    expected_time_error_s: Mapped[float | None]
    hardware: Mapped[dict[str, Any]]


class PowerProfile(db.Model):  # type: ignore[name-defined, misc]
    """Measurements at the power limits of some GPUs; see `api.messages.PowerProfile`."""

    __tablename__ = "power_profiles"
    __table_args__ = _TABLE

    job_key: Mapped[_JobKey]
    batch_size: Mapped[_Number]
    device_model: Mapped[str] = mapped_column(_Id, primary_key=True)
    num_devices: Mapped[_Number]
    profile: Mapped[dict[str, Any]]
    updated_at: Mapped[_Changed]


class Secret(db.Model):  # type: ignore[name-defined, misc]
    """A secret that all replicas share."""

    __tablename__ = "secrets"
    __table_args__ = _TABLE

    name: Mapped[str] = mapped_column(sa.String(32), primary_key=True)
    value: Mapped[str] = mapped_column(sa.String(255))
