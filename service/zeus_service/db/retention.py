"""Deletions in small portions, each for a transaction of a few milliseconds."""

from __future__ import annotations

from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy import Connection, and_, delete, func, or_, select

from zeus_service.db.tables import CHECKPOINTS, EVENTS, REPORTS, TRIALS

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


def old_trials(connection: Connection, job_id: str, old: Old, *, after: int) -> range:
    """Read the numbers of the next trials that may be dropped, up to the first gap in them."""
    query = select(TRIALS.c.trial_number).where(old.trials(job_id), TRIALS.c.trial_number > after)
    query = query.order_by(TRIALS.c.trial_number).limit(TRIALS_AT_ONCE)
    numbers = list(connection.execute(query).scalars())
    adjoining = [number for i, number in enumerate(numbers) if number == numbers[0] + i]
    return range(adjoining[0], adjoining[-1] + 1) if adjoining else range(0)


def drop_trials(
    connection: Connection, job_id: str, old: Old, numbers: range
) -> tuple[int, int, bool]:
    """Delete trials with their reports, or a portion of their reports if these are too many.

    The job must be locked. Nothing is deleted if one of the trials was resumed meanwhile.

    Returns:
        The number of trials and of reports deleted, and whether there is more to delete.
    """
    # Ranges, not lists of numbers: PostgreSQL would read all reports of the job for a list.
    theirs = TRIALS.c.job_id == job_id, TRIALS.c.trial_number.between(numbers[0], numbers[-1])
    dropped = select(func.count()).where(old.trials(job_id), *theirs)
    if connection.execute(dropped).scalar_one() < len(numbers):
        return 0, 0, False
    key = REPORTS.c["trial_number", "sequence"]
    reports = REPORTS.c.job_id == job_id, REPORTS.c.trial_number.between(numbers[0], numbers[-1])
    bound = connection.execute(
        select(*key).where(*reports).order_by(*key).offset(PORTION).limit(1)
    ).one_or_none()
    if bound is not None:
        earlier = (
            REPORTS.c.job_id == job_id,
            REPORTS.c.trial_number.between(numbers[0], bound.trial_number),
            or_(
                REPORTS.c.trial_number < bound.trial_number,
                REPORTS.c.sequence < bound.sequence,
            ),
        )
        return 0, connection.execute(delete(REPORTS).where(*earlier)).rowcount, True
    count = connection.execute(delete(REPORTS).where(*reports)).rowcount
    return connection.execute(delete(TRIALS).where(*theirs)).rowcount, count, False


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
    queries = (
        select(table.c.sequence).where(table.c.job_id == job_id).offset(PORTION).limit(1)
        for table in (EVENTS, REPORTS)
    )
    return all(connection.execute(query).one_or_none() is None for query in queries)
