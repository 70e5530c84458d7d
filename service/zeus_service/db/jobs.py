"""Load jobs and trials, and fold the starts and ends of trials into their job.

What changes a job is called with the job's row locked. An unknown job or trial raises `NotFound`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any, TypeVar

from pydantic import ValidationError
from sqlalchemy import bindparam, func, insert, inspect, select, update
from sqlalchemy.orm import InstanceState, Session, undefer_group

from zeus_service import counters
from zeus_service.bandit import fold
from zeus_service.bandit.outcomes import Outcome
from zeus_service.bandit.registry import policy_of
from zeus_service.bandit.spec import Hardware, JobSpec
from zeus_service.db import savings
from zeus_service.db.session import after_commit, unix_now
from zeus_service.db.tables import MAX_REASON, Job, Trial
from zeus_service.errors import BrokenJob, NotFound, job_conflict, unknown_job

T = TypeVar("T")

_KEEPS_HARDWARE = "Zeus's client supports one kind of hardware per job; use another job_id."
_KEEPS_DEVICES = (
    "Batch sizes are per device, so all runs need the same number of devices; use another job_id."
)

LOADS = 20
"""The trials before another one whose host loads are compared with its own."""
MAX_LOST_AT_ONCE = 300
"""Expired trials that one start marks as lost: some tenths of a second. Later ones go on."""


def find(session: Session, job_id: str) -> Job | None:
    """Read a job with its state, without a lock; None if there is none."""
    return session.scalars(_JOB, {"job_id": job_id}).one_or_none()


def get(session: Session, job_id: str) -> Job:
    """Read a job with its state, without a lock."""
    return _known(find(session, job_id), job_id)


def lock(session: Session, job_id: str) -> Job:
    """Lock a job, with its state, until the transaction ends."""
    this = {"job_id": job_id}
    return _known(_first_or_again(lambda: session.scalars(_LOCKED_JOB, this).one_or_none()), job_id)


def lock_trial(session: Session, job_id: str, trial_number: int) -> tuple[Job, Trial]:
    """Lock a job, and one of its trials, without the job's state until it is needed.

    Both rows are locked: a row that is only joined could be older than the lock on PostgreSQL.
    """
    this = {"job_id": job_id, "trial_number": trial_number}
    row = _first_or_again(lambda: session.execute(_LOCKED_TRIAL, this).one_or_none())
    if row is None:
        raise unknown_trial(job_id, trial_number)
    return row.Job, row.Trial


# Built once: each request uses one of them.
_JOB = select(Job).where(Job.job_id == bindparam("job_id")).options(undefer_group("state"))
# What the session read before the lock is older than the row.
_LOCKED_JOB = _JOB.with_for_update(key_share=True, of=Job).execution_options(populate_existing=True)
_LOCKED_TRIAL = (
    select(Job, Trial)
    .join(Trial, Job.key == Trial.job_key)
    .where(Job.job_id == bindparam("job_id"), Trial.trial_number == bindparam("trial_number"))
    .with_for_update(key_share=True, of=[Job, Trial])
)
_EXPIRED = (
    select(Trial)
    .where(
        Trial.job_key == bindparam("job"),
        Trial.outcome.is_(None),
        Trial.lease_expires_at < unix_now(),
    )
    .limit(bindparam("most"))
)

# Starts and reports write by these, not by the ORM, whose flush takes four times as long. They also
# set every column that a parameter names.
_JOB_TABLE, _TRIAL_TABLE = Job.__table__, Trial.__table__
_LEASE = unix_now() + bindparam("lease_s")
_INSERT_TRIAL = insert(_TRIAL_TABLE).values(lease_expires_at=_LEASE)
_UPDATE_TRIAL = (
    update(_TRIAL_TABLE)
    .where(
        _TRIAL_TABLE.c.job_key == bindparam("job"),
        _TRIAL_TABLE.c.trial_number == bindparam("number"),
    )
    .values(lease_expires_at=_LEASE)
)
_END_TRIAL = _UPDATE_TRIAL.values(ended_at=unix_now())
_UPDATE_JOB = update(_JOB_TABLE).where(_JOB_TABLE.c.key == bindparam("job"))


def unknown_trial(job_id: str, trial_number: int) -> NotFound:
    """The error of a trial that does not exist."""
    return NotFound(f"job {job_id!r} has no trial {trial_number}")


def specification(job: Job, *, repair: bool = False) -> JobSpec:
    """Return a job's specification.

    Args:
        job: The job.
        repair: Accept a state that its policy cannot have made.

    Raises:
        BrokenJob: The row has no valid specification, or a state that its policy cannot have made,
            or the policy is not installed.
    """
    try:
        spec = JobSpec.model_validate(job.spec)
        if "state" not in vars(job):  # a report after which the run continues does not need it
            return spec
        initial = policy_of(spec).initial_state(spec)
    except (KeyError, ValidationError) as error:
        raise BrokenJob(f"job {job.job_id!r} cannot be used: {_reason(error)}") from error
    if not repair and not initial.keys() <= job.state.keys():
        raise BrokenJob(
            f"job {job.job_id!r} cannot be used: its state does not belong to policy "
            f"{spec.policy!r}; run `zeus-service rebuild {job.job_id}`"
        )
    return spec


def new_job(spec: JobSpec, *, trials: int = 0, hardware: Hardware | None = None) -> Job:
    """Make the row of a job without trials.

    Args:
        spec: Its specification.
        trials: The latest number of a trial that is not used again.
        hardware: What all its trials will use, if a client of the Zeus project registers it.
    """
    job = Job(
        job_id=spec.job_id,
        spec=spec.model_dump(mode="json"),
        state=policy_of(spec).initial_state(spec),
        inconclusive={},
        trials=trials,
        sequence=0,
        ledger={},
        hardware=[],
        keeps_hardware=False,
        estimated=False,
        exploits=0,
        failures=0,
        completed_baselines=0,
        spent_energy_j=0.0,
    )
    summarize(job, spec)
    if hardware is not None:
        set_hardware(job, spec, hardware, keep=True)
    return job


def set_target(job: Job, target: float) -> JobSpec:
    """Set the target of a locked job that has none; return its new specification."""
    job.spec = {**job.spec, "target_metric": target}
    spec = specification(job)
    summarize(job, spec)
    return spec


def running(
    session: Session, job: Job, *, with_lease: bool = False, limit: int | None = None
) -> list[Trial]:
    """Read a job's running trials, ascending by number.

    Args:
        session: In a transaction.
        job: The job.
        with_lease: Only those whose lease has not expired.
        limit: At most so many, any of them.
    """
    # Ordered here: to order them, SQLite would read all trials of the job.
    query = select(Trial).where(Trial.job_key == job.key, Trial.outcome.is_(None)).limit(limit)
    if with_lease:
        query = query.where(Trial.lease_expires_at >= unix_now())
    return sorted(session.scalars(query), key=lambda trial: trial.trial_number)


def usual_host_load(session: Session, trial: Trial) -> float | None:
    """Read the mean host load of the trials before a job's trial; None if none has one."""
    number = trial.trial_number
    is_before = Trial.trial_number.between(number - LOADS, number - 1)
    query = select(func.avg(Trial.host_load)).where(Trial.job_key == trial.job_key, is_before)
    return session.scalar(query)


