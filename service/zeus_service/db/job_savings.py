"""What a job has saved, as its row and `SAVED_ON_DAYS` hold it; damaged savings begin anew."""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection, Row, select, update

from zeus_service.bandit.spec import JobSpec
from zeus_service.db.damage import reading
from zeus_service.db.savings import COLUMNS, no_savings, savings_of
from zeus_service.db.tables import JOBS, POWER_PROFILES, SAVED_ON_DAYS
from zeus_service.errors import BrokenJob
from zeus_service.messages import PowerProfile
from zeus_service.savings import ledger as books
from zeus_service.savings.expected import Ledger

logger = logging.getLogger(__name__)


def read_savings(row: Row[Any]) -> tuple[Ledger, books.Saved | None] | None:
    """The ledger of a row of `JOBS` and what it has saved; None if one of them is damaged."""
    try:
        return books.checked(row.ledger), savings_of(row)
    except ValueError:
        return None


def savings_are_damaged(connection: Connection, job_id: str) -> bool:
    """Whether what a job has saved cannot be read."""
    query = select(*JOBS.c["ledger", *COLUMNS]).where(JOBS.c.job_id == job_id)
    with suppress(BrokenJob), reading("its savings"):
        return read_savings(connection.execute(query).one()) is None
    return True


def begin_savings_anew(connection: Connection, spec: JobSpec) -> Ledger:
    """Replace a locked job's savings, which are damaged; return its new ledger."""
    logger.warning("what job %r has saved cannot be read: its savings begin anew", spec.job_id)
    values = first_savings(connection, spec)
    connection.execute(update(JOBS).where(JOBS.c.job_id == spec.job_id).values(values))
    ledger: Ledger = values["ledger"]
    return ledger


def first_savings(connection: Connection, spec: JobSpec) -> dict[str, Any]:
    """Delete what a locked job has saved; return the columns with which it begins anew.

    The default's power profile is kept.
    """
    of_job = SAVED_ON_DAYS.c.job_id == spec.job_id
    connection.execute(sa.delete(SAVED_ON_DAYS).where(of_job))
    values = no_savings(spec)
    return {**values, "ledger": with_stored_profile(connection, spec, values["ledger"])}


def with_stored_profile(connection: Connection, spec: JobSpec, ledger: Ledger) -> Ledger:
    """The ledger with the default's power profile, if one is stored that can be read."""
    query = select(POWER_PROFILES.c.profile).where(
        POWER_PROFILES.c.job_id == spec.job_id,
        POWER_PROFILES.c.batch_size == spec.default_batch_size,
        POWER_PROFILES.c.device_model == spec.device_model,
    )
    with suppress(BrokenJob), reading("its power profile"):
        if (stored := connection.execute(query).scalar_one_or_none()) is not None:
            return books.with_power_profile(spec, ledger, PowerProfile.model_validate(stored))
    return ledger
