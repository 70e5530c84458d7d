"""The use cases, one transaction each; a report that ends or revives its trial takes two.

Everything that changes a job's bandit state happens here, under a lock on the job's row that the
database holds, so the service stays correct with any number of workers and hosts. A report after
which its run continues takes no job lock. An unknown job or trial raises `NotFound`.
"""

from __future__ import annotations

import logging
import secrets

import numpy as np
from sqlalchemy import Connection

from zeus_service import counters, messages
from zeus_service.bandit import fold as history
from zeus_service.bandit import reasons as choice_texts
from zeus_service.bandit import stopping
from zeus_service.bandit.outcomes import FINAL
from zeus_service.bandit.policy import Choice, NoBatchSizeLeft, State
from zeus_service.bandit.registry import DEFAULT_POLICY, POLICIES, policy_of
from zeus_service.bandit.spec import JobSpec
from zeus_service.db import jobs, leases, statements, trials
from zeus_service.db.damage import REBUILD, reading
from zeus_service.db.jobs import LockedJob, StoredJob
from zeus_service.db.transactions import ATTEMPTS, Raced, after_commit, use_case
from zeus_service.errors import (
    BrokenJob,
    Contended,
    ExhaustedJob,
    JobConflict,
    KeyConflict,
    NotFound,
    OtherGeneration,
    ReportConflict,
    TrialFinished,
    UnknownPolicy,
)
from zeus_service.savings import power as power_limits

logger = logging.getLogger(__name__)

_HARDWARE = {"max_power_w", "num_devices", "device_model", "meter"}
_OTHER_ARGUMENTS = ". Pass the registered values, to keep what was learned, or use another job_id."
_OTHER_HARDWARE = (
    ". Use another job_id. Costs on different hardware, or by different meters, cannot be compared:"
    " a job belongs to one kind of machine, its number of GPUs or CPU cores included."
)


@use_case()
def register_job(connection: Connection, given: JobSpec) -> tuple[messages.Job, bool]:
    """Register a job, or confirm that it is registered with this configuration.

    A job whose trials have all ended, without a verdict, is registered anew: its first run may have
    failed because the configuration was wrong.

    Returns:
        The job, and whether it is new.

    Raises:
        UnknownPolicy: No policy has the name given.
        JobConflict: The id is registered with another configuration.
    """
    policy = POLICIES.get(given.policy or DEFAULT_POLICY)
    if policy is None:
        raise UnknownPolicy(
            f"policy {given.policy!r} is not known; choose one of {sorted(POLICIES)}",
            errors={"policy": [f"must be one of {sorted(POLICIES)}"]},
        )
    resolved = given.model_copy(update={"policy": policy.name})
    known = jobs.find(connection, given.job_id)
    if known is None:
        jobs.add(connection, resolved)
        return _with_beliefs(connection, jobs.get(connection, given.job_id)), True
    if known.spec.differences(given):
        job = LockedJob.lock(connection, given.job_id)
        differences = job.spec.differences(given)
        if not differences or job.register_anew(resolved):
            return _with_beliefs(connection, jobs.get(connection, given.job_id)), bool(differences)
        raise JobConflict(
            f"job {given.job_id!r} is known with another configuration: "
            + "; ".join(
                f"{name} is {values['known']!r} there and {values['given']!r} here"
                for name, values in differences.items()
            )
            + (_OTHER_HARDWARE if _HARDWARE & differences.keys() else _OTHER_ARGUMENTS),
            differences=differences,
        )
    return _with_beliefs(connection, known), False


