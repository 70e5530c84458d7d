"""The operator's use cases: drop what is old, delete a job, and fold a job's history again.

A change of a job is under the same lock as in `optimizer`, but none of these holds it for longer
than a few milliseconds: each is many small transactions, with pauses in which others get their
turn. After each of them the job is consistent, so they may be interrupted anywhere.
"""

from __future__ import annotations

import logging
import sqlite3
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import takewhile
from pathlib import Path
from typing import ParamSpec, TypeVar

from sqlalchemy import Connection

from zeus_service.bandit.spec import MAX_INTEGER, JobSpec
from zeus_service.db import checkpoints, clock, job_numbers, job_savings, jobs, retention
from zeus_service.db.checkpoints import Checkpoint, MissingEvents, StoredEvent
from zeus_service.db.damage import REBUILD, reading
from zeus_service.db.engine import shrink_sqlite_file
from zeus_service.db.jobs import JobHead
from zeus_service.db.retention import PORTION, Old
from zeus_service.db.tables import db
from zeus_service.db.transactions import use_case
from zeus_service.errors import BrokenJob, IncompleteHistory, JobBusy, NotFound

P = ParamSpec("P")
R = TypeVar("R")

logger = logging.getLogger(__name__)

_EVER = 1e15
"""Unix seconds after the end of every trial."""


@dataclass
class Dropped:
    """How many rows were deleted."""

    trials: int = 0
    reports: int = 0
    events: int = 0


def prune(*, older_than_s: float, keep: int = 0) -> Dropped:
    """Drop trials, reports and events that no job's state needs any more.

    A trial is dropped, with its reports, when it ended longer ago than this, its lease is over, and
    it is not among its job's latest `keep`. Events are dropped from the start of a job's history up
    to the first that is younger, or belongs to one of the latest trials; a checkpoint takes their
    place. Jobs, their states and power profiles stay, and numbers of trials are not used again.
    """
    dropped, now, after = Dropped(), clock.now(), ""
    while page := _job_ids(after=after, limit=PORTION):
        for job_id in page:
            try:
                with reading(f"job {job_id!r}", REBUILD):
                    job = _head(job_id)
                    old = Old(now=now, ended_before=now - older_than_s, last=job.trials - keep)
                    _drop_trials(job, old, dropped)
                    _drop_old_events(job, old, dropped)
            except NotFound:  # it was deleted meanwhile
                continue
            except BrokenJob as error:  # its events stay; the others come next
                logger.warning("%s", error.message)
            except IncompleteHistory as error:
                logger.warning("%s; `zeus-service rebuild` may close the gap", error.message)
        after = page[-1]
    give_space_back()
    return dropped


@use_case(read_only=True)
def check_deletable(connection: Connection, job_id: str, *, force: bool = False) -> None:
    """Raise what `delete_job` would now: `NotFound`, or `JobBusy`."""
    jobs.head(connection, job_id)
    _check_deletable(connection, job_id, force)


def delete_job(job_id: str, *, force: bool = False) -> None:
    """Delete a job, its trials, reports, events and power profiles.

    The rows of a large job go first, in small transactions, and the job last. If a trial is started
    meanwhile, and `force` is not set, the job stays: it has its state, without its earlier trials.

    Raises:
        NotFound: No such job.
        JobBusy: It has running trials, and `force` is not set.
    """
    job = _begin_to_delete(job_id, force)
    if job is None:
        return
    dropped = Dropped()
    _drop_trials(job, Old(now=_EVER, ended_before=_EVER, last=MAX_INTEGER), dropped)
    _sweep_events(job, dropped)
    _finish_to_delete(job, force)
    give_space_back()


def rebuild(job_id: str) -> bool:
    """Fold a job's events again, and store the state if it differs; return whether it was the same.

    The row's numbers are corrected, too, where the job's trials and events determine them. They do
    not determine what the job has saved: if that cannot be read, savings begin anew.

    The fold starts from the job's checkpoint and needs no lock: events do not change. Under the
    lock, the result is stored only if no event was added meanwhile; otherwise the fold goes on.

    Where numbers are missing among the events, but the fold of those that there are gives the
    stored state, no event is missing: the row's number of events was too high when later ones were
    added. A checkpoint then takes the place of all events. So it does where the number of a
    checkpoint is too high, and the events before that number give the stored state, too.

    Raises:
        NotFound: No such job.
        IncompleteHistory: Events are missing.
    """
    if _replace_checkpoint_with_too_high_a_number(job_id):
        return False
    corrected = bool(_corrections(job_id)) and _correct(job_id)
    corrected |= _savings_are_damaged(job_id) and _begin_savings_anew(job_id)
    try:
        return _fold_anew(job_id) and not corrected
    except IncompleteHistory as error:
        with suppress(BrokenJob):
            if _close_gap(job_id, *_checkpoint(job_id)):
                return False
        text = f"{error.message}; runs go on from it, and a backup may have the event"
        raise IncompleteHistory(text) from error


