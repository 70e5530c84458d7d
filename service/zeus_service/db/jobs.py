"""Jobs as they are stored; under its lock, a job's events and its state advance together.

An unknown job raises `NotFound`.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, get_args

import sqlalchemy as sa
from sqlalchemy import Connection, Row, Select, bindparam, func, insert, select, update

from zeus_service import counters
from zeus_service.bandit import fold as history
from zeus_service.bandit.outcomes import Outcome
from zeus_service.bandit.policy import State
from zeus_service.bandit.registry import policy_of
from zeus_service.bandit.spec import JobSpec
from zeus_service.db import leases, statements
from zeus_service.db.clock import unix_now
from zeus_service.db.damage import REBUILD, damaged_id, is_id, reading
from zeus_service.db.job_numbers import NUMBERS, Numbers, wrong_numbers
from zeus_service.db.job_savings import (
    begin_savings_anew,
    first_savings,
    read_savings,
    with_stored_profile,
)
from zeus_service.db.savings import (
    no_savings,
    savings_added,
    savings_values,
)
from zeus_service.db.standing import Standing, stage_and_best
from zeus_service.db.tables import (
    CHECKPOINTS,
    EVENTS,
    JOBS,
    SAVED_ON_DAYS,
    TRIALS,
)
from zeus_service.db.transactions import after_commit
from zeus_service.db.writes import Writes, bind_values, statement
from zeus_service.errors import BrokenJob, NotFound, unknown_job
from zeus_service.messages import JobSummary, PowerProfile
from zeus_service.savings import ledger as books
from zeus_service.savings.expected import Ledger, expectation

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class StoredJob:
    """A job as a transaction has read it; for its fields see `JobRow`.

    If its savings are damaged, it has none: the next transaction that locks the job begins them
    anew, so that runs go on.
    """

    spec: JobSpec
    state: State
    cost_bound: float | None
    trials: int
    events: int
    updated_at: float
    ledger: Ledger
    saved: books.Saved | None
    standing: Standing
    savings_are_damaged: bool

    @classmethod
    def of(cls, row: Row[Any]) -> StoredJob:
        """Read a row that has the columns of `JOBS`; raise `BrokenJob` if that is impossible."""
        spec = read_spec(row.job_id, row.spec)
        with reading(f"the row of job {row.job_id!r}", REBUILD):
            parts = policy_of(spec).initial_state(spec).keys()
            if not isinstance(row.state, dict) or not parts <= row.state.keys():
                raise ValueError("its state is none of its policy")
            numbers = Numbers.model_validate(row, from_attributes=True)
        counts = numbers.trials, numbers.events, numbers.updated_at
        kept = read_savings(row)
        ledger, saved = kept or (books.new_ledger(), None)
        standing = Standing.of(row)
        return cls(
            spec, row.state, numbers.cost_bound, *counts, ledger, saved, standing, kept is None
        )


@dataclass(frozen=True)
class JobHead:
    """Which job a row is, without its specification and state. The row may be a broken one.

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


_DAMAGED_IDS = 100


def ids(connection: Connection, *, after: str, limit: int) -> list[str]:
    """Read the ids of the jobs of a page.

    What cannot be an id, as SQLite may have it, is left out: no request could name the job. The log
    says which row it is, and of which job.
    """
    query = select(JOBS.c.job_id, sa.cast(JOBS.c.spec, sa.Text)).where(JOBS.c.job_id > after)
    found = connection.execute(query.order_by(JOBS.c.job_id).limit(limit + _DAMAGED_IDS)).all()
    for job_id, spec in found:
        if not is_id(job_id):
            logger.error("%s", damaged_id(job_id, spec))
    return [job_id for job_id, _ in found if is_id(job_id)][:limit]


