"""The use cases, one transaction each, but a report that ends its run takes two.

All that changes a job's bandit state happens here, under a lock on the job's row that the database
holds: any number of workers on any number of hosts is correct. A report that only says "keep going"
takes no job lock.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from sqlalchemy import (
    Connection,
    Row,
    Select,
    and_,
    bindparam,
    delete,
    func,
    insert,
    select,
    update,
)

from zeus_service import history, messages, stopping, views
from zeus_service.errors import (
    ExhaustedJob,
    JobBusy,
    JobConflict,
    KeyConflict,
    ReportConflict,
    TrialFinished,
    UnknownPolicy,
    no_job,
    no_trial,
)
from zeus_service.locked_job import (
    EXPIRED_TRIALS,
    LOCKED_JOB,
    SAVED_JOB,
    LockedJob,
)
from zeus_service.models import EVENTS, JOBS, REPORTS, TRIALS
from zeus_service.policies import (
    DEFAULT_POLICY,
    POLICIES,
    ArmEstimate,
    Choice,
    NoBatchSizeLeft,
    policy_of,
)
from zeus_service.signals import announce, energy_measured
from zeus_service.spec import JobSpec
from zeus_service.transactions import Raced, use_case
from zeus_service.writes import Writes, named, parameter

_HARDWARE = {"max_power_w", "num_devices", "device_model", "meter"}
_OTHER_HARDWARE = (
    " Costs on different hardware, or by different meters, cannot be compared: a job belongs to one"
    " kind of machine, its number of GPUs or CPU cores included."
)

# Statements of each start and report, made once: making them takes longer than carrying them out.
_KNOWN = TRIALS.alias("known")
_FOR_START = LOCKED_JOB.add_columns(
    _KNOWN.c.job_id.label("known_job_id"),
    _KNOWN.c.trial_number.label("known_number"),
    EXPIRED_TRIALS.exists().label("any_expired"),
).outerjoin_from(JOBS, _KNOWN, _KNOWN.c.idempotency_key == bindparam("key"))
_STARTED = Writes(TRIALS, EVENTS, SAVED_JOB)

_THIS_TRIAL = and_(
    TRIALS.c.job_id == bindparam("job"), TRIALS.c.trial_number == bindparam("number")
)
_THE_TRIAL = select(TRIALS).where(_THIS_TRIAL)
_TRIAL = TRIALS.c["trial_number", "reports", "outcome", "batch_size", "why", "energy_j", "cost"]
_FOR_REPORT = (
    select(*_TRIAL, *JOBS.c["job_id", "spec", "cost_bound"])
    .join(JOBS, JOBS.c.job_id == TRIALS.c.job_id)
    .where(_THIS_TRIAL)
)
_FOR_LOCKED_REPORT = (
    LOCKED_JOB.add_columns(*_TRIAL)
    .join_from(JOBS, TRIALS, JOBS.c.job_id == TRIALS.c.job_id)
    .where(_THIS_TRIAL)
)
_STORED_REPORT = select(REPORTS).where(
    REPORTS.c.job_id == bindparam("job"),
    REPORTS.c.trial_number == bindparam("number"),
    REPORTS.c.sequence == bindparam("reported"),
)
_REPORTED_TRIAL = (
    update(TRIALS)
    .where(
        _THIS_TRIAL,
        TRIALS.c.reports == bindparam("reported"),
        TRIALS.c.outcome.is_not_distinct_from(bindparam("ended_as")),
    )
    .values(
        {
            name: parameter(TRIALS, name)
            for name in (
                "reports",
                "epoch",
                "time_s",
                "energy_j",
                "metric",
                "cost",
                "lease_expires_at",
                "outcome",
                "reason",
                "ended_at",
            )
        }
    )
)
_ENDED = Writes(
    update(TRIALS)
    .where(_THIS_TRIAL)
    .values({name: parameter(TRIALS, name) for name in ("outcome", "reason", "ended_at")}),
    EVENTS,
    SAVED_JOB,
)
_REPORTED = Writes(_REPORTED_TRIAL, REPORTS)
_REPORTED_TO_JOB = Writes(_REPORTED_TRIAL, REPORTS, EVENTS, SAVED_JOB)


@use_case()
def register_job(connection: Connection, given: JobSpec) -> tuple[messages.Job, bool]:
    """Register a job, or confirm that it is known with this configuration.

    Returns:
        The job, and whether it is new.

    Raises:
        UnknownPolicy: No policy has the name given.
        JobConflict: The id is known with another configuration.
    """
    policy = POLICIES.get(given.policy or DEFAULT_POLICY)
    if policy is None:
        raise UnknownPolicy(
            f"policy {given.policy!r} is not known; choose one of {sorted(POLICIES)}",
            errors={"policy": [f"must be one of {sorted(POLICIES)}"]},
        )
    resolved = given.model_copy(update={"policy": policy.name})
    row = connection.execute(select(JOBS).where(JOBS.c.job_id == given.job_id)).one_or_none()
    if row is not None:
        differences = JobSpec.model_validate(row.spec).differences(given)
        if differences:
            raise JobConflict(
                f"job {given.job_id!r} is known with another configuration: "
                + "; ".join(
                    f"{name} is {values['known']!r} there and {values['given']!r} here"
                    for name, values in differences.items()
                )
                + ". Use another job_id, or delete the job to start anew."
                + (_OTHER_HARDWARE if _HARDWARE & differences.keys() else ""),
                differences=differences,
            )
        return views.job(connection, row), False
    now = time.time()
    connection.execute(
        insert(JOBS).values(
            job_id=resolved.job_id,
            spec=resolved.model_dump(mode="json"),
            state=history.fold(resolved, []),
            cost_bound=None,
            trials=0,
            events=0,
            created_at=now,
            updated_at=now,
        )
    )
    return views.job(connection, _job_row(connection, resolved.job_id)), True


@use_case()
def start_trial(
    connection: Connection, job_id: str, idempotency_key: str | None
) -> tuple[messages.TrialStart, bool]:
    """Start a trial; the same key again gets the same trial.

    Trials whose lease has run out are marked lost first.

    Returns:
        What to train with, and whether the trial is new.

    Raises:
        NotFound: No such job.
        KeyConflict: The key was used for another job.
        ExhaustedJob: Every batch size has failed.
    """
    job = LockedJob.take(connection, job_id, _FOR_START, key=idempotency_key, now=time.time())
    if job.row.known_job_id is not None:
        if job.row.known_job_id != job_id:
            raise KeyConflict("this Idempotency-Key was used for another job; make a new one")
        known = _trial_row(connection, job_id, job.row.known_number)
        return views.trial_start(job.spec, known._asdict()), False
    now = time.time()  # the lock may have taken a while
    if job.row.any_expired:
        job.lose_expired(now)
    number = job.row.trials + 1
    policy = policy_of(job.spec)
    rng = np.random.default_rng([job.spec.random_seed(), number])
    try:
        choice = policy.next_batch_size(job.spec, job.state, rng)
    except NoBatchSizeLeft:
        raise ExhaustedJob(
            f"job {job_id!r} has no batch size left to try: "
            f"{_failures(policy.describe(job.spec, job.state))}. Register it under another "
            "job_id, with a target that can be reached, more epochs, or other batch sizes."
        ) from None
    values = {
        "job_id": job_id,
        "trial_number": number,
        "idempotency_key": idempotency_key,
        "batch_size": choice.batch_size,
        "why": choice.why,
        "start_reason": _why(policy.stage(job.spec, job.state), choice),
        "start_cost_bound": job.cost_bound(),
        "outcome": None,
        "reason": "",
        "started_at": now,
        "ended_at": None,
        "lease_expires_at": now + job.spec.lease_s,
        "reports": 0,
        "epoch": 0,
        "time_s": 0.0,
        "energy_j": 0.0,
        "metric": None,
        "cost": 0.0,
    }
    job.append(history.Event("started", number, choice))
    job.save(_STARTED, named(TRIALS, values), now)
    return views.trial_start(job.spec, values), True


def report(job_id: str, trial_number: int, given: messages.Report) -> messages.Decision:
    """Take a report and decide whether the run goes on; the same report again, the same answer.

    A report of a trial that was lost or interrupted takes that back.

    Raises:
        NotFound: No such job or trial.
        ReportConflict: The sequence number was used with other figures, or is behind the last.
        TrialFinished: The trial has ended for good.
    """
    return _report_without_lock(job_id, trial_number, given) or _report_with_lock(
        job_id, trial_number, given
    )


@use_case(one_write=True)
def _report_without_lock(
    connection: Connection, job_id: str, trial_number: int, given: messages.Report
) -> messages.Decision | None:
    """Take a report that changes its trial only; None: it does more, and nothing has been done."""
    this = {"job": job_id, "number": trial_number}
    seen = connection.execute(_FOR_REPORT, this).one_or_none()
    if seen is None:
        raise no_trial(job_id, trial_number)
    decision, known = _decide(connection, seen, given)
    if known:
        return decision
    if decision.outcome is not None or seen.outcome is not None:
        return None
    now = time.time()
    if not _REPORTED.carry_out(connection, _reported(seen, given, decision, now)):
        raise Raced
    announce(connection, energy_measured, max(0.0, given.energy_j - seen.energy_j))
    return decision


@use_case()
def _report_with_lock(
    connection: Connection, job_id: str, trial_number: int, given: messages.Report
) -> messages.Decision:
    """Take a report that ends its trial or brings it back."""
    job = LockedJob.take(connection, job_id, _FOR_LOCKED_REPORT, number=trial_number)
    seen = job.row
    decision, known = _decide(connection, seen, given)
    if known:
        return decision
    choice = Choice(seen.batch_size, seen.why)
    if seen.outcome is not None:
        job.append(history.Event("revived", trial_number, choice))
    if decision.outcome is not None:
        job.append(history.Event("ended", trial_number, choice, decision.outcome, decision.cost))
    now = time.time()
    values = _reported(seen, given, decision, now)
    if job.events:
        job.save(_REPORTED_TO_JOB, values, now)
    elif not _REPORTED.carry_out(connection, values):
        raise Raced
    announce(connection, energy_measured, max(0.0, given.energy_j - seen.energy_j))
    return decision


@use_case()
def end_trial(
    connection: Connection, job_id: str, trial_number: int, end: messages.TrialEnd
) -> messages.Trial:
    """End a trial that says itself how it ended; the same outcome again changes nothing.

    Raises:
        NotFound: No such job or trial.
        TrialFinished: It has ended otherwise.
    """
    job = LockedJob.take(connection, job_id)
    seen = _trial_row(connection, job_id, trial_number, _THE_TRIAL.with_for_update())
    if seen.outcome == end.outcome:
        return views.trial(seen._asdict())
    if seen.outcome is not None and seen.outcome not in history.RESUMABLE:
        raise _finished(seen)
    now = time.time()
    choice = Choice(seen.batch_size, seen.why)
    if seen.outcome is not None:
        job.append(history.Event("revived", trial_number, choice))
    job.append(history.Event("ended", trial_number, choice, end.outcome, seen.cost))
    changes = {"outcome": end.outcome, "reason": end.reason, "ended_at": now}
    this = {"job": job_id, "number": trial_number}
    job.save(_ENDED, {**this, **named(TRIALS, changes)}, now)
    return views.trial({**seen._asdict(), **changes})


@use_case(one_write=True)
def heartbeat(connection: Connection, job_id: str, trial_number: int) -> messages.Lease:
    """Extend a running trial's lease.

    Raises:
        NotFound: No such job or trial.
        TrialFinished: It has ended, or was lost; a report brings a lost trial back.
    """
    seen = connection.execute(
        select(TRIALS, JOBS.c.spec)
        .join(JOBS, JOBS.c.job_id == TRIALS.c.job_id)
        .where(TRIALS.c.job_id == job_id, TRIALS.c.trial_number == trial_number)
    ).one_or_none()
    if seen is None:
        raise no_trial(job_id, trial_number)
    if seen.outcome is not None:
        raise _finished(seen)
    lease_s = float(seen.spec["lease_s"])
    changed = connection.execute(
        update(TRIALS)
        .where(
            TRIALS.c.job_id == job_id,
            TRIALS.c.trial_number == trial_number,
            TRIALS.c.outcome.is_(None),
        )
        .values(lease_expires_at=time.time() + lease_s)
    )
    if changed.rowcount == 0:
        raise Raced
    return messages.Lease(lease_s=lease_s)


@use_case(read_only=True)
def get_job(connection: Connection, job_id: str) -> messages.Job:
    """A job and what is believed about its batch sizes.

    Raises:
        NotFound: No such job.
    """
    return views.job(connection, _job_row(connection, job_id))


@use_case(read_only=True)
def list_jobs(connection: Connection, *, after: str = "", limit: int = 100) -> messages.JobList:
    """Jobs with an id greater than `after`, ordered by id."""
    rows = connection.execute(
        select(JOBS).where(JOBS.c.job_id > after).order_by(JOBS.c.job_id).limit(limit)
    ).all()
    return messages.JobList(jobs=[views.summary(row) for row in rows])


@use_case()
def delete_job(connection: Connection, job_id: str, *, force: bool = False) -> None:
    """Delete a job, its trials, reports and events.

    Raises:
        NotFound: No such job.
        JobBusy: It has running trials, and `force` is not set.
    """
    LockedJob.take(connection, job_id)
    running = connection.execute(
        select(func.count())
        .select_from(TRIALS)
        .where(TRIALS.c.job_id == job_id, TRIALS.c.outcome.is_(None))
    ).scalar_one()
    if running and not force:
        raise JobBusy(
            f"job {job_id!r} has {running} running trials; delete it with force=true",
            running=running,
        )
    connection.execute(delete(JOBS).where(JOBS.c.job_id == job_id))


@use_case(read_only=True)
def get_trial(connection: Connection, job_id: str, trial_number: int) -> messages.Trial:
    """A trial as it is.

    Raises:
        NotFound: No such job or trial.
    """
    return views.trial(_trial_row(connection, job_id, trial_number)._asdict())


@use_case(read_only=True)
def list_trials(
    connection: Connection, job_id: str, *, after: int = 0, limit: int = 100
) -> messages.TrialList:
    """A job's trials with a number greater than `after`, ordered by number.

    Raises:
        NotFound: No such job.
    """
    _job_row(connection, job_id)
    rows = connection.execute(
        select(TRIALS)
        .where(TRIALS.c.job_id == job_id, TRIALS.c.trial_number > after)
        .order_by(TRIALS.c.trial_number)
        .limit(limit)
    ).all()
    return messages.TrialList(trials=[views.trial(row._asdict()) for row in rows])


@use_case()
def rebuild(connection: Connection, job_id: str) -> bool:
    """Fold a job's events again from the start and store the result.

    Returns:
        Whether the stored state was the same already.

    Raises:
        NotFound: No such job.
    """
    job = LockedJob.take(connection, job_id)
    rows = connection.execute(
        select(EVENTS).where(EVENTS.c.job_id == job_id).order_by(EVENTS.c.sequence)
    ).all()
    folded = history.fold(job.spec, [views.event(row) for row in rows])
    if folded == job.state:
        return True
    job.replace_state(folded, time.time())
    return False


def _decide(
    connection: Connection, seen: Row[Any], given: messages.Report
) -> tuple[messages.Decision, bool]:
    """The decision on a report, and whether it has been taken and answered before."""
    if given.sequence <= seen.reports:
        return _same_answer(connection, seen, given), True
    if seen.outcome is not None and seen.outcome not in history.RESUMABLE:
        raise _finished(seen)
    spec = JobSpec.model_validate(seen.spec)
    return (
        stopping.decide(spec, given, previous_cost=seen.cost, cost_bound=seen.cost_bound),
        False,
    )


def _same_answer(
    connection: Connection, seen: Row[Any], given: messages.Report
) -> messages.Decision:
    stored = connection.execute(
        _STORED_REPORT,
        {"job": seen.job_id, "number": seen.trial_number, "reported": given.sequence},
    ).one_or_none()
    if stored is None:
        raise ReportConflict(
            f"report {given.sequence} comes after report {seen.reports} of the same trial"
        )
    known = messages.Report.model_validate(stored, from_attributes=True)
    if known != given:
        raise ReportConflict(
            f"report {given.sequence} was sent before with other figures", known=known.model_dump()
        )
    return messages.Decision.model_validate(stored, from_attributes=True)


def _reported(
    seen: Row[Any], given: messages.Report, decision: messages.Decision, now: float
) -> dict[str, Any]:
    """Values for `_REPORTED`."""
    trial = {
        "reports": given.sequence,
        "epoch": given.epoch,
        "time_s": given.time_s,
        "energy_j": given.energy_j,
        "metric": given.metric,
        "cost": decision.cost,
        "lease_expires_at": now + seen.spec["lease_s"],
        "outcome": decision.outcome,
        "reason": decision.reason if decision.outcome else "",
        "ended_at": now if decision.outcome else None,
    }
    report = {
        "job_id": seen.job_id,
        "trial_number": seen.trial_number,
        "reported_at": now,
        **given.model_dump(),
        **decision.model_dump(),
    }
    return {
        "job": seen.job_id,
        "number": seen.trial_number,
        "reported": seen.reports,
        "ended_as": seen.outcome,
        **named(TRIALS, trial),
        **named(REPORTS, report),
    }


def _job_row(connection: Connection, job_id: str) -> Row[Any]:
    row = connection.execute(select(JOBS).where(JOBS.c.job_id == job_id)).one_or_none()
    if row is None:
        raise no_job(job_id)
    return row


def _trial_row(
    connection: Connection,
    job_id: str,
    trial_number: int,
    query: Select[Any] = _THE_TRIAL,
) -> Row[Any]:
    row = connection.execute(query, {"job": job_id, "number": trial_number}).one_or_none()
    if row is None:
        raise no_trial(job_id, trial_number)
    return row


def _finished(row: Row[Any]) -> TrialFinished:
    return TrialFinished(
        f"trial {row.trial_number} of job {row.job_id!r} has ended: {row.outcome}",
        outcome=row.outcome,
    )


def _why(stage: str, choice: Choice) -> str:
    return {
        "explore": f"to learn what it costs (stage: {stage})",
        "exploit": "the best draw of what is known",
        "concurrent": "while another trial explores: the best known, or the default",
    }[choice.why]


def _failures(arms: list[ArmEstimate]) -> str:
    tried = [f"{arm.batch_size} ({arm.status})" for arm in arms if arm.pulls]
    beyond = [str(arm.batch_size) for arm in arms if not arm.pulls]
    text = f"{', '.join(tried)} failed"
    return f"{text}; {', '.join(beyond)} lie beyond these and were not tried" if beyond else text
