"""Sessions, the connections they use, and the database's clock.

A use case is carried out whole, in one transaction, or not at all. How connections are opened, set
up and pooled depends on the database; an SQLite file is created here.

Stored instants come from the database's clock and are compared with it alone, so the clocks of the
replicas do not matter.
"""

from __future__ import annotations

import itertools
import logging
import os
import random
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, nullcontext, suppress
from functools import wraps
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar
from weakref import WeakValueDictionary

from flask import current_app, has_request_context, request
from gevent import Timeout, monkey
from sqlalchemy import URL, Connection, Double, Engine, ExceptionContext, event, exc, select
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.orm import Session
from sqlalchemy.sql.functions import FunctionElement

from zeus_service.errors import Contended

P = ParamSpec("P")
R = TypeVar("R")

logger = logging.getLogger(__name__)

POOL_SIZE = 16
"""Database connections per process, at most; they are opened when they are needed."""

SQLITE_WAIT_S = 0.05
"""How long an attempt waits for SQLite's write lock."""

SQLITE_PAUSE_S = 0.001
"""Before it tries to take the lock again. SQLite's own waiting would block the whole worker."""

SQLITE_BUSY = "SQLITE_BUSY"

CONNECT_TIMEOUT = "connect_timeout"
"""A parameter of both servers' drivers, in seconds. The URL's query wins."""

_SESSION = {
    # Timeouts release the locks of a host that died before its TCP connection times out.
    "postgresql": "SET lock_timeout = '10s'; SET idle_in_transaction_session_timeout = '60s'",
    "mysql": "SET SESSION innodb_lock_wait_timeout = 10, SESSION wait_timeout = 600, "
    "SESSION time_zone = '+00:00'",
}

_READ_ONLY = frozenset({"25006", 1290, 1836})
"""Errors of a read-only server: another one has replaced it, or will."""

DEADLINE_S = 15.0
"""Of a request: all that it waits for, and all attempts, end by then."""

LONGEST_PAUSE_S = 0.05
"""Between two attempts."""

COLLISIONS = 8
"""Attempts against a constraint: another transaction may have stored the same key meanwhile."""

_CONFLICTS = frozenset({1205, 1213, "40001", "40P01", "55P03", SQLITE_BUSY})
"""Lock timeouts, deadlocks and serialization failures: the database has rolled back."""

_BUSY = "the job or the database is busy; retry"

_AFTER_COMMIT = "zeus_service.after_commit"

_turns: WeakValueDictionary[tuple[int, str], threading.Lock] = WeakValueDictionary()
"""Whose turn it is to lock a job, by engine and job: see `_turn`."""


def use_case(
    *, read_only: bool = False
) -> Callable[[Callable[Concatenate[Session, P], R]], Callable[P, R]]:
    """Decorate a function of a session: each call is one transaction.

    The function is called again, in a new transaction, if another transaction conflicted with it,
    or if the connection was lost before the commit. Whether a commit whose answer was lost was
    carried out, only the caller can find out.

    What the function returns keeps the values that it has loaded. If its first argument is a job's
    id, one call of this process at a time writes that job, and the others wait without a
    connection: a job that stays locked takes one connection, and leaves the others to other jobs.

    Raises:
        Contended: Others kept the job or the database busy until the request's deadline.
        sqlalchemy.exc.SQLAlchemyError: The database failed.
    """

    def decorate(function: Callable[Concatenate[Session, P], R]) -> Callable[P, R]:
        def in_transaction(deadline: float, *args: P.args, **kwargs: P.kwargs) -> R:
            for attempt in itertools.count(1):
                committing = False
                try:
                    with transaction(read_only=read_only, deadline=deadline) as session:
                        result = function(session, *args, **kwargs)
                        session.flush()
                        committing = not read_only
                    return result  # noqa: TRY300 - after the commit
                except exc.DBAPIError as error:
                    conflicts = error_code(error.orig) in _CONFLICTS
                    lost = error.connection_invalidated and not committing
                    collides = isinstance(error, exc.IntegrityError) and attempt < COLLISIONS
                    if not (conflicts or lost or collides):
                        raise
                    if time.monotonic() > deadline:
                        if conflicts:
                            raise Contended(_BUSY) from error
                        raise
                    logger.debug("attempt %d of %s: %s", attempt, function.__name__, error)
                time.sleep(random.uniform(0, min(0.005 * 2**attempt, LONGEST_PAUSE_S)))
            raise AssertionError("the deadline ends the attempts")

        @wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            deadline = _deadline()
            with nullcontext() if read_only else _turn(next(iter(args), None), deadline):
                return in_transaction(deadline, *args, **kwargs)

        return call

    return decorate