def read_spec(job_id: str, stored: object) -> JobSpec:
    """Read a stored specification.

    Raises:
        BrokenJob: It is not valid, or another job's, or names a policy that this version does not
            have.
    """
    with reading(f"the specification of job {job_id!r}"):
        spec = JobSpec.model_validate(stored)
        if spec.job_id != job_id:
            raise ValueError(f"it is that of job {spec.job_id!r}")
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
    query = select(JOBS.c.spec).where(JOBS.c.job_id == job_id)
    with reading(f"the specification of job {job_id!r}"):
        row = connection.execute(query).one_or_none()
    if row is None:
        raise unknown_job(job_id)
    return read_spec(job_id, row.spec)


def replace_state(connection: Connection, spec: JobSpec, state: State) -> bool:
    """Store a state in place of a locked job's own, unless it is the same; return if it differed.

    What is stored may be anything.
    """
    wanted = {"state": state, "cost_bound": _cost_bound(spec, state), **stage_and_best(spec, state)}
    this, stored = JOBS.c.job_id == spec.job_id, None
    with suppress(BrokenJob), reading("its state"):
        row = connection.execute(select(*JOBS.c[tuple(wanted)]).where(this)).one()
        stored = dict(row._mapping)
    if stored == wanted:
        return False
    connection.execute(update(JOBS).where(this).values(**wanted, updated_at=unix_now()))
    return True


def add(connection: Connection, spec: JobSpec) -> None:
    """Store a new job."""
    state = history.fold(spec, [])
    connection.execute(
        insert(JOBS).values(
            job_id=spec.job_id,
            spec=spec.model_dump(mode="json"),
            state=state,
            **Standing().after(spec, state).columns(),
            cost_bound=None,
            trials=0,
            events=0,
            created_at=unix_now(),
            updated_at=unix_now(),
            **no_savings(spec),
        )
    )


_OUTCOMES = {"running", *get_args(Outcome)}


def count_trials(connection: Connection, job_id: str) -> dict[str, int]:
    """Count a job's trials by outcome; those without one are `running`, others unknown `broken`."""
    outcome = func.coalesce(TRIALS.c.outcome, "running")
    query = select(outcome, func.count()).where(TRIALS.c.job_id == job_id).group_by(outcome)
    counts: Counter[str] = Counter()
    for name, count in connection.execute(query):
        counts[name if name in _OUTCOMES else "broken"] += count
    return dict(counts)


def count_running(connection: Connection, job_id: str) -> int:
    """Count a job's running trials; unlike `count_trials`, it does not read the others."""
    query = select(func.count()).where(TRIALS.c.job_id == job_id, TRIALS.c.outcome.is_(None))
    return connection.execute(query).scalar_one()


