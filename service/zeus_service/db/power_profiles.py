"""Power profiles of a job's batch sizes. An unknown job or profile raises `NotFound`."""

from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection, Row, Select, delete, func, insert, select

from zeus_service.db import jobs
from zeus_service.db.clock import unix_now
from zeus_service.db.damage import read_each, reading
from zeus_service.db.tables import POWER_PROFILES
from zeus_service.db.transactions import use_case
from zeus_service.errors import NotFound
from zeus_service.messages import PowerProfile, PowerProfileList


@use_case()
def put(connection: Connection, job_id: str, profile: PowerProfile) -> bool:
    """Store a profile, or replace that of its batch size and GPU model; return if it is new."""
    job = jobs.LockedJob.lock(connection, job_id)  # two requests at once would both insert
    job.note_power_profile(profile)
    replaced = connection.execute(
        delete(POWER_PROFILES).where(*_key(job_id, profile.batch_size, profile.device_model))
    )
    connection.execute(
        insert(POWER_PROFILES).values(
            job_id=job_id,
            batch_size=profile.batch_size,
            device_model=profile.device_model,
            profile=profile.model_dump(mode="json"),
            updated_at=unix_now(),
        )
    )
    return replaced.rowcount == 0


@use_case(read_only=True)
def get(connection: Connection, job_id: str, batch_size: int, device_model: str) -> PowerProfile:
    """Return the profile of a batch size on a GPU model."""
    query = _ROWS.where(*_key(job_id, batch_size, device_model))
    row = connection.execute(query).one_or_none()
    if row is None:
        raise NotFound(
            f"no power profile of batch size {batch_size} on {device_model!r} in job {job_id!r}; "
            "ZeusPowerLimitCallback measures one"
        )
    return _profile(row)


@use_case(read_only=True)
def all_of(connection: Connection, job_id: str, device_model: str | None) -> PowerProfileList:
    """Return a job's profiles, of one GPU model or all, ordered by batch size; at most 1000."""
    jobs.get(connection, job_id)
    query = _ROWS.where(POWER_PROFILES.c.job_id == job_id)
    if device_model is not None:
        query = query.where(POWER_PROFILES.c.device_model == device_model)
    query = query.order_by(POWER_PROFILES.c.batch_size, POWER_PROFILES.c.device_model).limit(1000)
    profiles, broken = read_each(connection.execute(query), _profile, "batch_size")
    return PowerProfileList(profiles=profiles, broken=broken)


@use_case(read_only=True)
def version(connection: Connection, job_id: str) -> tuple[float | None, int]:
    """Read what changes when a profile of the job is stored: the newest instant, and how many."""
    columns = func.max(POWER_PROFILES.c.updated_at), func.count()
    newest, count = connection.execute(
        select(*columns).where(POWER_PROFILES.c.job_id == job_id)
    ).one()
    return newest, count


def _key(job_id: str, batch_size: int, device_model: str) -> tuple[Any, ...]:
    key = {"job_id": job_id, "batch_size": batch_size, "device_model": device_model}
    return tuple(POWER_PROFILES.c[name] == value for name, value in key.items())


_ROWS: Select[Any] = select(
    *POWER_PROFILES.c["job_id", "batch_size", "device_model"],
    sa.cast(POWER_PROFILES.c.profile, sa.Text).label("profile"),
)
"""Profiles as text: one that is no JSON is then found with its row, not with all of them."""


def _profile(row: Row[Any]) -> PowerProfile:
    name = f"the power profile of batch size {row.batch_size!r} on {row.device_model!r}"
    with reading(f"{name} of job {row.job_id!r}", "measure it anew, or delete the job"):
        profile = PowerProfile.model_validate_json(row.profile)
        if (profile.batch_size, profile.device_model) != (row.batch_size, row.device_model):
            raise ValueError(f"it is that of {profile.batch_size} on {profile.device_model!r}")
    return profile
