"""Register jobs: a new one, a known one again, or one that has learned nothing with other values.

A registration is sparse: a client sends the fields that it insists on, and suggestions that it read
from its program. For a field that it leaves out, a known job keeps the registered value, and a new
one gets the default.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError
from sqlalchemy import update
from sqlalchemy.orm import Session

from zeus_service.bandit.registry import DEFAULT_POLICY, POLICIES
from zeus_service.bandit.spec import Hardware, JobSpec
from zeus_service.db import jobs
from zeus_service.db.session import use_case
from zeus_service.db.tables import Job, PowerProfile
from zeus_service.errors import InvalidJob, job_conflict

_OTHER_VALUES = (
    "Pass the registered values, use another job_id, or delete the job: `zeus-service delete JOB`."
)


@use_case()
def register_job(
    session: Session,
    job_id: str,
    given: Mapping[str, Any],
    *,
    suggested: Mapping[str, Any],
    hardware: Hardware | None = None,
    replace_unused: bool = False,
) -> tuple[Job, bool]:
    """Register a job, or confirm that it is registered with these values.

    If all trials of a job have ended without a result, other values replace the registered ones:
    its first run may have failed because they were wrong. A target can be given to a job without
    one until a baseline has completed.

    Args:
        session: In a transaction.
        job_id: The job.
        given: Fields of its `JobSpec`; each that differs from the registered value is a conflict.
        suggested: Fields that are used where neither `given` nor the registered job has a value.
        hardware: What all its trials use, if the client says so now and not at each start.
        replace_unused: Whether other values also replace those of a job that has had no trial. A
            run that has just registered it is about to start one.

    Returns:
        The job, and whether it is new or has new values.

    Raises:
        InvalidJob: A field that has no default is missing, or fields contradict each other.
        JobConflict: The job is registered with other values, or has used other hardware.
    """
    _check_policy(given)
    known = jobs.find(session, job_id)
    if known is None:
        spec = _completed({**suggested, **given, "job_id": job_id})
        new = jobs.new_job(spec, hardware=hardware)
        session.add(new)
        return new, True
    has_hardware = hardware is None or (
        known.keeps_hardware and Hardware.of(known.hardware[-1]) == hardware
    )
    if has_hardware and not _differences(known, given):
        return known, False
    job = known = jobs.lock(session, job_id)
    differences = _differences(known, given)
    awaits_target = known.spec["target_metric"] is None and not known.completed_baselines
    if differences.keys() == {"target_metric"} and awaits_target:
        jobs.set_target(known, given["target_metric"])
    elif differences:
        is_unused = replace_unused and not known.trials
        if not (is_unused or jobs.has_taught_nothing(session, known, jobs.specification(known))):
            is_learned = known.completed_baselines >= known.spec["baseline_runs"]
            advice = _OTHER_VALUES
            if is_learned and "target_metric" in differences:
                advice = f"The job's baselines set the target. {advice}"
            raise job_conflict(job_id, differences, advice)
        job = _reregistered(session, known, _changed(known, given, suggested))
    if hardware is not None:
        jobs.set_hardware(job, jobs.specification(job), hardware, keep=True)
    return job, bool(differences)


def _check_policy(values: Mapping[str, Any]) -> None:
    policy = values.get("policy", DEFAULT_POLICY)
    if policy not in POLICIES:
        choices = f"choose one of {sorted(POLICIES)}"
        raise InvalidJob(f"policy {policy!r} is unknown; {choices}", errors={"policy": [choices]})


def _completed(values: Mapping[str, Any]) -> JobSpec:
    values = {"policy": DEFAULT_POLICY, **values}
    _check_policy(values)
    try:
        return JobSpec.model_validate(values)
    except ValidationError as error:
        found = {
            ".".join(map(str, each["loc"])): [each["msg"].removeprefix("Value error, ")]
            for each in error.errors()
        }
        summary = "; ".join(f"{name}: {text}" for name, (text,) in found.items())
        raise InvalidJob(summary, errors=found) from error


def _changed(known: Job, given: Mapping[str, Any], suggested: Mapping[str, Any]) -> JobSpec:
    kept = dict(known.spec)
    if given.get("monitor", kept["monitor"]) != kept["monitor"]:
        del kept["higher_is_better"]  # it is another metric's
    try:
        return _completed({**suggested, **kept, **given})
    except InvalidJob:  # the registered default is not among the batch sizes that are given now
        return _completed({**kept, **suggested, **given})


def _differences(known: Job, given: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Fields in which a registration differs from the known job: `{name: {known, given}}`."""
    spec = jobs.specification(known).model_dump()
    return {
        name: {"known": spec[name], "given": value}
        for name, value in given.items()
        if spec[name] != value
    }


def _reregistered(session: Session, job: Job, spec: JobSpec) -> Job:
    """Replace a locked job by a new one, which keeps its power profiles and trial numbers."""
    job.job_id = None
    session.flush()
    new = jobs.new_job(spec, trials=job.trials)
    session.add(new)
    session.flush()
    profiles = PowerProfile.job_key == job.key
    session.execute(update(PowerProfile).where(profiles).values(job_key=new.key))
    return new
