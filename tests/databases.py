"""The databases that the service works with, for tests: each gets one of its own."""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import own_servers
import pytest
from sqlalchemy import URL, Connection, NullPool, create_engine, make_url, text
from sqlalchemy.exc import DBAPIError
from zeus_service import create_app
from zeus_service.config import Config
from zeus_service.db.migrate import upgrade
from zeus_service.db.session import transaction
from zeus_service.db.tables import db

SERVERS = {"postgresql": "ZEUS_TEST_POSTGRES_URL", "mysql": "ZEUS_TEST_MYSQL_URL"}
"""Variables that name a server to use in place of one of the tests' own."""

_INSTALL = {"postgresql": "PostgreSQL", "mysql": "MariaDB"}


def _server_param(name: str) -> Any:
    variable = SERVERS[name]
    return pytest.param(
        name,
        marks=pytest.mark.skipif(
            not os.environ.get(variable) and not own_servers.is_installed(name),
            reason=f"no {_INSTALL[name]} server: install one, or name one in {variable}",
        ),
    )


DATABASES = ["sqlite", *map(_server_param, SERVERS)]
"""For `pytest.mark.parametrize` and fixtures."""
POSTGRESQL = DATABASES[1:2]
"""The same for what only PostgreSQL does."""


def server_url(name: str) -> URL:
    """The URL of a server, with the driver that the service uses."""
    url = os.environ.get(SERVERS[name]) or own_servers.url_of(name)
    return make_url(Config(database_url=url).database_url)


@contextmanager
def new_database(name: str, folder: Path, *, copy_of: URL | None = None) -> Iterator[str]:
    """The URL of a new database: a file in `folder`, or on a server, which drops it.

    It is empty, or a copy of another one of its kind.
    """
    if name == "sqlite":
        path = folder / "service.sqlite3"
        if copy_of:
            shutil.copy(str(copy_of.database), path)
        yield f"sqlite:///{path}"
        return
    url = server_url(name)
    database = f"zeus_test_{uuid.uuid4().hex[:12]}"
    # with a language's order, which ours must not depend on
    template = copy_of.database if copy_of else "template0 LOCALE_PROVIDER icu ICU_LOCALE 'en-US'"
    engine = create_engine(url, isolation_level="AUTOCOMMIT", poolclass=NullPool)
    with engine.connect() as connection:
        from_template = f" TEMPLATE {template}" if name == "postgresql" else ""
        connection.execute(text(f"CREATE DATABASE {database}{from_template}"))
        if copy_of and name == "mysql":
            _copy_tables(connection, str(copy_of.database), database)
    try:
        yield url.set(database=database).render_as_string(hide_password=False)
    finally:
        with engine.connect() as connection:
            force = " WITH (FORCE)" if name == "postgresql" else ""
            connection.execute(text(f"DROP DATABASE {database}{force}"))


def _copy_tables(connection: Connection, source: str, target: str) -> None:
    """Do for MariaDB what a template does for PostgreSQL."""
    tables = connection.exec_driver_sql(f"SHOW TABLES FROM {source}").scalars().all()
    created = [
        connection.exec_driver_sql(f"SHOW CREATE TABLE {source}.{table}").one()[1]
        for table in tables
    ]
    connection.exec_driver_sql(f"USE {target}")
    connection.exec_driver_sql("SET foreign_key_checks = 0")  # in whatever order they come
    for table, statement in zip(tables, created, strict=True):
        connection.exec_driver_sql(statement.replace("%", "%%"))
        connection.exec_driver_sql(f"INSERT INTO {table} SELECT * FROM {source}.{table}")


_migrated = ExitStack()


@functools.cache
def _migrated_once(name: str) -> URL:
    """A database at the head revision, to be copied: that takes less than a migration."""
    folder = Path(_migrated.enter_context(TemporaryDirectory()))
    url = _migrated.enter_context(new_database(name, folder))
    app = create_app(Config(database_url=url))
    upgrade(app)
    with app.app_context():
        db.engine.dispose()  # PostgreSQL copies none that is in use
    return make_url(url)


def pytest_sessionfinish() -> None:
    """Drop the databases that were copied."""
    _migrated.close()


@contextmanager
def migrated_database(name: str, folder: Path) -> Iterator[str]:
    """The URL of a new database at the head revision."""
    with new_database(name, folder, copy_of=_migrated_once(name)) as url:
        yield url


_WAITING = {
    "postgresql": "SELECT count(*) FROM pg_stat_activity"
    " WHERE datname = current_database() AND wait_event_type = 'Lock'",
    "mysql": "SELECT count(*) FROM information_schema.innodb_trx t"
    " JOIN information_schema.processlist p ON p.id = t.trx_mysql_thread_id"
    " WHERE t.trx_state = 'LOCK WAIT' AND p.db = DATABASE()",
}


def waiting_sessions() -> int:
    """How many sessions of the application's database wait for a lock."""
    with transaction(read_only=True) as session:
        name = db.engine.dialect.name
        if name == "mysql":  # which repeats its last answer to whoever asks again within 0.1 s
            time.sleep(0.15)
        return int(session.execute(text(_WAITING[name])).scalar_one())


def kill_connections(database_url: str) -> int:
    """End every connection to a database, as its server's operator would; how many there were."""
    url = make_url(Config(database_url=database_url).database_url)
    engine = create_engine(server_url(url.get_backend_name()), poolclass=NullPool)
    if url.get_backend_name() == "postgresql":
        statement = (
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = :database"
        )
        with engine.connect() as connection:
            return len(connection.execute(text(statement), {"database": url.database}).all())
    statement = "SELECT id FROM information_schema.processlist WHERE db = :database"
    with engine.connect() as connection:
        numbers = connection.execute(text(statement), {"database": url.database}).scalars().all()
        for number in numbers:
            with contextlib.suppress(DBAPIError):  # it has just ended by itself
                connection.exec_driver_sql(f"KILL {number}")
    return len(numbers)
