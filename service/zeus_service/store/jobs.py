"""Jobs as they are stored; under its lock, a job's events and its state advance together.

An unknown job raises `NotFound`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection, Row, Select, bindparam, func, insert, select, update

from zeus_service import counters, history
from zeus_service.errors import BrokenJob, NotFound
from zeus_service.policies import policy_of
from zeus_service.policies.base import State
from zeus_service.spec import JobSpec
from zeus_service.store import leases, statements
from zeus_service.store.models import CHECKPOINTS, EVENTS, JOBS, TRIALS
from zeus_service.store.transactions import after_commit
from zeus_service.store.writes import Writes, bind_values


@dataclass(frozen=True)
class StoredJob:
    """A job as a transaction has read it; for its fields see `JobRow`."""

    spec: JobSpec
    state: State
    cost_bound: float | None
    trials: int
    events: int
    updated_at: float

    @classmethod
    def of(cls, row: Row[Any]) -> StoredJob:
        """Read a row that has the columns of `JOBS`; raise `BrokenJob` if that is impossible."""
        spec = read_spec(row.job_id, row.spec)
        parts = policy_of(spec).initial_state(spec).keys()
        if not isinstance(row.state, dict) or not parts <= row.state.keys():
            raise unreadable(row.job_id)
        return cls(spec, row.state, row.cost_bound, row.trials, row.events, row.updated_at)


@dataclass(frozen=True)
class JobHead:
    """Which job a row is, without its specification and state.

    Args:
        registered_at: Unix seconds. A job that was registered anew since is another one.
        trials: Number of the latest trial.
        events: Sequence of the latest event.
    """

    job_id: str
    registered_at: float
    trials: int
    events: int

    def is_same_job(self, other: JobHead) -> bool:
        """Whether they are of one registration."""
        return (self.job_id, self.registered_at) == (other.job_id, other.registered_at)


def find(connection: Connection, job_id: str) -> StoredJob | None:
    """Read a job, without a lock; return None if there is none."""
    try:
        return get(connection, job_id)
    except NotFound:
        return None


def get(connection: Connection, job_id: str) -> StoredJob:
    """Read a job, without a lock."""
    return StoredJob.of(_one(connection, statements.JOB, {"this_job": job_id}))


def page(connection: Connection, *, after: str, limit: int) -> list[StoredJob]:
    """Read the jobs with an id greater than `after`, ordered by id."""
    query = select(JOBS).where(JOBS.c.job_id > after).order_by(JOBS.c.job_id).limit(limit)
    return [StoredJob.of(row) for row in connection.execute(query)]


def ids(connection: Connection, *, after: str, limit: int) -> list[str]:
    """Read the ids of the jobs of a page."""
    query = select(JOBS.c.job_id).where(JOBS.c.job_id > after).order_by(JOBS.c.job_id).limit(limit)
    return list(connection.execute(query).scalars())


def read_spec(job_id: str, stored: object) -> JobSpec:
    """Read a stored specification.

    Raises:
        BrokenJob: It is not valid, or names a policy that this version does not have.
    """
    try:
        spec = JobSpec.model_validate(stored)
    except ValueError as error:
        raise BrokenJob(
            f"the specification of job {job_id!r} cannot be read: restore a backup, or delete it"
        ) from error
    try:
        policy_of(spec)
    except KeyError as error:
        raise BrokenJob(
            f"job {job_id!r} has the policy {spec.policy!r}, which this version does not have: use "
            "the version that registered it, or delete the job"
        ) from error
    return spec


def spec_of(connection: Connection, job_id: str) -> JobSpec:
    """Read a job's specification, whatever its state is."""
    query = select(JOBS.c.spec).where(JOBS.c.job_id == bindparam("this_job"))
    return read_spec(job_id, _one(connection, query, {"this_job": job_id}).spec)


def state_is(connection: Connection, job_id: str, state: State) -> bool:
    """Whether a job's stored state is this one; it may not be valid JSON."""
    try:
        stored = connection.execute(select(JOBS.c.state).where(JOBS.c.job_id == job_id)).scalar()
    except ValueError:
        return False
    return bool(stored == state)


def replace_state(connection: Connection, spec: JobSpec, state: State, now: float) -> None:
    """Store a state in place of a locked job's own."""
    job = update(JOBS).where(JOBS.c.job_id == spec.job_id)
    bound = _cost_bound(spec, state)
    connection.execute(job.values(state=state, cost_bound=bound, updated_at=now))


def add(connection: Connection, spec: JobSpec, now: float) -> None:
    """Store a new job."""
    connection.execute(
        insert(JOBS).values(
            job_id=spec.job_id,
            spec=spec.model_dump(mode="json"),
            state=history.fold(spec, []),
            cost_bound=None,
            trials=0,
            events=0,
            created_at=now,
            updated_at=now,
        )
    )


def count_trials(connection: Connection, job_id: str) -> dict[str, int]:
    """Count a job's trials by outcome; those without one are `running`."""
    outcome = func.coalesce(TRIALS.c.outcome, "running")
    query = select(outcome, func.count()).where(TRIALS.c.job_id == job_id).group_by(outcome)
    return {name: count for name, count in connection.execute(query)}  # noqa: C416 - mypy: rows are not pairs


def count_running(connection: Connection, job_id: str) -> int:
    """Count a job's running trials; unlike `count_trials`, it does not read the others."""
    query = select(func.count()).where(TRIALS.c.job_id == job_id, TRIALS.c.outcome.is_(None))
    return connection.execute(query).scalar_one()


