"""A job's events, and the checkpoint that stands for the events that have been dropped.

A checkpoint is the policy's state after the events up to a sequence number. The state of a job is
the fold of its later events from there. A job without a checkpoint is folded from its start.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from pydantic import TypeAdapter
from sqlalchemy import Connection, Row, delete, insert, select

from zeus_service.bandit import fold as history
from zeus_service.bandit.policy import State
from zeus_service.bandit.spec import Count, JobSpec
from zeus_service.db.damage import reading
from zeus_service.db.jobs import JobHead
from zeus_service.db.tables import CHECKPOINTS, EVENTS, JOBS
from zeus_service.messages import Instant


@dataclass(frozen=True)
class StoredEvent:
    """An event as it is stored: its number in its job's history, and when it happened."""

    sequence: Count
    happened_at: Instant
    event: history.Event


@dataclass(frozen=True)
class Checkpoint:
    """A job's state after its events up to a sequence number.

    Args:
        job: The job, as it was when this was read.
        sequence: The last event that the state contains; 0 for none.
        state: The policy's state.
    """

    job: JobHead
    sequence: int
    state: State

    def after(
        self, spec: JobSpec, events: Iterable[StoredEvent], *, gaps: bool = False
    ) -> Checkpoint:
        """The checkpoint after more events.

        Raises:
            MissingEvents: They are not the next ones, and there may be no `gaps`.
        """
        sequence, state = self.sequence, self.state
        for stored in events:
            if stored.sequence != sequence + 1 and not gaps:
                raise MissingEvents(sequence + 1)
            with reading(f"event {stored.sequence} of job {spec.job_id!r}"):
                state = history.apply(spec, state, stored.event)
            sequence = stored.sequence
        return Checkpoint(self.job, sequence, state)


class MissingEvents(Exception):
    """Raised when an event is missing, with its sequence number."""


def latest(connection: Connection, spec: JobSpec, job: JobHead) -> Checkpoint:
    """Read a job's checkpoint; without one, its start."""
    query = select(CHECKPOINTS).where(CHECKPOINTS.c.job_id == job.job_id)
    start = history.fold(spec, [])
    with reading(f"the checkpoint of job {job.job_id!r}"):
        row = connection.execute(query).one_or_none()
        if row is None:
            return Checkpoint(job, 0, start)
        if not isinstance(row.state, dict) or not start.keys() <= row.state.keys():
            raise ValueError("its state is none of the job's policy")
        return Checkpoint(job, _SEQUENCE.validate_python(row.sequence), row.state)


def replace(connection: Connection, old: Checkpoint, new: Checkpoint) -> bool:
    """Replace a job's checkpoint; return False if it is not the old one any more.

    The job must be locked.
    """
    this = CHECKPOINTS.c.job_id == new.job.job_id
    stored = connection.execute(select(CHECKPOINTS.c.sequence).where(this)).scalar() or 0
    if stored != old.sequence:
        return False
    connection.execute(delete(CHECKPOINTS).where(this))
    values = {"job_id": new.job.job_id, "sequence": new.sequence, "state": new.state}
    connection.execute(insert(CHECKPOINTS), values)
    return True


def set_to_stored_state(connection: Connection, job_id: str) -> None:
    """Make the state that is stored with a job its checkpoint. The job must be locked."""
    connection.execute(delete(CHECKPOINTS).where(CHECKPOINTS.c.job_id == job_id))
    stored = select(*JOBS.c["job_id", "events", "state"]).where(JOBS.c.job_id == job_id)
    columns = ["job_id", "sequence", "state"]
    connection.execute(insert(CHECKPOINTS).from_select(columns, stored))


def events_after(
    connection: Connection, job_id: str, sequence: int, *, limit: int
) -> list[StoredEvent]:
    """Read a job's events after a sequence number, in the order in which they happened."""
    query = (
        select(EVENTS)
        .where(EVENTS.c.job_id == job_id, EVENTS.c.sequence > sequence)
        .order_by(EVENTS.c.sequence)
        .limit(limit)
    )
    return [_event(job_id, row) for row in connection.execute(query)]


_SEQUENCE: TypeAdapter[int] = TypeAdapter(Count)
_STORED_EVENT: TypeAdapter[StoredEvent] = TypeAdapter(StoredEvent)


def _event(job_id: str, row: Row[Any]) -> StoredEvent:
    with reading(f"event {row.sequence} of job {job_id!r}"):
        values = dict(row._mapping)
        return _STORED_EVENT.validate_python({**values, "event": {**values, "choice": values}})
