"""Register jobs: a new one, a known one with the same configuration, or again with another one."""

from __future__ import annotations

from sqlalchemy import update
from sqlalchemy.orm import Session

from zeus_service.bandit import fold
from zeus_service.bandit.registry import DEFAULT_POLICY, POLICIES
from zeus_service.bandit.spec import JobSpec
from zeus_service.db import jobs, savings
from zeus_service.db.session import use_case
from zeus_service.db.tables import Job, PowerProfile
from zeus_service.errors import JobConflict, UnknownPolicy

_HARDWARE = {"max_power_w", "num_devices", "device_model", "meter"}
_OTHER_ARGUMENTS = ". Pass the registered values, to keep what was learned, or use another job_id."
_OTHER_HARDWARE = (
    ". Use another job_id. Costs on different hardware, or by different meters, cannot be compared:"
    " a job belongs to one kind of machine, its number of GPUs or CPU cores included."
)


@use_case()
def register_job(session: Session, given: JobSpec) -> tuple[Job, bool]:
    """Register a job, or confirm that it is registered with this configuration.

    A job whose trials have all ended, without a result, is registered again: its first run may have
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
    known = jobs.find(session, given.job_id)
    if known is None:
        return _added(session, jobs.new_job(resolved)), True
    if not jobs.specification(known).differences(given):
        return known, False
    known = jobs.lock(session, given.job_id)
    differences = jobs.specification(known).differences(given)
    if not differences:
        return known, False
    if _has_taught_nothing(session, known):
        return _reregistered(session, known, resolved), True
    raise JobConflict(
        f"job {given.job_id!r} is known with another configuration: "
        + "; ".join(
            f"{name} is {values['known']!r} there and {values['given']!r} here"
            for name, values in differences.items()
        )
        + (_OTHER_HARDWARE if _HARDWARE & differences.keys() else _OTHER_ARGUMENTS),
        differences=differences,
    )


def _added(session: Session, job: Job) -> Job:
    session.add(job)
    session.flush()
    session.refresh(job, ["created_at", "updated_at"])
    return job


def _has_taught_nothing(session: Session, job: Job) -> bool:
    """Whether a locked job has had trials, all have ended, and none had a result.

    A job that has had no trial does not count: the run that has just registered it is about to
    start one.
    """
    spec = jobs.specification(job)
    jobs.mark_lost(session, job, spec)
    session.flush()
    running = jobs.running(session, job)
    return bool(job.trials) and not running and not fold.has_results(spec, job.state)


def _reregistered(session: Session, job: Job, spec: JobSpec) -> Job:
    """Replace a locked job by a new one, which keeps its power profiles and trial numbers."""
    job.job_id = None
    session.flush()
    new = _added(session, jobs.new_job(spec, trials=job.trials))
    profiles = PowerProfile.job_key == job.key
    session.execute(update(PowerProfile).where(profiles).values(job_key=new.key))
    key = new.key, spec.default_batch_size, spec.device_model
    if (known := session.get(PowerProfile, key)) is not None:
        savings.note_profile(new, spec, known.profile)
    return new