@contextmanager
def transaction(*, read_only: bool = False, deadline: float | None = None) -> Iterator[Session]:
    """A session in a transaction that commits at the end, and rolls back on an error.

    On SQLite a transaction that writes takes the write lock at once (`BEGIN IMMEDIATE`): one that
    reads first and writes later could not wait for another writer, only fail.

    Raises:
        sqlalchemy.exc.TimeoutError: A worker waits for the database beyond the deadline.
    """
    seconds = (deadline or _deadline()) - time.monotonic()
    with (
        time_limit(max(seconds, 0.1)),
        Session(_engine(), expire_on_commit=False, autoflush=False) as session,
        session.begin(),
    ):
        session.connection(execution_options={"read_only": read_only})
        yield session


def after_commit(session: Session, callback: Callable[[], object]) -> None:
    """Call a function once the session's transaction has committed; not if it rolls back."""
    session.info.setdefault(_AFTER_COMMIT, []).append(callback)


@event.listens_for(Session, "after_commit")
def _call_back(session: Session) -> None:
    for callback in session.info.pop(_AFTER_COMMIT, ()):
        callback()


class unix_now(FunctionElement[float]):  # noqa: N801 - SQLAlchemy's style for functions
    """Unix seconds by the database's clock, when the statement is executed."""

    type = Double()
    inherit_cache = True


@compiles(unix_now)
def _sqlite_now(_element: unix_now, _compiler: Any, **_options: Any) -> str:
    return "((julianday('now') - 2440587.5) * 86400.0)"


@compiles(unix_now, "postgresql")
def _postgresql_now(_element: unix_now, _compiler: Any, **_options: Any) -> str:
    return "CAST(extract(epoch FROM clock_timestamp()) AS double precision)"


@compiles(unix_now, "mysql")
@compiles(unix_now, "mariadb")
def _mysql_now(_element: unix_now, _compiler: Any, **_options: Any) -> str:
    return "CAST(unix_timestamp(now(6)) AS double)"  # sessions have UTC


def now(session: Session) -> float:
    """Unix seconds by the database's clock, to compare with instants that are stored."""
    return float(session.execute(select(unix_now())).scalar_one())


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Bound how long a block waits; SQLAlchemy then drops a connection that waits in it.

    A server may hang while its host still acknowledges what it is sent, so that neither TCP's
    timeouts nor the server's own end a wait. Outside a worker of gunicorn's there is no bound: an
    operator's commands may take long.

    Raises:
        sqlalchemy.exc.TimeoutError: The block takes longer.
    """
    if not monkey.is_module_patched("socket"):
        yield
        return
    with Timeout(seconds) as timeout:
        try:
            yield
        except Timeout as error:
            if error is not timeout:
                raise  # of a block around this one
            raise exc.TimeoutError(f"the database did not answer within {seconds:.3g} s") from None


def error_code(error: BaseException | None) -> object:
    """PostgreSQL's SQLSTATE, MySQL's number, or `SQLITE_BUSY`."""
    if getattr(error, "sqlite_errorname", "").startswith(SQLITE_BUSY):
        return SQLITE_BUSY  # it has variants, such as SQLITE_BUSY_RECOVERY
    first = next(iter(getattr(error, "args", ())), None)
    # PyMySQL also has an SQLSTATE, but one for many numbers
    return first if isinstance(first, int) else getattr(error, "sqlstate", None) or first


def cause(error: Exception) -> str:
    """The database's own message, in one line, without the statement."""
    text = str(getattr(error, "orig", None) or f"{type(error).__name__}: {error}")
    return " ".join(text.split())


def engine_options(url: URL) -> dict[str, Any]:
    """Options of `create_engine` for a database."""
    # Reuse the most recently used connection: its server process has pages and plans cached.
    pool = {"pool_size": POOL_SIZE, "max_overflow": 0, "pool_timeout": 10, "pool_use_lifo": True}
    if url.get_backend_name() == "sqlite":
        return pool
    # Connections are replaced before a firewall has forgotten them.
    return {
        **pool,
        "isolation_level": "READ COMMITTED",
        "pool_recycle": 300,
        "connect_args": {} if CONNECT_TIMEOUT in url.query else {CONNECT_TIMEOUT: 5},
    }


