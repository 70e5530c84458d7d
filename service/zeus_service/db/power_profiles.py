"""Power profiles of a job's batch sizes, as the JSON values that clients send."""

from __future__ import annotations

from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from zeus_service.db import jobs
from zeus_service.db.session import use_case
from zeus_service.db.tables import PowerProfile

MAX_LISTED = 1000


@use_case()
def put(session: Session, job_id: str, profile: dict[str, Any]) -> bool:
    """Store a profile, or replace the one of its batch size and GPUs; return if it is new."""
    job = jobs.lock(session, job_id)  # two requests at once would both insert
    key = {name: profile[name] for name in ("batch_size", "device_model", "num_devices")}
    stored = session.get(PowerProfile, {"job_key": job.key, **key})
    row = stored or PowerProfile(job_key=job.key, **key)
    row.profile = profile
    session.add(row)
    return stored is None


@use_case(read_only=True)
def list_profiles(
    session: Session, job_id: str, device_model: str | None = None, num_devices: int | None = None
) -> list[dict[str, Any]]:
    """Return a job's profiles, of some GPUs or all, ordered by batch size; at most 1000."""
    job = jobs.get(session, job_id)
    query = select(PowerProfile.profile).where(PowerProfile.job_key == job.key)
    if device_model is not None:
        query = query.where(PowerProfile.device_model == device_model)
    if num_devices is not None:
        query = query.where(PowerProfile.num_devices == num_devices)
    order = PowerProfile.batch_size, PowerProfile.device_model, PowerProfile.num_devices
    query = query.order_by(*order)
    return list(session.scalars(query.limit(MAX_LISTED)))
