"""How connections are opened, set up and pooled, by database."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Connection, Engine, ExceptionContext, event
from sqlalchemy.exc import DisconnectionError

POOL_SIZE = 16
"""Database connections per process, at most; they are opened when they are needed."""

BUSY_MS = 20
"""How long SQLite waits for a locked file by itself. It blocks the whole worker meanwhile, so
`session.use_case` waits for the rest."""

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
    """Create an SQLite file if it does not exist, and set up what connections share.

    Its owner alone may read it, whatever the umask is: it has the key that signs cookies. SQLite
    gives the same mode to the files beside it.

    Raises:
        OSError, sqlite3.Error: It cannot be created, opened or written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        os.close(os.open(path, os.O_CREAT | os.O_EXCL, 0o600))
    with contextlib.closing(sqlite3.connect(path, timeout=30)) as connection:
        connection.execute("PRAGMA auto_vacuum = FULL")  # only in a file without tables
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA user_version = 0")  # fails if it cannot be written


def set_up_sqlite_migration(connection: Connection) -> None:
    """Set up a connection to migrate an SQLite file, before its transaction begins."""
    cursor = connection.connection.cursor()
    cursor.execute("PRAGMA busy_timeout = 30000")
    # Altering a table means creating another and dropping the old one, which would delete the rows
    # that refer to it. This cannot be set within the transaction.
    cursor.execute("PRAGMA foreign_keys = OFF")


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
        connection.execute(f"PRAGMA busy_timeout = {BUSY_MS}")
        connection.execute("PRAGMA foreign_keys = ON")

    @event.listens_for(engine, "checkout")
    def checkout(_connection: Any, record: Any, _proxy: Any) -> None:
        if record.info["file"] != _file(engine.url):
            raise DisconnectionError("the file was replaced")  # the pool opens a new connection

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        read_only = connection.get_execution_options().get("read_only", False)
        connection.exec_driver_sql("BEGIN" if read_only else "BEGIN IMMEDIATE")


def _file(url: URL) -> tuple[int, ...] | None:
    """The identity of the file at an SQLite URL, if it exists."""
    try:
        found = Path(url.database or "").stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino
