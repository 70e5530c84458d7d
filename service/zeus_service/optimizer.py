"""The use cases of runs: start, report and end the trials of a job.

What changes a job happens here, in `registration` and in `maintenance`, in one transaction each,
under a lock on the job's row that the database holds. So the service stays correct with any number
of workers and hosts. An unknown job or trial raises `NotFound`.

Mapped objects are returned as they were at the end of the transaction. What a start returns lacks
the instants that the database has set.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from contextlib import suppress

import numpy as np
from sqlalchemy import Row, bindparam, insert, select
from sqlalchemy.orm import Session
from sqlalchemy.orm.attributes import set_committed_value

from zeus_service import counters
from zeus_service.bandit import choice_reasons, fold, stopping
from zeus_service.bandit.outcomes import FINAL, Outcome
from zeus_service.bandit.policy import UNBOUNDED, Choice, NoBatchSizeLeft, always_granted
from zeus_service.bandit.spec import Hardware, JobSpec
from zeus_service.bandit.stopping import Decision
from zeus_service.db import jobs, queries, tables
from zeus_service.db.rebuild import complete_baseline, revive
from zeus_service.db.session import after_commit, unix_now, use_case
from zeus_service.db.tables import MAX_REASON, Job, Trial
from zeus_service.errors import (
    JobConflict,
    KeyConflict,
    NotCompleted,
    OtherGeneration,
    ReportConflict,
    TrialFinished,
    unknown_job,
)
from zeus_service.savings import power


@use_case()
def start_trial(
    session: Session,
    job_id: str,
    idempotency_key: str | None = None,
    *,
    hardware: Hardware | None = None,
    multiple_of: int = 1,
    control: bool = False,
) -> tuple[Job, Trial, bool]:
    """Start a trial; the same key again returns the same trial.

    Running trials whose lease has expired are marked as lost first. When every batch size has
    failed but a trial from before that is still running, this one may converge: the start gets its
    batch size, as a fallback. Fallbacks allow no others, or two launchers that start one after
    another would never end.

    Args:
        session: In a transaction.
        job_id: The job.
        idempotency_key: Names the start.
        hardware: What the trial uses; None: what a client of the Zeus project has registered.
        multiple_of: What its batch size is divided by, such as the number of devices.
        control: Train with the default batch size, without early stopping. Always granted, like a
            baseline, which each start becomes while the job's target is not known.

    Returns:
        The job, the trial, and whether the trial is new.

    Raises:
        KeyConflict: The key was used for another job, or with another `control`.
        JobConflict: The job keeps other hardware or another number of devices, or none of its batch
            sizes can be divided.
        ExhaustedJob: Every batch size has failed, and no trial from before that is running.
    """
    job = jobs.lock(session, job_id)
    spec = jobs.specification(job)
    if idempotency_key is not None:
        known = _started_with(session, idempotency_key)
        if known is not None:
            is_same = known.why == "baseline" or (known.why == "control") == control
            if known.job_key != job.key or not is_same:
                raise KeyConflict("this Idempotency-Key was used for another start; use a new key")
            return job, known, False
    if hardware is None:
        hardware = _registered_hardware(job)
    jobs.set_hardware(job, spec, hardware)
    jobs.mark_lost(session, job, spec)
    granted = always_granted(spec, control=control)
    usable = _usable(spec, multiple_of, is_default=granted is not None)
    choice = granted or _choose(session, job, spec, hardware, usable)
    if choice is None:
        session.commit()  # the trials that were lost stay so
        if usable == spec.batch_sizes:
            counters.exhausted_starts.inc()
        raise choice_reasons.exhausted(spec, job.state, hardware, multiple_of)
    trial = Trial(
        job_key=job.key,
        trial_number=job.trials + 1,
        generation=secrets.token_hex(8),
        idempotency_key=idempotency_key,
        batch_size=choice.batch_size,
        hardware=hardware,
        why=choice.why,
        start_reason=_reason(job, spec, hardware, choice)[:MAX_REASON],
        start_cost_bound=None if granted else jobs.cost_bound(job, hardware),
        reason="",
        **dict.fromkeys(("reports", "epoch", "time_s", "energy_j", "cost"), 0),
    )
    jobs.start(session, job, spec, trial)
    return job, trial, True


@use_case()
def report(
    session: Session,
    job_id: str,
    trial_number: int,
    given: stopping.Report,
    *,
    generation: str | None = None,
) -> Decision:
    """Store a report and decide whether the run continues; the same report again, the same answer.

    A report revives a trial that has ended with one of the outcomes in `RESUMABLE`. One after which
    the run continues changes only its trial.

    Raises:
        NotFound: No such job or trial.
        OtherGeneration: The trial has another generation than the one given.
        ReportConflict: The sequence number was used with other figures, or is behind the last.
        TrialFinished: The trial has ended for good.
    """
    job, trial = jobs.lock_trial(session, job_id, trial_number)
    _check_generation(job_id, trial, generation)
    if given.sequence <= trial.reports:
        return _same_answer(session, trial, given)
    if trial.outcome in FINAL:
        raise _finished(job_id, trial)
    spec = jobs.specification(job)
    cost_bound = None if trial.why in UNBOUNDED else jobs.cost_bound(job, trial.hardware)
    decision = stopping.decide(
        spec,
        given,
        max_power_w=trial.hardware.max_power_w,
        previous_cost=trial.cost,
        cost_bound=cost_bound,
        is_baseline=trial.why == "baseline",
    )
    if decision.outcome == "early_stopped":
        usual = jobs.usual_host_load(session, trial)
        reason = decision.reason + stopping.busy_host(given.host_load, usual)
        decision = decision.model_copy(update={"reason": reason})
    if trial.outcome is not None:
        revive(session, job, spec, trial)
    joules = max(0.0, given.energy_j - trial.energy_j)
    after_commit(session, lambda: counters.energy_j.inc(joules))
    before_s = trial.time_s if trial.reports else 0.0
    limit_w = power.mean_limit(trial.power_limit_w, before_s, given.power_limit_w, given.time_s)
    latest = {name: getattr(given, name) for name in _LATEST}
    latest |= {"reports": given.sequence, "cost": decision.cost, "power_limit_w": limit_w}
    for name, value in latest.items():
        set_committed_value(trial, name, value)  # `store_report` writes them
    if decision.outcome is not None:
        jobs.end(session, job, spec, trial, decision.outcome, decision.reason)
    jobs.store_report(session, job, spec, trial, latest)
    measured = {name: value for name, value in vars(given).items() if name in _STORED}
    measured |= {"job_key": job.key, "trial_number": trial_number}
    session.connection().execute(_INSERT_REPORT, {**measured, **vars(decision)})
    return decision


@use_case()
def end_trial(
    session: Session,
    job_id: str,
    trial_number: int,
    outcome: Outcome,
    reason: str = "",
    *,
    generation: str | None = None,
    before_report: int | None = None,
) -> Trial:
    """End a trial with the outcome that its run reports; the same outcome again changes nothing.

    Args:
        session: In a transaction.
        job_id: The job.
        trial_number: The trial.
        outcome: How it ended; `completed` may become `converged`: see `complete_baseline`.
        reason: For a person; a baseline that completed gets its own.
        generation: Its generation, if that is known.
        before_report: End it only while it has no report with this sequence number.

    Raises:
        NotFound: No such job or trial.
        OtherGeneration: It has another generation.
        TrialFinished: It has ended with another outcome.
        NotCompleted: It cannot end as `completed`: it is not a baseline, or has no report.
        ReportConflict: It has a report with the sequence number `before_report`, or a later one.
    """
    job, trial = jobs.lock_trial(session, job_id, trial_number)
    _check_generation(job_id, trial, generation)
    completes = outcome == "completed"
    if completes and not (trial.why == "baseline" and trial.reports):
        raise NotCompleted(
            f"trial {trial_number} of job {job_id!r} cannot end as completed: only a baseline that "
            "has reported can. End it with another outcome."
        )
    if trial.outcome == outcome or (completes and trial.outcome == "converged"):
        return trial
    if trial.outcome in FINAL:
        raise _finished(job_id, trial)
    if before_report is not None and before_report <= trial.reports:
        raise ReportConflict(f"report {before_report} of trial {trial_number} was already received")
    spec = jobs.specification(job)
    if trial.outcome is not None:
        revive(session, job, spec, trial)
    if completes:
        complete_baseline(session, job, spec, trial)
    else:
        jobs.end(session, job, spec, trial, outcome, reason)
    session.flush()
    session.refresh(trial)
    return trial


@use_case()
def heartbeat(
    session: Session, job_id: str, trial_number: int, *, generation: str | None = None
) -> float:
    """Extend a running trial's lease; return its seconds from now.

    Raises:
        NotFound: No such job or trial.
        OtherGeneration: The trial has another generation.
        TrialFinished: It has ended, or was lost; a report revives a lost trial.
    """
    job, trial = jobs.lock_trial(session, job_id, trial_number)
    _check_generation(job_id, trial, generation)
    if trial.outcome is not None:
        raise _finished(job_id, trial)
    lease_s = jobs.specification(job).lease_s
    trial.lease_expires_at = unix_now() + lease_s
    return lease_s


@use_case(read_only=True)
def get_job(session: Session, job_id: str) -> Job:
    """Return a job with its state."""
    return jobs.get(session, job_id)


@use_case(read_only=True)
def describe_job(
    session: Session, job_id: str
) -> tuple[Job, queries.JobState, tuple[int | None, str] | None]:
    """Return a job, its state in a word, and what its next start would get, and why.

    That is the batch size on the latest hardware; None if there is none left. The last item is None
    if the job has had no start.
    """
    job = jobs.get(session, job_id)
    spec = jobs.specification(job)
    query = select(queries.state_column).where(Job.key == job.key, Job.job_id == job_id)
    state = session.scalars(query).one_or_none()
    if state is None:
        raise unknown_job(job_id)  # it was deleted meanwhile
    if not job.hardware:
        return job, state, None
    hardware = Hardware.of(job.hardware[-1])
    choice = always_granted(spec) or _choose(session, job, spec, hardware, spec.batch_sizes)
    if choice is None:
        why = choice_reasons.exhausted(spec, job.state, hardware).message
        return job, state, (None, why)
    return job, state, (choice.batch_size, _reason(job, spec, hardware, choice))


@use_case(read_only=True)
def list_jobs(
    session: Session, *, after: str = "", limit: int = 100
) -> Sequence[Row[Job, queries.JobState]]:
    """Return jobs with an id greater than `after`, ordered by id, and their states."""
    query = (
        select(Job, queries.state_column)
        .where(Job.job_id > after)
        .order_by(Job.job_id)
        .limit(limit)
    )
    return session.execute(query).all()


@use_case(read_only=True)
def list_trials(session: Session, job_id: str, *, after: int = 0, limit: int = 100) -> list[Trial]:
    """Return a job's trials with a number greater than `after`, ordered by number."""
    job = jobs.get(session, job_id)
    query = select(Trial).where(Trial.job_key == job.key, Trial.trial_number > after)
    return list(session.scalars(query.order_by(Trial.trial_number).limit(limit)))


