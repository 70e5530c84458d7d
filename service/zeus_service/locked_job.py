"""A job under its lock: events are recorded and the state advances together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from sqlalchemy import Connection, Row, and_, insert, select, update

from zeus_service import history
from zeus_service.errors import no_job
from zeus_service.models import EVENTS, JOBS, TRIALS
from zeus_service.policies import Choice, policy_of
from zeus_service.spec import JobSpec


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
        row = connection.execute(
            select(JOBS).where(JOBS.c.job_id == job_id).with_for_update(key_share=True)
        ).one_or_none()
        if row is None:
            raise no_job(job_id)
        return cls(connection, row, JobSpec.model_validate(row.spec), row.state, [])

    def append(self, event: history.Event) -> None:
        """Record an event and advance the state by it."""
        self.state = history.apply(self.spec, self.state, event)
        self.events.append(event)

    def cost_bound(self) -> float | None:
        """The early-stop bound in joules; None: no bound."""
        bound = policy_of(self.spec).cost_bound(self.spec, self.state)
        return bound if np.isfinite(bound) else None

    def lose_expired(self, now: float) -> None:
        """Mark running trials whose lease has run out as lost."""
        expired = and_(
            TRIALS.c.job_id == self.row.job_id,
            TRIALS.c.outcome.is_(None),
            TRIALS.c.lease_expires_at < now,
        )
        rows = self.connection.execute(
            select(TRIALS).where(expired).order_by(TRIALS.c.trial_number)
        ).all()
        for row in rows:
            lost = self.connection.execute(
                update(TRIALS)
                .where(expired, TRIALS.c.trial_number == row.trial_number)
                .values(outcome="lost", ended_at=now, reason="its lease ran out")
            )
            if lost.rowcount:  # a report may have extended the lease meanwhile
                choice = Choice(row.batch_size, row.why)
                self.append(history.Event("ended", row.trial_number, choice, "lost", row.cost))

    def save(self, now: float, **values: Any) -> None:
        """Write the new events and the state they lead to."""
        first = self.row.events + 1
        if self.events:
            self.connection.execute(
                insert(EVENTS),
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
            update(JOBS)
            .where(JOBS.c.job_id == self.row.job_id)
            .values(
                state=self.state,
                cost_bound=self.cost_bound(),
                events=self.row.events + len(self.events),
                updated_at=now,
                **values,
            )
        )
