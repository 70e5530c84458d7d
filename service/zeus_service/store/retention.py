"""Deletions in small portions, each for a transaction of a few milliseconds."""

from __future__ import annotations

from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy import Connection, and_, delete, func, or_, select

from zeus_service.store.models import CHECKPOINTS, EVENTS, JOBS, REPORTS, TRIALS

PORTION = 1000
"""Reports or events that one transaction deletes, at most."""

TRIALS_AT_ONCE = 200


@dataclass(frozen=True)
class Old:
    """Which trials of a job may be dropped: those that ended long ago and have no lease in force.

    Args:
        now: Unix seconds, by which leases are over or not.
        ended_before: Unix seconds.
        last: The highest trial number.
    """

    now: float
    ended_before: float
    last: int

    def trials(self, job_id: str) -> sa.ColumnElement[bool]:
        """The condition on a trial. One that is running has not ended, even without a lease."""
        return and_(
            TRIALS.c.job_id == job_id,
            TRIALS.c.outcome.is_not(None),
            TRIALS.c.ended_at < self.ended_before,
            TRIALS.c.lease_expires_at < self.now,
            TRIALS.c.trial_number <= self.last,
        )


def old_trials(connection: Connection, job_id: str, old: Old, *, after: int) -> list[int]:
    """Read the numbers of the next trials that may be dropped, ascending."""
    query = select(TRIALS.c.trial_number).where(old.trials(job_id), TRIALS.c.trial_number > after)
    query = query.order_by(TRIALS.c.trial_number).limit(TRIALS_AT_ONCE)
    return list(connection.execute(query).scalars())


def drop_trials(
    connection: Connection, job_id: str, old: Old, numbers: list[int]
) -> tuple[int, int, bool]:
    """Delete trials with their reports, or a portion of their reports if these are too many.

    The job must be locked. Trials that may not be dropped any more are left alone.

    Returns:
        The number of trials and of reports deleted, and whether there is more to delete.
    """
    droppable = old.trials(job_id), TRIALS.c.trial_number.in_(numbers)
    numbers = list(connection.execute(select(TRIALS.c.trial_number).where(*droppable)).scalars())
    theirs = REPORTS.c.job_id == job_id, REPORTS.c.trial_number.in_(numbers)
    key = REPORTS.c["trial_number", "sequence"]
    bound = connection.execute(
        select(*key).where(*theirs).order_by(*key).offset(PORTION).limit(1)
    ).one_or_none()
    if bound is not None:
        earlier = or_(
            REPORTS.c.trial_number < bound.trial_number,
            and_(REPORTS.c.trial_number == bound.trial_number, REPORTS.c.sequence < bound.sequence),
        )
        return 0, connection.execute(delete(REPORTS).where(*theirs, earlier)).rowcount, True
    reports = connection.execute(delete(REPORTS).where(*theirs)).rowcount
    these = TRIALS.c.job_id == job_id, TRIALS.c.trial_number.in_(numbers)
    return connection.execute(delete(TRIALS).where(*these)).rowcount, reports, False


def drop_events(connection: Connection, job_id: str) -> int:
    """Delete a portion of the events that the job's checkpoint contains; return how many."""
    contained = (
        EVENTS.c.job_id == job_id,
        EVENTS.c.sequence
        <= select(CHECKPOINTS.c.sequence).where(CHECKPOINTS.c.job_id == job_id).scalar_subquery(),
    )
    sequences = select(EVENTS.c.sequence).where(*contained).order_by(EVENTS.c.sequence)
    bound = connection.execute(sequences.offset(PORTION).limit(1)).scalar()
    portion = contained if bound is None else (*contained, EVENTS.c.sequence < bound)
    return connection.execute(delete(EVENTS).where(*portion)).rowcount


def is_small(connection: Connection, job_id: str) -> bool:
    """Whether a job and all its rows can be deleted in one transaction."""
    for table in (EVENTS, REPORTS):
        rows = select(table.c.sequence).where(table.c.job_id == job_id).limit(PORTION + 1)
        if connection.execute(select(func.count()).select_from(rows.subquery())).scalar_one() > (
            PORTION
        ):
            return False
    return True


def job_ids(connection: Connection, *, after: str) -> list[str]:
    """Read the next ids of jobs, ascending."""
    query = select(JOBS.c.job_id).where(JOBS.c.job_id > after).order_by(JOBS.c.job_id)
    return list(connection.execute(query.limit(PORTION)).scalars())