def broken_summary(connection: Connection, job_id: str) -> JobSummary | None:
    """What can be read of a job whose row is broken; zeros stand for the rest."""
    row = connection.execute(select(*NUMBERS).where(JOBS.c.job_id == job_id)).one_or_none()
    if row is None:
        return None
    wrong = wrong_numbers(row)
    return JobSummary(
        job_id=job_id,
        stage="broken",
        best_batch_size=None,
        trials=0 if "trials" in wrong else row.trials,
        updated_at=0.0 if "updated_at" in wrong else row.updated_at,
    )


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
        ledger: The job's ledger after them.
    """

    def __init__(self, connection: Connection, row: Row[Any]) -> None:
        self._connection = connection
        self.stored = StoredJob.of(row)
        self.spec = self.stored.spec
        self.state = self.stored.state
        self.ledger = self.stored.ledger
        if self.stored.savings_are_damaged:
            self.ledger = begin_savings_anew(connection, self.spec)
        elif books.lacks_profile(row.ledger):
            self.ledger = with_stored_profile(connection, self.spec, self.ledger)
        self._events: list[history.Event] = []

    @classmethod
    def lock(cls, connection: Connection, job_id: str) -> LockedJob:
        """Lock a job: FOR NO KEY UPDATE, FOR UPDATE, or what `BEGIN IMMEDIATE` has locked."""
        return cls(connection, _one(connection, statements.LOCKED_JOB, {"this_job": job_id}))

    def append(self, event: history.Event) -> None:
        """Record an event, and advance the state and the ledger by it."""
        self.ledger = books.applied(self.spec, self.ledger, self.state, event)
        self.state = history.apply(self.spec, self.state, event)
        self._events.append(event)

    @property
    def cost_bound(self) -> float | None:
        """The early-stop bound in joules, or None. Only the end of a trial changes it."""
        if all(event.outcome is None for event in self._events):
            return self.stored.cost_bound
        return _cost_bound(self.spec, self.state)

    def save(self, writes: Writes, values: Mapping[str, Any]) -> bool:
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
            }
            for sequence, event in enumerate(self._events, first)
        ]
        job = {
            "state": self.state,
            "cost_bound": self.cost_bound,
            "trials": max(self.stored.trials, self._events[-1].trial_number),  # one more by a start
            "events": self.stored.events + len(self._events),
            "ledger": self.ledger,
            **self.stored.standing.after(self.spec, self.state, self._events).columns(),
        }
        saved, expected = self.stored.saved, None
        if any(event.kind != "started" for event in self._events):
            expected = expectation(self.spec, self.ledger, self.state)
            saved = books.saved(self.ledger, expected)
        converged = sum(event.outcome == "converged" for event in self._events)
        added = savings_added(self.stored.saved, saved, expected) | {"recurrences": converged}
        values = {
            "this_job": self.spec.job_id,
            **values,
            **bind_values(EVENTS, last),
            **bind_values(JOBS, job | savings_values(saved)),
            **bind_values(SAVED_ON_DAYS, added),
        }
        if writes is statements.START and earlier:
            writes = statements.START_AFTER_LOSS
        if not writes.execute(self._connection, values):
            return False
        if earlier:
            rows = [bind_values(EVENTS, event) for event in earlier]
            self._connection.execute(statement(EVENTS), rows)
        for event in self._events:
            if event.outcome is not None:
                after_commit(self._connection, counters.trials_ended.labels(event.outcome).inc)
        return True

    def note_power_profile(self, profile: PowerProfile) -> None:
        """Store in the ledger what a power profile says of the default's power limits."""
        changed = books.with_power_profile(self.spec, self.ledger, profile)
        job = update(JOBS).where(JOBS.c.job_id == self.spec.job_id)
        self._connection.execute(job.values(ledger=changed))

    def register_anew(self, spec: JobSpec) -> bool:
        """Replace the specification if trials have ended, but none has taught the job anything.

        They are deleted with their events, but their numbers are not used again. A job that has had
        no trial is not replaced: the run that has just registered it is about to start one.

        Returns:
            Whether that is so. If not, nothing may be committed.
        """
        for event in leases.mark_expired_lost(self._connection, spec.job_id):
            self.append(event)
        running = count_trials(self._connection, spec.job_id).get("running", 0)
        if not self.stored.trials or running or history.has_verdicts(self.spec, self.state):
            return False
        for table in (CHECKPOINTS, EVENTS, TRIALS):
            self._connection.execute(sa.delete(table).where(table.c.job_id == spec.job_id))
        state = history.fold(spec, [])
        row = {"spec": spec.model_dump(mode="json"), "state": state}
        row |= first_savings(self._connection, spec)
        row |= Standing().after(spec, state).columns()
        times = {"created_at": unix_now(), "updated_at": unix_now()}
        job = update(JOBS).where(JOBS.c.job_id == spec.job_id)
        self._connection.execute(job.values(**row, **times, cost_bound=None, events=0))
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
        with reading(f"the state of job {job_id!r}", REBUILD):
            row = connection.execute(query, values).one_or_none()
    except BrokenJob:
        spec_of(connection, job_id)  # raises, if that cannot be read
        raise
    if row is None:
        raise unknown_job(job_id)
    return row


def _cost_bound(spec: JobSpec, state: State) -> float | None:
    bound = policy_of(spec).cost_bound(spec, state)
    return bound if math.isfinite(bound) else None