def history(session: Session, job: Job) -> Sequence[Any]:
    """Read what is replayed of a job's trials: in the order of their ends, then the running."""
    names = ("trial_number", "batch_size", "hardware", "why", "outcome", "era")
    measured = ("epoch", "cost", "energy_j", "time_s", "power_limit_w", "default_power_limit_w")
    columns = (getattr(Trial, name) for name in (*names, *measured))
    query = select(*columns).where(Trial.job_key == job.key)
    ended_first = Trial.ended_seq.is_(None)  # databases differ in where nulls come
    return session.execute(query.order_by(ended_first, Trial.ended_seq, Trial.started_seq)).all()


def has_taught_nothing(session: Session, job: Job, spec: JobSpec) -> bool:
    """Whether a locked job has had trials, all have ended, and none completed or had a result.

    A job that has had no trial does not count: the run that has just registered it is about to
    start one.
    """
    mark_lost(session, job, spec)
    session.flush()
    is_idle = bool(job.trials) and not running(session, job, limit=1)
    return is_idle and not _has_learned(job, spec)


def _has_learned(job: Job, spec: JobSpec) -> bool:
    initial = policy_of(spec).initial_state(spec)
    return job.completed_baselines > 0 or job.state != initial


def set_hardware(job: Job, spec: JobSpec, hardware: Hardware, *, keep: bool = False) -> None:
    """Note what the next trial of a locked job uses.

    Args:
        job: The job.
        spec: Its specification.
        hardware: The hardware.
        keep: Whether all its trials use it from now on.

    Raises:
        JobConflict: It keeps other hardware, or another number of devices; or it should keep this,
            but has used other hardware before. A job that has learned nothing keeps none.
    """
    values, keep = asdict(hardware), keep or job.keeps_hardware
    is_per_device = spec.batch_size_scope == "per_device"
    kept = list(values) if keep else ["num_devices"] if is_per_device else []
    for known in job.hardware:
        differences = {
            name: {"known": known[name], "given": values[name]}
            for name in kept
            if known[name] != values[name]
        }
        if not differences:
            continue
        if job.trials and not _has_learned(job, spec):  # the first run may be wrong
            job.hardware = []
            break
        advice = _KEEPS_HARDWARE if keep else _KEEPS_DEVICES
        raise job_conflict(spec.job_id, differences, advice)
    job.keeps_hardware = keep
    if job.hardware and Hardware.of(job.hardware[-1]) == hardware:
        return
    others = [known for known in job.hardware if Hardware.of(known) != hardware]
    job.hardware = [*others, values]
    job.estimated = any(known["estimated"] for known in job.hardware)
    summarize(job, spec)


