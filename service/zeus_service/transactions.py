"""Transactions, and carrying out a whole use case again when others got in its way."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Concatenate, ParamSpec, TypeVar

from sqlalchemy import Connection, exc

from zeus_service import signals
from zeus_service.connections import error_code
from zeus_service.errors import Contended
from zeus_service.extensions import db

P = ParamSpec("P")
R = TypeVar("R")

logger = logging.getLogger(__name__)

ATTEMPTS = 8
PATIENCE_S = 15.0
"""No further attempt after this: clients wait for an answer."""

_CONFLICTS = frozenset({1205, 1213, "40001", "40P01", "55P03"})
"""Lock timeouts, deadlocks and serialization failures of MySQL and PostgreSQL: rolled back."""


class Raced(Exception):
    """Another transaction changed a row between our reading and our writing it: try again."""


@contextmanager
def transaction(*, read_only: bool = False, one_write: bool = False) -> Iterator[Connection]:
    """A connection in a transaction that commits at the end, and rolls back on an error.

    PostgreSQL takes a round trip each to begin and to commit. With `read_only`, or `one_write` for
    what writes once, by `Writes`, each statement is a transaction by itself there.

    On SQLite a writing transaction takes the write lock at once (`BEGIN IMMEDIATE`): one that
    reads first and writes later could not wait for another writer, only fail.
    """
    with db.engine.connect() as connection:
        connection = connection.execution_options(read_only=read_only, one_write=one_write)
        signals.begin(connection)
        with connection.begin():
            yield connection
        signals.committed(connection)


def use_case(
    *, read_only: bool = False, one_write: bool = False
) -> Callable[[Callable[Concatenate[Connection, P], R]], Callable[P, R]]:
    """Decorate a function of a connection: each call is one transaction.

    It is carried out again from the start, a few times, after little waits, when another
    transaction got in its way, or when the connection turns out to be lost: most were lost while
    they lay idle, and the pool makes new ones then. Nothing has been done in these cases; whether a
    commit whose answer was lost was carried out nobody knows, and that is the caller's to ask.
    With `one_write` the write may have been carried out too: the function must then find it done.

    Raises:
        Contended: Others got in the way each time.
        sqlalchemy.exc.SQLAlchemyError: The database failed.
    """

    def decorate(function: Callable[Concatenate[Connection, P], R]) -> Callable[P, R]:
        @wraps(function)
        def carry_out(*args: P.args, **kwargs: P.kwargs) -> R:
            last = time.monotonic() + PATIENCE_S
            for attempt in range(1, ATTEMPTS + 1):
                committing = False
                try:
                    with transaction(read_only=read_only, one_write=one_write) as connection:
                        result = function(connection, *args, **kwargs)
                        committing = not read_only
                    return result  # noqa: TRY300 - after the commit
                except (Raced, exc.DBAPIError) as error:
                    if not _harmless(error, committing):
                        raise
                    if attempt == ATTEMPTS or time.monotonic() > last:
                        _give_up(error)
                    logger.debug("attempt %d of %s: %s", attempt, function.__name__, error)
                time.sleep(random.uniform(0, 0.005 * 2**attempt))
            raise AssertionError

        return carry_out

    return decorate


def _harmless(error: Raced | exc.DBAPIError, committing: bool) -> bool:
    """Whether nothing was done, and the same may go well next time."""
    if isinstance(error, Raced | exc.IntegrityError) or error_code(error.orig) in _CONFLICTS:
        return True
    return error.connection_invalidated and not committing


def _give_up(error: Raced | exc.DBAPIError) -> None:
    if isinstance(error, Raced) or error_code(error.orig) in _CONFLICTS:
        raise Contended("too many requests change this at once; send this one again") from error
    raise error
