"""Rows that cannot be read: a disk, another program or another version has changed them."""

import logging
import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pydantic import ValidationError
from sqlalchemy.exc import IntegrityError, SQLAlchemyError

from zeus_service.errors import BrokenJob, OptimizerError
from zeus_service.store.engine import cause

logger = logging.getLogger(__name__)

RESTORE_OR_DELETE = "restore a backup, or delete the job"
REBUILD = f"`zeus-service rebuild` mends what follows from its history; else {RESTORE_OR_DELETE}"

_LONGEST_S = 5e10
"""Instants this far from 1970, in seconds, have a date."""


def can_be_shown(row: Any, numbers: tuple[str, ...], instants: tuple[str, ...]) -> bool:
    """Whether values of a row are null or numbers, and instants have a date."""
    values = [getattr(row, name) for name in (*numbers, *instants)]
    if not all(v is None or (isinstance(v, int | float) and math.isfinite(v)) for v in values):
        return False
    return all(abs(getattr(row, name) or 0.0) < _LONGEST_S for name in instants)


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


def _reason(error: Exception) -> str:
    if isinstance(error, ValidationError):
        found = error.errors(include_url=False, include_context=False, include_input=False)
        return "; ".join(": ".join([*map(str, each["loc"]), each["msg"]]) for each in found)
    text = cause(error) if isinstance(error, IntegrityError) else str(error)
    return f"{type(error).__name__}: {text[:200]}"