def cost_bound(job: Job, hardware: Hardware) -> float | None:
    """The early-stopping threshold of a job's trials on hardware that it has used, in joules."""
    known = (each for each in job.hardware if Hardware.of(each) == hardware)
    return next((each["cost_bound"] for each in known), None)


def start(session: Session, job: Job, spec: JobSpec, trial: Trial) -> None:
    """Fold the start of a trial into a locked job, and store both.

    They are not in the session afterwards; what the database computes, they do not show.
    """
    job.trials = trial.trial_number
    job.sequence += 1
    trial.started_seq = job.sequence
    job.state = fold.begin(spec, job.state, trial)
    if trial.why == "exploit":
        job.exploits += 1
    elif trial.why == "explore":
        job.exploits = 0
    values = {**_changes(trial), "lease_s": spec.lease_s}
    session.connection().execute(_INSERT_TRIAL, values)
    _store(session, job)


def store_report(
    session: Session, job: Job, spec: JobSpec, trial: Trial, latest: dict[str, Any]
) -> None:
    """Store the trial of a report, which has set `latest`, and its locked job if that has ended it.

    What has ended is not in the session afterwards.
    """
    values = {"job": job.key, "number": trial.trial_number, "lease_s": spec.lease_s, **latest}
    if trial.outcome is None:
        session.connection().execute(_UPDATE_TRIAL, values)
        return
    values |= _changes(trial)
    del values["ended_at"]  # an expression
    session.connection().execute(_END_TRIAL, values)
    session.expunge(trial)
    _store(session, job)


def _store(session: Session, job: Job) -> None:
    session.connection().execute(_UPDATE_JOB, {"job": job.key, **_changes(job)})
    session.expunge(job)


def _changes(row: Job | Trial) -> dict[str, Any]:
    """The columns that were set since the row was loaded or made."""
    state: InstanceState[Any] = inspect(row)
    names = set(row.__table__.columns.keys()) - state.unmodified
    return {name: value for name, value in vars(row).items() if name in names}


def mark_lost(session: Session, job: Job, spec: JobSpec) -> None:
    """End running trials of a locked job whose lease has expired, at most `MAX_LOST_AT_ONCE`."""
    expired = session.scalars(_EXPIRED, {"job": job.key, "most": MAX_LOST_AT_ONCE})
    for trial in sorted(expired, key=lambda trial: trial.trial_number):
        end(session, job, spec, trial, "lost", "no report or heartbeat arrived within its lease")


def end(
    session: Session, job: Job, spec: JobSpec, trial: Trial, outcome: Outcome, reason: str
) -> None:
    """Fold the end of a running trial into a locked job; the reason is shortened if need be."""
    job.sequence += 1
    trial.outcome, trial.reason, trial.ended_seq = outcome, reason[:MAX_REASON], job.sequence
    trial.ended_at = unix_now()
    job.state, job.inconclusive = fold.end(spec, job.state, job.inconclusive, trial)
    if outcome in ("converged", "completed"):
        job.failures = 0
    elif outcome != "withdrawn":
        job.failures += 1
    job.completed_baselines += outcome == "completed"
    summarize(job, spec)
    savings.record_end(session, job, spec, trial)
    after_commit(session, counters.trials_ended.labels(outcome).inc)


def summarize(job: Job, spec: JobSpec) -> None:
    """Set the columns that follow from the state, for reports and lists of jobs."""
    policy = policy_of(spec)
    found: list[dict[str, Any]] = []
    for hardware in map(Hardware.of, job.hardware):
        bound = policy.cost_bound(spec, job.state, hardware)
        follows = {
            "best_batch_size": policy.best_batch_size(spec, job.state, hardware),
            "cost_bound": bound if math.isfinite(bound) else None,
        }
        found.append({**asdict(hardware), **follows})
    job.hardware = found
    job.exhausted, job.best_batch_size = False, None
    if found:
        job.best_batch_size = found[-1]["best_batch_size"]
        arms = policy.describe(spec, job.state, Hardware.of(found[-1]))
        has_failed = all(arm.status != "alive" for arm in arms)
        job.exhausted = has_failed and spec.target_metric is not None


def _first_or_again(read: Callable[[], T | None]) -> T | None:
    """Read under a lock; again if there is no row.

    PostgreSQL finds none if the job was registered again while the statement waited for its row.
    """
    found = read()
    return read() if found is None else found


def _known(job: Job | None, job_id: str) -> Job:
    if job is None:
        raise unknown_job(job_id)
    return job


def _reason(error: KeyError | ValidationError) -> str:
    if isinstance(error, KeyError):
        return f"policy {error} is not installed; install it in the service's environment"
    found = error.errors(include_url=False, include_context=False, include_input=False)
    return "; ".join(": ".join([*map(str, each["loc"]), each["msg"]]) for each in found)