@use_case()
def start_trial(
    connection: Connection, job_id: str, idempotency_key: str | None
) -> tuple[messages.TrialStart, bool]:
    """Start a trial; the same key again returns the same trial.

    Running trials whose lease has expired are marked as lost first. When every batch size has
    failed but a trial from before that is still running, this one may converge: the start gets its
    batch size, as a fallback. Fallbacks allow no others, or two launchers that start one after
    another would never end.

    Returns:
        What to train with, and whether the trial is new.

    Raises:
        KeyConflict: The key was used for another job.
        ExhaustedJob: Every batch size has failed, and no trial from before that is running.
    """
    job, started_with_key, any_expired = jobs.lock_to_start(connection, job_id, idempotency_key)
    if started_with_key is not None:
        if started_with_key[0] != job_id:
            raise KeyConflict("this Idempotency-Key was used for another job; make a new one")
        return trials.get_start(connection, *started_with_key, lease_s=job.spec.lease_s), False
    if any_expired:
        for event in leases.mark_expired_lost(connection, job_id):
            job.append(event)
    number = job.stored.trials + 1
    try:
        choice = _choose(connection, job.spec, job.state, number)
    except ExhaustedJob:
        counters.exhausted_starts.inc()
        raise
    start = messages.TrialStart(
        job_id=job_id,
        trial_number=number,
        generation=secrets.token_hex(8),
        batch_size=choice.batch_size,
        why=choice.why,
        reason=choice_texts.reason(job.spec, job.state, choice),
        cost_bound=job.cost_bound,
        lease_s=job.spec.lease_s,
    )
    job.append(history.Event("started", number, choice))
    job.save(statements.START, trials.start_values(start, idempotency_key))
    return start, True


def report(
    job_id: str, trial_number: int, given: messages.Report, *, generation: str | None = None
) -> messages.Decision:
    """Store a report and decide whether the run continues; the same report again, the same answer.

    A report revives a trial that has ended with one of the outcomes in `RESUMABLE`.

    A report is decided on once, from a read without a lock, so by the early-stop bound that is in
    force when it arrives. In the same transaction it is stored if it changes only its trial; one
    that ends or revives its trial is stored in a second transaction, under the job's lock. Both
    store it only if the trial is still as it was read. If another report, an end or the loss of the
    trial came between, it is read and decided on again.

    Raises:
        NotFound: No such job or trial.
        OtherGeneration: The trial has another generation than the one given.
        ReportConflict: The sequence number was used with other figures, or is behind the last.
        TrialFinished: The trial has ended for good.
        Contended: Others have changed the trial each time.
    """
    for _ in range(ATTEMPTS):
        decision, undone = _report_to_trial(job_id, trial_number, given, generation)
        if undone is None or _report_to_job(job_id, *undone, given, decision):
            return decision
    raise Contended("too many requests change this trial at once; send this one again")


@use_case(one_write=True)
def _report_to_trial(
    connection: Connection,
    job_id: str,
    trial_number: int,
    given: messages.Report,
    generation: str | None,
) -> tuple[messages.Decision, tuple[messages.Trial, JobSpec] | None]:
    """Decide on a report, and store it if it changes nothing but its trial.

    Returns:
        The decision; and, if the report was not stored, the trial and spec it was based on.
    """
    trial, spec, cost_bound = trials.get_with_job(connection, job_id, trial_number)
    _check_generation(trial, generation)
    if given.sequence <= trial.reports:
        return _same_answer(connection, trial, given), None
    if trial.outcome in FINAL:
        raise _finished(trial)
    decision = stopping.decide(spec, given, previous_cost=trial.cost, cost_bound=cost_bound)
    if decision.outcome is not None or trial.outcome is not None:
        return decision, (trial, spec)
    values = trials.report_values(trial, given, decision, lease_s=spec.lease_s)
    if not statements.REPORT_TO_TRIAL.execute(connection, values):
        raise Raced
    _count_energy(connection, trial, given)
    return decision, None


