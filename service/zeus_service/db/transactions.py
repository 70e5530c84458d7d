"""Transactions, and retries of a whole use case after conflicts with other transactions."""

import logging
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import wraps
from typing import Concatenate, ParamSpec, TypeVar

from sqlalchemy import Connection, exc

from zeus_service.db.connections import connection_of
from zeus_service.db.damage import REBUILD, reading
from zeus_service.db.engine import SQLITE_BUSY, error_code, has_too_many_connections, max_writers
from zeus_service.db.queue import turn
from zeus_service.db.tables import db
from zeus_service.errors import Contended

P = ParamSpec("P")
R = TypeVar("R")

logger = logging.getLogger(__name__)

ATTEMPTS = 8
PATIENCE_S = 15.0
"""No further attempt after this: clients wait for a response."""

UNLOCKED = 4
"""Transactions of one job at once that take no lock on it: reports that go on, heartbeats."""

MAX_WAITING = 100
"""Requests that wait for one job. With the database 1 ms away the last one waits for a second."""

_CONFLICTS = frozenset({1205, 1213, "40001", "40P01", "55P03", SQLITE_BUSY})
"""Lock timeouts, deadlocks and serialization failures: the database has rolled back."""


_CONTENDED = "this is locked, or too many requests change it at once; send this one again"


class Raced(Exception):
    """Raised when another transaction changed a row between our reading and our writing it."""

    orig = None
    connection_invalidated = False


def after_commit(connection: Connection, callback: Callable[[], object]) -> None:
    """Call a function once the connection's `transaction` has committed; not if it rolls back."""
    connection.get_execution_options()["after_commit"].append(callback)


@contextmanager
def transaction(
    *, read_only: bool = False, one_write: bool = False, timeout_s: float = PATIENCE_S
) -> Iterator[Connection]:
    """A connection in a transaction that commits at the end, and rolls back on an error.

    `timeout_s` bounds the wait for a connection.

    PostgreSQL takes a round trip each to begin and to commit. With `read_only`, or `one_write` for
    what writes once, by `Writes`, each statement is a transaction by itself there.

    On SQLite a writing transaction takes the write lock at once (`BEGIN IMMEDIATE`): one that
    reads first and writes later could not wait for another writer, only fail.
    """
    callbacks: list[Callable[[], object]] = []
    with connection_of(db.engine, timeout_s=timeout_s) as connection:
        connection = connection.execution_options(
            read_only=read_only, one_write=one_write, after_commit=callbacks
        )
        with connection.begin():
            yield connection
    for callback in callbacks:
        callback()


def use_case(
    *, read_only: bool = False, one_write: bool = False
) -> Callable[[Callable[Concatenate[Connection, P], R]], Callable[P, R]]:
    """Decorate a function of a connection: each call is one transaction.

    The function is called again in a new transaction, a few times, after short waits, if another
    transaction conflicted with it, or if the connection turns out to be lost: most were lost while
    they were idle, and the pool replaces them. If the server has as many connections as it allows,
    it waits for one of the pool's own. Nothing has been written in these cases. Only the
    caller can find out whether a commit whose response was lost was carried out. With `one_write`
    the write may have been carried out, too: the function must then find it done.

    The first argument is the job, by its id or specification, if it is of one. Functions that write
    take turns by it: see `queue`.

    Raises:
        BrokenJob: A row of the job cannot be read, or contradicts another one.
        Contended: Other transactions conflicted with it each time.
        sqlalchemy.exc.SQLAlchemyError: The database failed.
    """

    def decorate(function: Callable[Concatenate[Connection, P], R]) -> Callable[P, R]:
        @wraps(function)
        def in_turn(*args: P.args, **kwargs: P.kwargs) -> R:
            last = time.monotonic() + PATIENCE_S
            first = next(iter(args), None)
            job_id = getattr(first, "job_id", first)
            is_job = isinstance(job_id, str)
            naming = reading(f"job {job_id!r}", REBUILD) if is_job else nullcontext()
            if read_only:
                with naming:
                    return retried(last, *args, **kwargs)
            key = db.engine, one_write, job_id
            at_once = UNLOCKED if one_write else 1
            with (
                naming,
                turn(key, at_once=at_once, timeout_s=PATIENCE_S, max_waiting=MAX_WAITING),
                turn(db.engine, at_once=max_writers(db.engine), timeout_s=last - time.monotonic()),
            ):
                return retried(last, *args, **kwargs)

        def retried(last: float, *args: P.args, **kwargs: P.kwargs) -> R:
            attempt = 0
            while True:
                attempt += 1
                committing = False
                try:
                    with transaction(
                        read_only=read_only,
                        one_write=one_write,
                        timeout_s=last - time.monotonic(),
                    ) as connection:
                        result = function(connection, *args, **kwargs)
                        committing = not read_only
                    return result  # noqa: TRY300 - after the commit
                except (Raced, exc.DBAPIError) as error:
                    code = error_code(error.orig)
                    contended = isinstance(error, Raced) or code in _CONFLICTS
                    # A pooled connection may become free.
                    full = has_too_many_connections(error.orig)
                    lost = error.connection_invalidated and not committing
                    if not (contended or lost or full or isinstance(error, exc.IntegrityError)):
                        raise
                    patient = full or code == SQLITE_BUSY
                    if time.monotonic() > last or (attempt >= ATTEMPTS and not patient):
                        if contended:
                            raise Contended(_CONTENDED) from error
                        raise
                    logger.debug("attempt %d of %s: %s", attempt, function.__name__, error)
                time.sleep(random.uniform(0, 0.05 if patient else 0.005 * 2**attempt))

        return in_turn

    return decorate
