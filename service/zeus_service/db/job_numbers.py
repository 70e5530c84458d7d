"""The numbers of a job's row: which are valid, and how its trials and events correct them."""

from __future__ import annotations

from typing import Annotated, Any

import sqlalchemy as sa
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from sqlalchemy import Connection, Row, func, select, update

from zeus_service.bandit.spec import MAX_INTEGER
from zeus_service.db.clock import unix_now
from zeus_service.db.tables import CHECKPOINTS, EVENTS, JOBS, TRIALS
from zeus_service.errors import unknown_job
from zeus_service.messages import Instant


class Numbers(BaseModel):
    """What the columns of `JOBS` hold that are numbers."""

    model_config = ConfigDict(allow_inf_nan=False)

    cost_bound: float | None
    trials: Annotated[int, Field(ge=0, lt=MAX_INTEGER)]
    events: Annotated[int, Field(ge=0, lt=MAX_INTEGER)]
    created_at: Instant
    updated_at: Instant


NUMBERS = JOBS.c["cost_bound", "trials", "events", "created_at", "updated_at"]
_TRIAL_NUMBERS = (TRIALS.c.trial_number, EVENTS.c.trial_number)
_SEQUENCES = (EVENTS.c.sequence, CHECKPOINTS.c.sequence)


def corrections(connection: Connection, job_id: str) -> dict[str, Any]:
    """New values for numbers of a job that are none, or that its trials and events contradict."""
    row = connection.execute(select(*NUMBERS).where(JOBS.c.job_id == job_id)).one_or_none()
    if row is None:
        raise unknown_job(job_id)
    wrong = wrong_numbers(row)
    found = {
        "trials": max(_latest(connection, job_id, column) for column in _TRIAL_NUMBERS),
        "events": max(_latest(connection, job_id, column) for column in _SEQUENCES),
    }
    stored = row._mapping
    changes: dict[str, Any] = {
        name: number for name, number in found.items() if name in wrong or stored[name] < number
    }
    return changes | {name: unix_now() for name in wrong & {"created_at", "updated_at"}}


def correct(connection: Connection, job_id: str) -> bool:
    """Carry out the `corrections` of a locked job; return whether there were any."""
    changes = corrections(connection, job_id)
    if changes:
        connection.execute(update(JOBS).where(JOBS.c.job_id == job_id).values(changes))
    return bool(changes)


def wrong_numbers(row: Row[Any]) -> set[str]:
    """The names of the columns of `NUMBERS` whose values in a row are invalid."""
    try:
        Numbers.model_validate(row, from_attributes=True)
    except ValidationError as error:
        return {str(each["loc"][0]) for each in error.errors()}
    return set()


def _latest(connection: Connection, job_id: str, column: sa.Column[int]) -> int:
    """The largest number of a job in a column; text, which SQLite may have there, is none."""
    is_number = column.between(0, MAX_INTEGER - 1)
    query = select(func.max(column)).where(column.table.c.job_id == job_id, is_number)
    return connection.execute(query).scalar() or 0