def head(connection: Connection, job_id: str, *, lock: bool = False) -> JobHead:
    """Read which job has an id, and lock it if asked to."""
    columns = JOBS.c["created_at", "trials", "events"]
    query = select(*columns).where(JOBS.c.job_id == bindparam("this_job"))
    if lock:
        query = query.with_for_update(key_share=True, of=JOBS)
    row = _one(connection, query, {"this_job": job_id})
    return JobHead(job_id, row.created_at, row.trials, row.events)


def delete(connection: Connection, job_id: str) -> None:
    """Delete a locked job with its trials, reports, events and power profiles."""
    connection.execute(sa.delete(JOBS).where(JOBS.c.job_id == job_id))


class LockedJob:
    """A job whose row this transaction has locked.

    Attributes:
        stored: The job as it was when it was locked.
        spec: The job's specification.
        state: The policy's state after the events that were appended since.
    """

    def __init__(self, connection: Connection, row: Row[Any]) -> None:
        self._connection = connection
        self.stored = StoredJob.of(row)
        self.spec = self.stored.spec
        self.state = self.stored.state
        self._events: list[history.Event] = []

    @classmethod
    def lock(cls, connection: Connection, job_id: str) -> LockedJob:
        """Lock a job: FOR NO KEY UPDATE, FOR UPDATE, or what `BEGIN IMMEDIATE` has locked."""
        return cls(connection, _one(connection, statements.LOCKED_JOB, {"this_job": job_id}))

    def append(self, event: history.Event) -> None:
        """Record an event and advance the state by it."""
        self.state = history.apply(self.spec, self.state, event)
        self._events.append(event)

    @property
    def cost_bound(self) -> float | None:
        """The early-stop bound in joules, or None. Only the end of a trial changes it."""
        if all(event.outcome is None for event in self._events):
            return self.stored.cost_bound
        return _cost_bound(self.spec, self.state)

    def save(self, writes: Writes, values: Mapping[str, Any], now: float) -> bool:
        """Write a trial, by `START`, `REPORT_TO_JOB` or `END`, the events, and the job's new state.

        Returns:
            Whether the trial was still as it was read. If not, nothing has been written.
        """
        first = self.stored.events + 1
        *earlier, last = [
            {
                "job_id": self.spec.job_id,
                "sequence": sequence,
                "kind": event.kind,
                "trial_number": event.trial_number,
                "batch_size": event.choice.batch_size,
                "why": event.choice.why,
                "outcome": event.outcome,
                "cost": event.cost,
                "happened_at": now,
            }
            for sequence, event in enumerate(self._events, first)
        ]
        job = {
            "state": self.state,
            "cost_bound": self.cost_bound,
            "trials": max(self.stored.trials, self._events[-1].trial_number),  # one more by a start
            "events": self.stored.events + len(self._events),
            "updated_at": now,
        }
        values = {
            "this_job": self.spec.job_id,
            **values,
            **bind_values(EVENTS, last),
            **bind_values(JOBS, job),
        }
        if not writes.execute(self._connection, values):
            return False
        if earlier:
            self._connection.execute(insert(EVENTS), earlier)
        for event in self._events:
            if event.outcome is not None:
                after_commit(self._connection, counters.trials_ended.labels(event.outcome).inc)
        return True

    def register_anew(self, spec: JobSpec, now: float) -> bool:
        """Replace the specification if trials have ended, but none has taught the job anything.

        They are deleted with their events, but their numbers are not used again. A job that has had
        no trial is not replaced: the run that has just registered it is about to start one.

        Returns:
            Whether that is so. If not, nothing may be committed.
        """
        for event in leases.mark_expired_lost(self._connection, spec.job_id, now):
            self.append(event)
        running = count_trials(self._connection, spec.job_id).get("running", 0)
        if not self.stored.trials or running or history.has_verdicts(self.spec, self.state):
            return False
        for table in (CHECKPOINTS, EVENTS, TRIALS):
            self._connection.execute(sa.delete(table).where(table.c.job_id == spec.job_id))
        row = {"spec": spec.model_dump(mode="json"), "state": history.fold(spec, [])}
        job = update(JOBS).where(JOBS.c.job_id == spec.job_id)
        self._connection.execute(
            job.values(**row, cost_bound=None, events=0, created_at=now, updated_at=now)
        )
        return True


def lock_to_start(
    connection: Connection, job_id: str, idempotency_key: str | None
) -> tuple[LockedJob, tuple[str, int] | None, bool]:
    """Lock a job for a start, in one statement.

    Returns:
        The job; the job id and number of the trial that was started with the same key, if there is
        one; and whether the lease of a running trial has expired.
    """
    values = {"this_job": job_id, "this_key": idempotency_key}
    row = _one(connection, statements.LOCKED_JOB_TO_START, values)
    known = None if row.key_job_id is None else (row.key_job_id, row.key_trial_number)
    return LockedJob(connection, row), known, row.any_expired


def _one(connection: Connection, query: Select[Any], values: Mapping[str, Any]) -> Row[Any]:
    job_id = values["this_job"]
    try:
        row = connection.execute(query, values).one_or_none()
    except ValueError as error:  # a column is not valid JSON
        raise unreadable(job_id) from error
    if row is None:
        raise NotFound(f"no job {job_id!r}; `zeus-service jobs` lists the existing jobs")
    return row


def unreadable(job_id: str) -> BrokenJob:
    """The error for a row with a column that is not valid JSON, or not a state."""
    return BrokenJob(
        f"the row of job {job_id!r} cannot be read: `zeus-service rebuild` makes its state from "
        "its history; if that fails, restore a backup, or delete the job"
    )


def _cost_bound(spec: JobSpec, state: State) -> float | None:
    bound = policy_of(spec).cost_bound(spec, state)
    return bound if math.isfinite(bound) else None
