"""Connections to the database, first come, first served.

The pool opens them as they are needed. A server that has as many as it allows refuses further ones;
then requests wait for those that this process has, in a queue of ours: the pool's own is only for
those beyond its size. Without it, requests would try again and again to open one, and the unlucky
would fail.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from weakref import WeakKeyDictionary

from sqlalchemy import Connection, Engine, QueuePool
from sqlalchemy.exc import DBAPIError

from zeus_service.db.deadline import deadline
from zeus_service.db.engine import POOL_SIZE, has_too_many_connections
from zeus_service.db.queue import turn

TRANSACTION_S = 12.0
"""Seconds for a worker's transaction; the database ends a wait for a lock after 10."""

ONE_MORE_AFTER_S = 2.0
"""After a refusal, another connection is tried each time so many seconds have passed."""


class _Allowance:
    """How many connections may be used at once: all of the pool's, until the server refuses one."""

    def __init__(self) -> None:
        self._open, self._refused_at = POOL_SIZE, 0.0

    def __call__(self) -> int:
        more = int((time.monotonic() - self._refused_at) / ONE_MORE_AFTER_S)
        return min(POOL_SIZE, self._open + more)

    def refused(self, pool: QueuePool) -> None:
        self._open = max(1, pool.checkedin() + pool.checkedout())
        self._refused_at = time.monotonic()


_allowances: WeakKeyDictionary[Engine, _Allowance] = WeakKeyDictionary()


@contextmanager
def connection_of(engine: Engine, *, timeout_s: float) -> Iterator[Connection]:
    """A connection of an engine's pool.

    Raises:
        Contended: Others have used all that there may be for so long.
        sqlalchemy.exc.DBAPIError: None could be opened.
        sqlalchemy.exc.TimeoutError: The database takes longer than `TRANSACTION_S`.
    """
    allowance = _allowances.setdefault(engine, _Allowance())
    with (
        turn((engine, "connections"), at_once=allowance, timeout_s=timeout_s),
        deadline(TRANSACTION_S),
    ):
        try:
            connection = engine.connect()
        except DBAPIError as error:
            if has_too_many_connections(error.orig) and isinstance(engine.pool, QueuePool):
                allowance.refused(engine.pool)
            raise
        with connection:
            yield connection
