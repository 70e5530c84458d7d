"""Rows of the database as messages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection, Row, func, select

from zeus_service import history, messages
from zeus_service.models import TRIALS
from zeus_service.policies import Choice, policy_of
from zeus_service.spec import JobSpec


def event(row: Row[Any]) -> history.Event:
    """A line of the history."""
    choice = Choice(row.batch_size, row.why)
    return history.Event(row.kind, row.trial_number, choice, row.outcome, row.cost)


def summary(row: Row[Any]) -> messages.JobSummary:
    """A job in a list."""
    spec = JobSpec.model_validate(row.spec)
    policy = policy_of(spec)
    return messages.JobSummary(
        job_id=row.job_id,
        stage=policy.stage(spec, row.state),
        best_batch_size=policy.best_batch_size(spec, row.state),
        trials=row.trials,
        updated_at=row.updated_at,
    )


def job(connection: Connection, row: Row[Any]) -> messages.Job:
    """A job with its beliefs; counts its trials by outcome."""
    spec = JobSpec.model_validate(row.spec)
    outcome = func.coalesce(TRIALS.c.outcome, "running")
    counts = connection.execute(
        select(outcome, func.count()).where(TRIALS.c.job_id == row.job_id).group_by(outcome)
    ).all()
    arms = policy_of(spec).describe(spec, row.state)
    return messages.Job(
        **summary(row).model_dump(),
        spec=spec,
        cost_bound=row.cost_bound,
        arms=[messages.Arm(**vars(arm)) for arm in arms],
        outcomes={row[0]: row[1] for row in counts},
    )


def trial(row: Mapping[str, Any]) -> messages.Trial:
    """A trial as it is."""
    return messages.Trial.model_validate(dict(row))


def trial_start(spec: JobSpec, row: Mapping[str, Any]) -> messages.TrialStart:
    """What a trial was started with."""
    return messages.TrialStart(
        job_id=row["job_id"],
        trial_number=row["trial_number"],
        batch_size=row["batch_size"],
        why=row["why"],
        reason=row["start_reason"],
        cost_bound=row["start_cost_bound"],
        lease_s=spec.lease_s,
    )