def give_space_back() -> None:
    """Shrink SQLite's file; the other databases use free space again by themselves."""
    if db.engine.dialect.name != "sqlite":
        return
    try:
        shrink_sqlite_file(Path(db.engine.url.database or ""))
    except sqlite3.Error as error:  # the rows are deleted all the same
        logger.warning("the database's file was not shrunk: %s", error)


# --- trials and events that are dropped ----------------------------------------------------------


def _drop_trials(job: JobHead, old: Old, dropped: Dropped) -> None:
    after = 0
    while numbers := _old_trials(job.job_id, old, after=after):
        more = True
        while more:
            trials, reports, more = _paced(_drop_some, job, old, numbers)
            dropped.trials += trials
            dropped.reports += reports
        after = numbers[-1]


def _drop_old_events(job: JobHead, old: Old, dropped: Dropped) -> None:
    def is_old(stored: StoredEvent) -> bool:
        return stored.happened_at < old.ended_before and stored.event.trial_number <= old.last

    _replace_checkpoint_with_too_high_a_number(job.job_id)
    while True:
        _read_on(job.job_id, None)  # raises, if the checkpoint cannot be read
        _sweep_events(job, dropped)
        spec, point, events = _read_on(job.job_id, None)
        first = list(takewhile(is_old, events))
        if not first or not _paced(_move_checkpoint, job.job_id, point, _fold(spec, point, first)):
            return


def _sweep_events(job: JobHead, dropped: Dropped) -> None:
    while count := _paced(_drop_some_events, job):
        dropped.events += count


_job_ids = use_case(read_only=True)(jobs.ids)
_head = use_case(read_only=True)(jobs.head)
_old_trials = use_case(read_only=True)(retention.old_trials)


@use_case()
def _drop_some(
    connection: Connection, job: JobHead, old: Old, numbers: range
) -> tuple[int, int, bool]:
    if not jobs.head(connection, job.job_id, lock=True).is_same_job(job):
        return 0, 0, False
    return retention.drop_trials(connection, job.job_id, old, numbers)


@use_case()
def _drop_some_events(connection: Connection, job: JobHead) -> int:
    if not jobs.head(connection, job.job_id, lock=True).is_same_job(job):
        return 0
    return retention.drop_events(connection, job.job_id)


@use_case()
def _move_checkpoint(connection: Connection, job_id: str, old: Checkpoint, new: Checkpoint) -> bool:
    if not jobs.head(connection, job_id, lock=True).is_same_job(new.job):
        return False
    return checkpoints.replace(connection, old, new)


# --- a job that is deleted -----------------------------------------------------------------------


@use_case()
def _begin_to_delete(connection: Connection, job_id: str, force: bool) -> JobHead | None:
    """Delete a job if it is small; otherwise return it, with its state for its checkpoint."""
    job = jobs.head(connection, job_id, lock=True)
    _check_deletable(connection, job_id, force)
    if retention.is_small(connection, job_id):
        jobs.delete(connection, job_id)
        return None
    checkpoints.set_to_stored_state(connection, job_id)
    return job


@use_case()
def _finish_to_delete(connection: Connection, job: JobHead, force: bool) -> None:
    if jobs.head(connection, job.job_id, lock=True).is_same_job(job):
        _check_deletable(connection, job.job_id, force)
        jobs.delete(connection, job.job_id)


def _check_deletable(connection: Connection, job_id: str, force: bool) -> None:
    running = jobs.count_running(connection, job_id)
    if running and not force:
        busy = f"job {job_id!r} has {running} running trials; delete it with force=true, or --force"
        raise JobBusy(busy, running=running)


# --- the fold ------------------------------------------------------------------------------------


def _fold_anew(job_id: str) -> bool:
    """Store the fold of a job's events in place of its state; return whether it was the same."""
    spec, point, events = _read_on(job_id, None)
    while True:
        while events:
            point = _fold(spec, point, events)
            spec, point, events = _read_on(job_id, point)
        same = _store(job_id, point)
        if same is not None:
            return same
        spec, point, events = _read_on(job_id, point)


def _replace_checkpoint_with_too_high_a_number(job_id: str) -> bool:
    """Set a checkpoint to the stored state, if only all events that there are give that.

    Events up to a checkpoint's number are left where a `prune` was interrupted: then the later ones
    give the stored state. If the number is too high, some of them come after the checkpoint.
    """
    with suppress(BrokenJob):
        spec, point = _checkpoint(job_id)
        left = _events_after(job_id, 0, limit=1) if point.sequence else []
        if left and left[0].sequence <= point.sequence:
            return _close_gap(job_id, spec, replace(point, sequence=0))
    return False