@use_case()
def _report_to_job(
    connection: Connection,
    job_id: str,
    trial: messages.Trial,
    spec: JobSpec,
    given: messages.Report,
    decision: messages.Decision,
) -> bool:
    """Store a report that ends or revives its trial, unless the trial has changed meanwhile."""
    job = LockedJob.lock(connection, job_id)
    if job.spec != spec:
        return False  # it has been deleted and registered again
    choice = Choice(trial.batch_size, trial.why)
    if trial.outcome is not None:
        job.append(_revival(trial))
    if decision.outcome is not None:
        spent = (decision.cost, given.energy_j, given.time_s)
        limits = power_limits.of_run(trial, given)
        end = history.Event("ended", trial.trial_number, choice, decision.outcome, *spent, *limits)
        job.append(end)
    values = trials.report_values(trial, given, decision, lease_s=spec.lease_s)
    if not job.save(statements.REPORT_TO_JOB, values):
        return False
    _count_energy(connection, trial, given)
    return True


@use_case()
def end_trial(
    connection: Connection,
    job_id: str,
    trial_number: int,
    end: messages.TrialEnd,
    *,
    generation: str | None = None,
    before_report: int | None = None,
) -> messages.Trial:
    """End a trial with the outcome that its run reports; the same outcome again changes nothing.

    Args:
        connection: In a transaction.
        job_id: The job.
        trial_number: The trial.
        end: How it ended.
        generation: Its generation, if that is known.
        before_report: End it only while it has no report with this sequence number.

    Raises:
        NotFound: No such job or trial.
        OtherGeneration: It has another generation.
        TrialFinished: It has ended with another outcome.
        ReportConflict: It has a report with the sequence number `before_report`, or a later one.
    """
    job = LockedJob.lock(connection, job_id)
    trial = trials.get(connection, job_id, trial_number, lock=True)
    _check_generation(trial, generation)
    if trial.outcome == end.outcome:
        return trial
    if trial.outcome in FINAL:
        raise _finished(trial)
    if before_report is not None and before_report <= trial.reports:
        raise ReportConflict(f"report {before_report} of trial {trial_number} was sent before")
    choice = Choice(trial.batch_size, trial.why)
    if trial.outcome is not None:
        job.append(_revival(trial))
    spent = (trial.cost, trial.energy_j, trial.time_s)
    limits = (trial.power_limit_w, trial.default_power_limit_w)
    job.append(history.Event("ended", trial_number, choice, end.outcome, *spent, *limits))
    job.save(statements.END, trials.end_values(trial_number, end))
    return trials.get(connection, job_id, trial_number)


@use_case(one_write=True)
def heartbeat(
    connection: Connection, job_id: str, trial_number: int, *, generation: str | None = None
) -> messages.Lease:
    """Extend a running trial's lease.

    Raises:
        NotFound: No such job or trial.
        OtherGeneration: The trial has another generation.
        TrialFinished: It has ended, or was lost; a report revives a lost trial.
    """
    trial, spec, _ = trials.get_with_job(connection, job_id, trial_number)
    _check_generation(trial, generation)
    if trial.outcome is not None:
        raise _finished(trial)
    if not leases.extend(connection, trial, spec.lease_s):
        raise Raced
    return messages.Lease(lease_s=spec.lease_s)


@use_case(read_only=True)
def get_job(connection: Connection, job_id: str, *, count: bool = True) -> messages.Job:
    """Return a job with the policy's beliefs about its batch sizes.

    To count its `outcomes` takes a pass over all its trials; without `count` they are empty.
    """
    return _with_beliefs(connection, jobs.get(connection, job_id), count=count)


@use_case(read_only=True)
def next_choice(connection: Connection, job_id: str) -> tuple[Choice, str]:
    """Return what the next start of a trial would get if nothing changed before it, and why.

    Raises:
        ExhaustedJob: Every batch size has failed, and no trial from before that is running.
    """
    job = jobs.get(connection, job_id)
    choice = _choose(connection, job.spec, job.state, job.trials + 1)
    return choice, choice_texts.reason(job.spec, job.state, choice)


@use_case(read_only=True)
def list_jobs(connection: Connection, *, after: str = "", limit: int = 100) -> messages.JobList:
    """Return jobs with an id greater than `after`, ordered by id.

    One whose row cannot be read has the stage `broken`.
    """
    try:
        with reading("the page"):
            found = [_summary(job) for job in jobs.page(connection, after=after, limit=limit)]
    except BrokenJob:
        ids = jobs.ids(connection, after=after, limit=limit)
        each = (_summary_or_broken(connection, job_id) for job_id in ids)
        found = [summary for summary in each if summary is not None]
    return messages.JobList(jobs=found)