def set_up(engine: Engine) -> None:
    """Register the listeners that set up each connection of an engine."""
    if engine.dialect.name == "sqlite":
        _set_up_sqlite(engine)
        return
    session = _SESSION[engine.dialect.name]

    @event.listens_for(engine, "connect")
    def connect(connection: Any, _record: Any) -> None:
        with connection.cursor() as cursor:
            cursor.execute(session)
        connection.commit()

    @event.listens_for(engine, "handle_error")
    def replace_connections(context: ExceptionContext) -> None:
        if error_code(context.original_exception) in _READ_ONLY:
            context.is_disconnect = True  # new ones may reach the server that writes


def create_sqlite_file(path: Path) -> None:
    """Create an SQLite file if it does not exist, and set up what its connections share.

    Only its owner may read it, whatever the umask is: it has the key that signs cookies. The files
    that SQLite creates next to it get the same mode.

    Raises:
        OSError, sqlite3.Error: It cannot be created, opened or written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with suppress(FileExistsError):
        os.close(os.open(path, os.O_CREAT | os.O_EXCL, 0o600))
    with closing(sqlite3.connect(path, timeout=30)) as connection:
        connection.execute("PRAGMA auto_vacuum = FULL")  # only in a file without tables
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA user_version = 0")  # fails if it cannot be written


def _engine() -> Engine:
    engine: Engine = current_app.extensions["sqlalchemy"].engine
    return engine


def _deadline() -> float:
    """When what is done now must have ended: of a request, the same for all its transactions."""
    end = time.monotonic() + DEADLINE_S
    if not has_request_context():
        return end
    deadline: float = request.environ.setdefault("zeus_service.deadline", end)
    return deadline


@contextmanager
def _turn(job_id: object, deadline: float) -> Iterator[None]:
    """Wait for the turn to write a job.

    SQLite locks the whole file, so all writers of a process take turns there. What names no job,
    on a server, need not wait.
    """
    engine = _engine()
    is_sqlite = engine.dialect.name == "sqlite"
    if not (is_sqlite or isinstance(job_id, str)):
        yield
        return
    key = id(engine), "" if is_sqlite else str(job_id)
    turn = _turns.setdefault(key, threading.Lock())
    if not turn.acquire(timeout=max(0.0, deadline - time.monotonic())):
        raise Contended(_BUSY)
    try:
        yield
    finally:
        turn.release()
        # Let gevent wake the next one now: this client's next request may be here already.
        time.sleep(0)


def _set_up_sqlite(engine: Engine) -> None:
    """Let SQLAlchemy, not the driver, begin transactions, and reconnect if the file was replaced.

    Connections stay open: when the last one is closed, SQLite writes its log back into the file.
    """

    @event.listens_for(engine, "do_connect")
    def do_connect(_dialect: Any, record: Any, arguments: list[Any], options: Any) -> None:
        record.info["file"] = _file(engine.url)
        # A file that was removed is an error: connecting must not create an empty one.
        arguments[0] = f"{Path(engine.url.database or '').absolute().as_uri()}?mode=rw"
        options["uri"] = True

    @event.listens_for(engine, "connect")
    def connect(connection: Any, _record: Any) -> None:
        connection.isolation_level = None
        connection.execute("PRAGMA busy_timeout = 0")
        connection.execute("PRAGMA foreign_keys = ON")

    @event.listens_for(engine, "checkout")
    def checkout(_connection: Any, record: Any, _proxy: Any) -> None:
        if record.info["file"] != _file(engine.url):
            raise exc.DisconnectionError("the file was replaced")  # the pool opens a new connection

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        read_only = connection.get_execution_options().get("read_only", False)
        end = time.monotonic() + SQLITE_WAIT_S
        while True:
            try:
                connection.exec_driver_sql("BEGIN" if read_only else "BEGIN IMMEDIATE")
                break
            except exc.OperationalError as error:
                if error_code(error.orig) != SQLITE_BUSY or time.monotonic() > end:
                    raise
            time.sleep(SQLITE_PAUSE_S)


def _file(url: URL) -> tuple[int, ...] | None:
    """The identity of the file at an SQLite URL, if it exists."""
    try:
        found = Path(url.database or "").stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino
