"""A job under its lock: events are recorded and the state advances together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from sqlalchemy import Connection, Row, Select, bindparam, insert, select, update

from zeus_service import history
from zeus_service.errors import no_job
from zeus_service.models import EVENTS, JOBS, TRIALS
from zeus_service.policies import Choice, policy_of
from zeus_service.signals import announce, trial_ended
from zeus_service.spec import JobSpec
from zeus_service.transactions import Raced
from zeus_service.writes import Writes, named, parameter

LOCKED_JOB = (
    select(JOBS).where(JOBS.c.job_id == bindparam("job")).with_for_update(key_share=True, of=JOBS)
)
EXPIRED_TRIALS = select(*TRIALS.c["trial_number", "batch_size", "why", "cost"]).where(
    TRIALS.c.job_id == bindparam("job"),
    TRIALS.c.outcome.is_(None),
    TRIALS.c.lease_expires_at < bindparam("now"),
)
SAVED_JOB = (
    update(JOBS)
    .where(JOBS.c.job_id == parameter(JOBS, "job_id"))
    .values(
        {
            name: parameter(JOBS, name)
            for name in ("state", "cost_bound", "trials", "events", "updated_at")
        }
    )
)


@dataclass
class LockedJob:
    """A job whose row this transaction has locked, and its state as it changes."""

    connection: Connection
    row: Row[Any]
    spec: JobSpec
    state: dict[str, Any]
    events: list[history.Event]

    @classmethod
    def take(
        cls, connection: Connection, job_id: str, query: Select[Any] = LOCKED_JOB, **more: Any
    ) -> LockedJob:
        """Lock the job: FOR NO KEY UPDATE, FOR UPDATE, or what `BEGIN IMMEDIATE` has locked.

        Args:
            connection: In a transaction.
            job_id: The job.
            query: `LOCKED_JOB`, or that with more columns; other tables' may be older than the job.
            more: Parameters of that query.

        Raises:
            NotFound: No such job.
        """
        row = connection.execute(query, {"job": job_id, **more}).one_or_none()
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
        """The early-stop bound in joules; None: no bound. Only a trial's end moves it."""
        if all(event.outcome is None for event in self.events):
            stored: float | None = self.row.cost_bound
            return stored
        return _cost_bound(self.spec, self.state)

    def lose_expired(self, now: float) -> None:
        """Mark running trials whose lease has run out as lost."""
        # Ordered below: asked for an order, SQLite goes through all trials of the job.
        rows = self.connection.execute(
            # A report may be extending the lease right now.
            EXPIRED_TRIALS.with_for_update(),
            {"job": self.row.job_id, "now": now},
        ).all()
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

    def save(self, writes: Writes, values: Mapping[str, Any], now: float) -> None:
        """Write the new events and the state they lead to.

        Args:
            writes: First the trial's, then those of `EVENTS` and `SAVED_JOB`.
            values: Of the trial's parameters.
            now: When.

        Raises:
            Raced: Others have changed the trial.
        """
        first = self.row.events + 1
        *earlier, last = [
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
        ]
        if earlier:
            self.connection.execute(insert(EVENTS), earlier)
        job = {
            "job_id": self.row.job_id,
            "state": self.state,
            "cost_bound": self.cost_bound(),
            "trials": max(self.row.trials, last["trial_number"]),  # a start has the next number
            "events": self.row.events + len(self.events),
            "updated_at": now,
        }
        if not writes.carry_out(
            self.connection, {**values, **named(EVENTS, last), **named(JOBS, job)}
        ):
            raise Raced

    def replace_state(self, state: dict[str, Any], now: float) -> None:
        """Store another state than the events so far have led to."""
        self.connection.execute(
            update(JOBS)
            .where(JOBS.c.job_id == self.row.job_id)
            .values(state=state, cost_bound=_cost_bound(self.spec, state), updated_at=now)
        )


def _cost_bound(spec: JobSpec, state: dict[str, Any]) -> float | None:
    bound = policy_of(spec).cost_bound(spec, state)
    return bound if np.isfinite(bound) else None