@use_case(read_only=True)
def get_trial(connection: Connection, job_id: str, trial_number: int) -> messages.Trial:
    """Return a trial."""
    return trials.get(connection, job_id, trial_number)


@use_case(read_only=True)
def list_trials(
    connection: Connection, job_id: str, *, after: int = 0, limit: int = 100
) -> messages.TrialList:
    """Return a job's trials with a number greater than `after`, ordered by number."""
    jobs.head(connection, job_id)
    return trials.page(connection, job_id, after=after, limit=limit)


def _choose(connection: Connection, spec: JobSpec, state: State, trial_number: int) -> Choice:
    try:
        return policy_of(spec).next_batch_size(spec, state, _random(spec, trial_number))
    except NoBatchSizeLeft:
        running = trials.running_batch_size(connection, spec.job_id)
        if running is None:
            raise choice_texts.exhausted(spec, state) from None
        return Choice(running, "fallback")


def _revival(trial: messages.Trial) -> history.Event:
    choice = Choice(trial.batch_size, trial.why)
    spent = (trial.cost, trial.energy_j, trial.time_s)
    return history.Event("revived", trial.trial_number, choice, None, *spent)


def _same_answer(
    connection: Connection, trial: messages.Trial, given: messages.Report
) -> messages.Decision:
    stored = trials.get_report(connection, trial, given.sequence)
    if stored is None:
        raise ReportConflict(
            f"report {given.sequence} comes after report {trial.reports} of the same trial"
        )
    known, decision = stored
    if known != given.model_copy(update={"default_power_limit_w": None}):
        raise ReportConflict(
            f"report {given.sequence} was sent before with other figures", known=known.model_dump()
        )
    return decision


def _count_energy(connection: Connection, trial: messages.Trial, given: messages.Report) -> None:
    joules = max(0.0, given.energy_j - trial.energy_j)
    after_commit(connection, lambda: counters.energy_j.inc(joules))


def _summary_or_broken(connection: Connection, job_id: str) -> messages.JobSummary | None:
    """None: the job was deleted since its id was read."""
    try:
        with reading(f"job {job_id!r}", REBUILD):
            return _summary(jobs.get(connection, job_id))
    except NotFound:
        return None
    except BrokenJob as error:
        error.log(logger)
        return jobs.broken_summary(connection, job_id)


def _summary(job: StoredJob) -> messages.JobSummary:
    policy = policy_of(job.spec)
    return messages.JobSummary(
        job_id=job.spec.job_id,
        stage=policy.stage(job.spec, job.state),
        best_batch_size=policy.best_batch_size(job.spec, job.state),
        trials=job.trials,
        updated_at=job.updated_at,
    )


def _with_beliefs(connection: Connection, job: StoredJob, *, count: bool = True) -> messages.Job:
    return messages.Job(
        **_summary(job).model_dump(),
        spec=job.spec,
        cost_bound=job.cost_bound,
        arms=policy_of(job.spec).describe(job.spec, job.state),
        outcomes=jobs.count_trials(connection, job.spec.job_id) if count else {},
    )


def _check_generation(trial: messages.Trial, generation: str | None) -> None:
    if generation is not None and generation != trial.generation:
        raise OtherGeneration(
            f"this run's trial {trial.trial_number} is of a job that was deleted, or of a database "
            f"that was restored: job {trial.job_id!r} has another trial of this number"
        )


def _finished(trial: messages.Trial) -> TrialFinished:
    return TrialFinished(
        f"trial {trial.trial_number} of job {trial.job_id!r} has ended: {trial.outcome}",
        outcome=trial.outcome,
    )


def _random(spec: JobSpec, trial_number: int) -> np.random.Generator:
    return np.random.default_rng([spec.random_seed(), trial_number])
