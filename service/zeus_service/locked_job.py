"""A job under its lock: events are recorded and the state advances together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from sqlalchemy import Connection, Row, bindparam, insert, select, update

from zeus_service import history
from zeus_service.errors import no_job
from zeus_service.models import EVENTS, JOBS, TRIALS
from zeus_service.policies import Choice, policy_of
from zeus_service.signals import announce, trial_ended
from zeus_service.spec import JobSpec

# Made once, as those of `optimizer`.
_THIS_JOB = JOBS.c.job_id == bindparam("job")
_LOCKED = select(JOBS).where(_THIS_JOB).with_for_update(key_share=True)
_EXPIRED = (
    select(TRIALS.c.trial_number, TRIALS.c.batch_size, TRIALS.c.why, TRIALS.c.cost)
    .where(
        TRIALS.c.job_id == bindparam("job"),
        TRIALS.c.outcome.is_(None),
        TRIALS.c.lease_expires_at < bindparam("now"),
    )
    .with_for_update()  # a report may be extending the lease right now
)
_NEW_EVENTS = insert(EVENTS)
_SAVE = update(JOBS).where(_THIS_JOB)


@dataclass
class LockedJob:
    """A job whose row this transaction has locked, and its state as it changes."""

    connection: Connection
    row: Row[Any]
    spec: JobSpec
    state: dict[str, Any]
    events: list[history.Event]

    @classmethod
    def take(cls, connection: Connection, job_id: str) -> LockedJob:
        """Lock the job: FOR NO KEY UPDATE, FOR UPDATE, or what `BEGIN IMMEDIATE` has locked."""
        row = connection.execute(_LOCKED, {"job": job_id}).one_or_none()
        if row is None:
            raise no_job(job_id)
        return cls(connection, row, JobSpec.model_validate(row.spec), row.state, [])

    def append(self, event: history.Event) -> None:
        """Record an event and advance the state by it."""
        self.state = history.apply(self.spec, self.state, event)
        self.events.append(event)
        if event.outcome is not None:
            announce(self.connection, trial_ended, event.outcome)

    def cost_bound(self) -> float | None:
        """The early-stop bound in joules; None: no bound."""
        bound = policy_of(self.spec).cost_bound(self.spec, self.state)
        return bound if np.isfinite(bound) else None

    def lose_expired(self, now: float) -> None:
        """Mark running trials whose lease has run out as lost."""
        # Ordered below: asked for an order, SQLite goes through all trials of the job.
        rows = self.connection.execute(_EXPIRED, {"job": self.row.job_id, "now": now}).all()
        if not rows:
            return
        self.connection.execute(
            update(TRIALS)
            .where(
                TRIALS.c.job_id == self.row.job_id,
                TRIALS.c.trial_number.in_([row.trial_number for row in rows]),
            )
            .values(outcome="lost", ended_at=now, reason="its lease ran out")
        )
        for row in sorted(rows, key=lambda row: row.trial_number):
            choice = Choice(row.batch_size, row.why)
            self.append(history.Event("ended", row.trial_number, choice, "lost", row.cost))

    def save(self, now: float, **values: Any) -> None:
        """Write the new events and the state they lead to."""
        first = self.row.events + 1
        if self.events:
            self.connection.execute(
                _NEW_EVENTS,
                [
                    {
                        "job_id": self.row.job_id,
                        "sequence": sequence,
                        "kind": event.kind,
                        "trial_number": event.trial_number,
                        "batch_size": event.choice.batch_size,
                        "why": event.choice.why,
                        "outcome": event.outcome,
                        "cost": event.cost,
                        "happened_at": now,
                    }
                    for sequence, event in enumerate(self.events, first)
                ],
            )
        self.connection.execute(
            _SAVE,
            {
                "job": self.row.job_id,
                "state": self.state,
                "cost_bound": self.cost_bound(),
                "events": self.row.events + len(self.events),
                "updated_at": now,
                **values,
            },
        )
