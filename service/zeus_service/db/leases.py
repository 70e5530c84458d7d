"""Leases of running trials: what extends them, and what happens when they expire.

A start and each report set a new `lease_expires_at` together with their other values. A heartbeat
extends the lease alone. The next start of the job, or its registration with another configuration,
marks the trials whose lease has expired as lost.
"""

from typing import Any

from sqlalchemy import Connection, Row, and_, bindparam, select, update

from zeus_service.bandit.fold import EVENT, Event
from zeus_service.db.clock import unix_now
from zeus_service.db.damage import reading
from zeus_service.db.tables import TRIALS
from zeus_service.messages import Trial

# Unordered: to order them, SQLite would read all trials of the job.
_OF_EVENT = TRIALS.c["trial_number", "batch_size", "why", "cost", "energy_j", "time_s"]
EXPIRED = select(*_OF_EVENT).where(
    TRIALS.c.job_id == bindparam("this_job"),
    TRIALS.c.outcome.is_(None),
    TRIALS.c.lease_expires_at < unix_now(),
)
"""Running trials of a job whose lease has expired; see `statements` for the parameters."""

IN_FORCE = and_(TRIALS.c.outcome.is_(None), TRIALS.c.lease_expires_at >= unix_now())
"""Running trials whose lease has not expired; the index on `outcome` finds them."""

_LOCKED_EXPIRED = EXPIRED.with_for_update()  # reports lock no job
_EXTENDED = (
    update(TRIALS)
    .where(
        TRIALS.c.job_id == bindparam("this_job"),
        TRIALS.c.trial_number == bindparam("this_trial"),
        TRIALS.c.outcome.is_(None),
    )
    .values(
        lease_expires_at=unix_now() + bindparam("lease_s", type_=TRIALS.c.lease_expires_at.type)
    )
)


def extend(connection: Connection, trial: Trial, lease_s: float) -> bool:
    """Extend the lease of a trial from now on; return False if the trial has ended."""
    this = {"this_job": trial.job_id, "this_trial": trial.trial_number}
    return connection.execute(_EXTENDED, {**this, "lease_s": lease_s}).rowcount > 0


def mark_expired_lost(connection: Connection, job_id: str) -> list[Event]:
    """Mark running trials whose lease has expired as lost; return the events to append to the job.

    The job must be locked.
    """
    expired = connection.execute(_LOCKED_EXPIRED, {"this_job": job_id}).all()
    if not expired:
        return []
    events = [_loss(job_id, row) for row in expired]
    numbers = [event.trial_number for event in events]
    connection.execute(
        update(TRIALS)
        .where(TRIALS.c.job_id == job_id, TRIALS.c.trial_number.in_(numbers))
        .values(outcome="lost", ended_at=unix_now(), reason="its lease ran out")
    )
    return sorted(events, key=lambda event: event.trial_number)


def _loss(job_id: str, row: Row[Any]) -> Event:
    with reading(f"trial {row.trial_number} of job {job_id!r}"):
        values = dict(row._mapping)
        return EVENT.validate_python(
            {**values, "choice": values, "kind": "ended", "outcome": "lost"}
        )
