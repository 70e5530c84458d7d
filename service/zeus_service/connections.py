"""How connections are made, set up and kept, by database."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Connection, Engine, ExceptionContext, event
from sqlalchemy.exc import DisconnectionError, SQLAlchemyError

from zeus_service.server import THREADS

_CONNECT: dict[str, dict[str, Any]] = {
    "postgresql": {
        "connect_timeout": 5,
        "keepalives_idle": 30,
        "keepalives_interval": 10,
        "keepalives_count": 3,
        "tcp_user_timeout": 30_000,  # ms
    },
    "mysql": {"connect_timeout": 5, "read_timeout": 30, "write_timeout": 30},
}
"""In seconds: a server that is gone is told before TCP gives it up. The URL's query wins."""

_SESSION = {
    # What a host that died has locked is free again before its server's TCP notices.
    "postgresql": "SET lock_timeout = '10s'; SET idle_in_transaction_session_timeout = '60s'; "
    "SET default_transaction_isolation = 'read committed'",
    "mysql": "SET SESSION innodb_lock_wait_timeout = 10, SESSION wait_timeout = 600",
}

_READ_ONLY = frozenset({"25006", 1290, 1836})
"""Answers of a server that only reads: it was replaced by another, or will be."""


def error_code(error: BaseException | None) -> object:
    """PostgreSQL's SQLSTATE or MySQL's number."""
    arguments = getattr(error, "args", ())
    return getattr(error, "sqlstate", None) or next(iter(arguments), None)


def cause(error: SQLAlchemyError) -> str:
    """What the database itself says, in one line, without the statement."""
    return " ".join(str(getattr(error, "orig", None) or error).split())


def engine_options(url: URL) -> dict[str, Any]:
    """Options of `create_engine` for a database."""
    # The one that was used last is taken first: what is behind it has all at hand.
    pool = {"pool_size": THREADS, "max_overflow": 0, "pool_timeout": 10, "pool_use_lifo": True}
    backend = url.get_backend_name()
    if backend == "sqlite":
        return pool
    connect = {name: value for name, value in _CONNECT[backend].items() if name not in url.query}
    # The driver of PostgreSQL begins no transaction by itself; see `_set_up_postgresql`.
    isolation = {} if backend == "postgresql" else {"isolation_level": "READ COMMITTED"}
    # Connections are replaced before a firewall has forgotten them.
    return {**pool, **isolation, "pool_recycle": 300, "connect_args": connect}


def set_up(engine: Engine) -> None:
    """Have each connection of an engine set up as the service needs it."""
    if engine.dialect.name == "sqlite":
        _set_up_sqlite(engine)
        return
    if engine.dialect.name == "postgresql":
        _set_up_postgresql(engine)
    session = _SESSION[engine.dialect.name]

    @event.listens_for(engine, "connect")
    def connect(connection: Any, _record: Any) -> None:
        with connection.cursor() as cursor:
            cursor.execute(session)
        connection.commit()

    @event.listens_for(engine, "handle_error")
    def replace_connections(context: ExceptionContext) -> None:
        if error_code(context.original_exception) in _READ_ONLY:
            context.is_disconnect = True  # new ones may lead to the server that writes


def _set_up_postgresql(engine: Engine) -> None:
    """Begin a transaction only where there are several statements: it takes two round trips."""

    @event.listens_for(engine, "connect")
    def connect(connection: Any, _record: Any) -> None:
        connection.autocommit = True

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        options = connection.get_execution_options()
        if not (options.get("read_only") or options.get("one_write")):
            connection.exec_driver_sql("BEGIN")


def _set_up_sqlite(engine: Engine) -> None:
    """Give SQLAlchemy, not the driver, the say over transactions, and use the file that is there.

    Connections are kept: when the last one is closed, SQLite writes its log back into the file.
    """

    @event.listens_for(engine, "do_connect")
    def do_connect(_dialect: Any, record: Any, *_arguments: Any) -> None:
        record.info["file"] = _file(engine.url)

    @event.listens_for(engine, "connect")
    def connect(connection: Any, _record: Any) -> None:
        connection.isolation_level = None
        connection.execute("PRAGMA busy_timeout = 30000")
        connection.execute("PRAGMA foreign_keys = ON")

    @event.listens_for(engine, "checkout")
    def checkout(_connection: Any, record: Any, _proxy: Any) -> None:
        if record.info["file"] != _file(engine.url):
            raise DisconnectionError("it is another file now")  # a new connection is made

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        read_only = connection.get_execution_options().get("read_only", False)
        connection.exec_driver_sql("BEGIN" if read_only else "BEGIN IMMEDIATE")


def _file(url: URL) -> tuple[int, ...] | None:
    """Which file lies at a SQLite URL's path now, and whether it can be written; None: none.

    SQLite opens a file that it may not write for reading only, and stays at that.
    """
    path = Path(url.database or "")
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino, os.access(path, os.W_OK)