_LATEST = ("epoch", "time_s", "energy_j", "metric", "host_load", "default_power_limit_w")
_STARTED_WITH = select(Trial).where(Trial.idempotency_key == bindparam("key"))
_INSERT_REPORT = insert(tables.Report.__table__)
_STORED = set(tables.Report.__table__.columns.keys())


def _started_with(session: Session, idempotency_key: str) -> Trial | None:
    """The trial that was started with a key, unless its job was deleted."""
    # No join: MariaDB would read all trials of a job, if there is only one.
    found = session.scalars(_STARTED_WITH, {"key": idempotency_key}).all()
    jobs_of = ((trial, session.get(Job, trial.job_key)) for trial in found)
    return next((trial for trial, job in jobs_of if job and job.job_id is not None), None)


def _registered_hardware(job: Job) -> Hardware:
    if not job.keeps_hardware:
        raise JobConflict(
            f"job {job.job_id!r} is registered without hardware; register it from this client"
        )
    return Hardware.of(job.hardware[-1])


def _usable(spec: JobSpec, multiple_of: int, *, is_default: bool = False) -> list[int]:
    """The batch sizes of which a trial may get one."""
    wanted = [spec.default_batch_size] if is_default else spec.batch_sizes
    usable = [size for size in wanted if size % multiple_of == 0]
    if not usable:
        raise JobConflict(
            f"job {spec.job_id!r}: none of the batch sizes {wanted} is divisible by {multiple_of} "
            "(devices times accumulate_grad_batches). Use another number of devices."
        )
    return usable


