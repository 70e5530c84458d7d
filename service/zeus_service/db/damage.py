"""Rows that cannot be read: a disk, another program or another version has changed them."""

import logging
import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError
from sqlalchemy import JSON, Column, Row, String, Table
from sqlalchemy.exc import IntegrityError, SQLAlchemyError

from zeus_service.bandit.spec import MAX_JOB_ID, AnyJobId, JobSpec
from zeus_service.db.engine import cause
from zeus_service.errors import BrokenJob, OptimizerError

T = TypeVar("T")

logger = logging.getLogger(__name__)

RESTORE_OR_DELETE = "restore a backup, or delete the job"
REBUILD = f"`zeus-service rebuild` mends what follows from its history; else {RESTORE_OR_DELETE}"

_ID: TypeAdapter[str] = TypeAdapter(AnyJobId)
_LONGEST_ID = 8 * MAX_JOB_ID
"""Hexadecimal digits: a character of UTF-8 has at most four bytes."""
_LONGEST_S = 5e10
"""Instants this far from 1970, in seconds, have a date."""


def is_sound(row: Any, table: Table) -> bool:
    """Whether the values of a row, as far as they are of a table's columns, can be shown.

    That is: texts are texts, numbers are finite, instants have a date, and nothing is null that may
    not be.
    """
    return all(
        fits(value, table.columns[name])
        for name, value in row._mapping.items()
        if name in table.columns
    )


def fits(value: object, column: Column[Any]) -> bool:
    """Whether a value of a column can be shown; SQLite may have anything there."""
    if value is None:
        return bool(column.nullable)
    if isinstance(column.type, JSON):
        return True  # it is checked where it is read
    if isinstance(column.type, String):
        return isinstance(value, str)
    if not isinstance(value, int | float) or not math.isfinite(value):
        return False
    return not column.name.endswith("_at") or abs(value) < _LONGEST_S


def is_id(value: object) -> bool:
    """Whether a stored value can be a job's id; SQLite may have anything there."""
    try:
        _ID.validate_python(value, strict=True)
    except ValidationError:
        return False
    return True


def damaged_id(value: str | bytes, spec: Any) -> str:
    """What to log of a row of the table jobs that has no id, and how to mend or remove it by SQL.

    Args:
        value: What it has in place of the id.
        spec: Its specification, as text.
    """
    digits = (value if isinstance(value, bytes) else value.encode()).hex().upper()
    row = f"hex(job_id) = '{digits}'"
    if len(digits) > _LONGEST_ID:  # a prefix could be that of a job's id, too
        row = f"length(hex(job_id)) = {len(digits)} AND hex(job_id) LIKE '{digits[:80]}%'"
    try:
        known = JobSpec.model_validate_json(spec).job_id.replace("'", "''")
    except ValidationError:
        mend = ""
    else:
        mend = f"\"UPDATE jobs SET job_id = '{known}' WHERE {row}\" restores its id; "
    return (
        f"a row of the table jobs has the id {value!r:.100}, which is none; with sqlite3, {mend}"
        f'"DELETE FROM jobs WHERE {row}" removes it'
    )


@contextmanager
def reading(row: str, remedy: str = RESTORE_OR_DELETE) -> Iterator[None]:
    """Raise what goes wrong meanwhile as a `BrokenJob` that names the row and the remedy.

    What that is may have any form: a value of another type, JSON that is nested too deeply, a state
    that a policy cannot use, a number that another row has.
    """
    try:
        yield
    except OptimizerError:
        raise
    except Exception as error:
        if isinstance(error, SQLAlchemyError) and not isinstance(error, IntegrityError):
            raise
        if not isinstance(error, ValueError | IntegrityError):
            logger.warning("%s cannot be read", row, exc_info=True)  # it may be a defect of ours
        raise BrokenJob(f"{row} cannot be read: {_reason(error)}; {remedy}") from error


def read_each(
    rows: Iterable[Row[Any]], read: Callable[[Row[Any]], T], number: str
) -> tuple[list[T], list[int]]:
    """Read rows, and log why one of them cannot be read.

    Returns:
        What was read; and of the other rows the column `number`, where it has a number.
    """
    found, broken = [], []
    for row in rows:
        try:
            found.append(read(row))
        except BrokenJob as error:
            error.log(logger)
            broken.append(getattr(row, number))
    return found, [each for each in broken if isinstance(each, int)]


def _reason(error: Exception) -> str:
    if isinstance(error, ValidationError):
        found = error.errors(include_url=False, include_context=False, include_input=False)
        return "; ".join(": ".join([*map(str, each["loc"]), each["msg"]]) for each in found)
    text = cause(error) if isinstance(error, IntegrityError) else str(error)
    return f"{type(error).__name__}: {text[:200]}"