def _close_gap(job_id: str, spec: JobSpec, point: Checkpoint) -> bool:
    """Set a checkpoint over numbers that no event has, if the events give the stored state.

    Then none of them is missing: the number of events on the job's row was too high, and later
    events have numbers after that.

    Args:
        job_id: The job.
        spec: Its specification.
        point: From where its events are folded.
    """
    closed = None
    while closed is None:
        while events := _events_after(job_id, point.sequence, limit=PORTION):
            point = point.after(spec, events, gaps=True)
        closed = _set_checkpoint_to_state(job_id, point)
    return closed


@use_case(read_only=True)
def _read_on(
    connection: Connection, job_id: str, point: Checkpoint | None
) -> tuple[JobSpec, Checkpoint, list[StoredEvent]]:
    """Read the next events after a point of a job's history, by default after its checkpoint.

    Returns:
        The job's specification, the point, and the events. The point is a later one if the job's
        checkpoint has passed it, and the start if the job was registered anew.
    """
    while True:
        head = jobs.head(connection, job_id)
        spec = jobs.spec_of(connection, job_id)
        if point is None or not point.job.is_same_job(head):
            point = checkpoints.latest(connection, spec, head)
        events = checkpoints.events_after(connection, job_id, point.sequence, limit=PORTION)
        latest = checkpoints.latest(connection, spec, head)
        if not jobs.head(connection, job_id).is_same_job(head):
            continue  # it was registered anew between these reads
        if latest.sequence <= point.sequence:  # none of these events was dropped before it was read
            break
        point = latest
    if not events and point.sequence < head.events:
        raise _incomplete(job_id, point.sequence + 1)
    return spec, point, events


def _fold(spec: JobSpec, point: Checkpoint, events: list[StoredEvent]) -> Checkpoint:
    try:
        return point.after(spec, events)
    except MissingEvents as error:
        raise _incomplete(spec.job_id, error.args[0]) from error


def _incomplete(job_id: str, sequence: int) -> IncompleteHistory:
    return IncompleteHistory(
        f"event {sequence} of job {job_id!r} is missing, so its state stays as it is stored"
    )


@use_case()
def _store(connection: Connection, job_id: str, point: Checkpoint) -> bool | None:
    """Store a folded state; return whether it was the same, or None if it is not the latest."""
    head = jobs.head(connection, job_id, lock=True)
    if not head.is_same_job(point.job) or head.events != point.sequence:
        return None
    return not jobs.replace_state(connection, jobs.spec_of(connection, job_id), point.state)


@use_case(read_only=True)
def _checkpoint(connection: Connection, job_id: str) -> tuple[JobSpec, Checkpoint]:
    spec = jobs.spec_of(connection, job_id)
    return spec, checkpoints.latest(connection, spec, jobs.head(connection, job_id))


_events_after = use_case(read_only=True)(checkpoints.events_after)


@use_case()
def _set_checkpoint_to_state(connection: Connection, job_id: str, point: Checkpoint) -> bool | None:
    """Make the stored state the checkpoint if it is that of a point.

    Returns:
        Whether it is; None if there are later events than the point's.
    """
    head = jobs.head(connection, job_id, lock=True)
    if not head.is_same_job(point.job) or head.events < point.sequence:
        return False
    if checkpoints.events_after(connection, job_id, point.sequence, limit=1):
        return None
    if jobs.get(connection, job_id).state != point.state:
        return False
    checkpoints.set_to_stored_state(connection, job_id)
    return True


_corrections = use_case(read_only=True)(job_numbers.corrections)
_savings_are_damaged = use_case(read_only=True)(job_savings.savings_are_damaged)


@use_case()
def _correct(connection: Connection, job_id: str) -> bool:
    jobs.head(connection, job_id, lock=True)
    return job_numbers.correct(connection, job_id)


@use_case()
def _begin_savings_anew(connection: Connection, job_id: str) -> bool:
    jobs.head(connection, job_id, lock=True)
    if not job_savings.savings_are_damaged(connection, job_id):  # a start has begun them meanwhile
        return False
    job_savings.begin_savings_anew(connection, jobs.spec_of(connection, job_id))
    return True


def _paced(transaction: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Call a use case, and pause for as long as it took, so that others get their turn."""
    began = time.monotonic()
    try:
        return transaction(*args, **kwargs)
    finally:
        time.sleep(min(time.monotonic() - began, 1.0))