def _choose(
    session: Session, job: Job, spec: JobSpec, hardware: Hardware, usable: list[int]
) -> Choice | None:
    """The policy's choice, or a fallback, for the next trial; None if there is neither."""
    rng = np.random.default_rng([spec.random_seed(), job.trials + 1])
    with suppress(NoBatchSizeLeft):
        return fold.choose(spec, job.state, job.inconclusive, hardware, rng, usable)
    running = jobs.running(session, job, with_lease=True)
    own = (
        trial
        for trial in running
        if trial.why not in ("fallback", *UNBOUNDED) and trial.hardware == hardware
    )
    first = next((trial for trial in own if trial.batch_size in usable), None)
    return None if first is None else Choice(first.batch_size, "fallback")


def _reason(job: Job, spec: JobSpec, hardware: Hardware, choice: Choice) -> str:
    return choice_reasons.reason(spec, job.state, hardware, choice, job.inconclusive)


def _same_answer(session: Session, trial: Trial, given: stopping.Report) -> Decision:
    key = trial.job_key, trial.trial_number, given.sequence
    stored = session.get(tables.Report, key)
    if stored is None:
        raise ReportConflict(
            f"report {given.sequence} arrived after report {trial.reports} of the same trial"
        )
    known = {name: getattr(stored, name) for name in vars(given).keys() & _STORED}
    if any(getattr(given, name) != value for name, value in known.items()):
        raise ReportConflict(
            f"report {given.sequence} was already received with other values", known=known
        )
    return Decision(**{name: getattr(stored, name) for name in Decision.model_fields})


def _check_generation(job_id: str, trial: Trial, generation: str | None) -> None:
    if generation is not None and generation != trial.generation:
        raise OtherGeneration(
            f"trial {trial.trial_number} of job {job_id!r} now belongs to another run: the "
            "job was deleted, or the database restored"
        )


def _finished(job_id: str, trial: Trial) -> TrialFinished:
    return TrialFinished(
        f"trial {trial.trial_number} of job {job_id!r} has ended: {trial.outcome}",
        outcome=trial.outcome,
    )
