"""What training batches take at which GPU power limit: kept for the next recurrence of a job."""

from __future__ import annotations

import time
from typing import Any

from sqlalchemy import Connection, delete, insert, select

from zeus_service.errors import NotFound, no_job
from zeus_service.locked_job import LockedJob
from zeus_service.messages import PowerProfile, PowerProfileList
from zeus_service.models import JOBS, POWER_PROFILES
from zeus_service.transactions import use_case


@use_case()
def put(connection: Connection, job_id: str, profile: PowerProfile) -> bool:
    """Keep a profile, in place of the one of the same job, batch size and GPU model.

    Returns:
        Whether there was none.

    Raises:
        NotFound: No such job.
    """
    LockedJob.take(connection, job_id)  # two at once would both find none, and both insert
    replaced = connection.execute(
        delete(POWER_PROFILES).where(*_key(job_id, profile.batch_size, profile.device_model))
    )
    connection.execute(
        insert(POWER_PROFILES).values(
            job_id=job_id,
            batch_size=profile.batch_size,
            device_model=profile.device_model,
            profile=profile.model_dump(mode="json"),
            updated_at=time.time(),
        )
    )
    return replaced.rowcount == 0


@use_case(read_only=True)
def get(connection: Connection, job_id: str, batch_size: int, device_model: str) -> PowerProfile:
    """The profile of a batch size on a GPU model.

    Raises:
        NotFound: No such job, or it has no such profile.
    """
    found = connection.execute(
        select(POWER_PROFILES.c.profile).where(*_key(job_id, batch_size, device_model))
    ).scalar_one_or_none()
    if found is None:
        raise NotFound(
            f"no power profile of batch size {batch_size} on {device_model!r} in job {job_id!r}; "
            "ZeusPowerLimitCallback measures one"
        )
    return PowerProfile.model_validate(found)


@use_case(read_only=True)
def all_of(connection: Connection, job_id: str, device_model: str | None) -> PowerProfileList:
    """A job's profiles, of one GPU model or all, ordered by batch size; at most 1000.

    Raises:
        NotFound: No such job.
    """
    if connection.execute(select(JOBS.c.job_id).where(JOBS.c.job_id == job_id)).first() is None:
        raise no_job(job_id)
    query = select(POWER_PROFILES.c.profile).where(POWER_PROFILES.c.job_id == job_id)
    if device_model is not None:
        query = query.where(POWER_PROFILES.c.device_model == device_model)
    query = query.order_by(POWER_PROFILES.c.batch_size, POWER_PROFILES.c.device_model).limit(1000)
    found = connection.execute(query).scalars().all()
    return PowerProfileList(profiles=[PowerProfile.model_validate(profile) for profile in found])


def _key(job_id: str, batch_size: int, device_model: str) -> tuple[Any, ...]:
    columns = POWER_PROFILES.c
    return (
        columns.job_id == job_id,
        columns.batch_size == batch_size,
        columns.device_model == device_model,
    )
