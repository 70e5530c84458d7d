"""Bring the database to the revision that this version works with, and check that it is there."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import TextIO

from alembic import command
from alembic.config import Config as AlembicConfig
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from alembic.util import CommandError
from flask import Flask
from sqlalchemy import Connection
from sqlalchemy.exc import SQLAlchemyError

from zeus_service.config import Config
from zeus_service.connections import cause
from zeus_service.extensions import db
from zeus_service.transactions import use_case

MIGRATIONS = Path(__file__).parent / "migrations"


class UnusableDatabase(Exception):
    """The database cannot be used; the message names it and the remedy."""


def prepare(app: Flask, config: Config) -> None:
    """Make the database ready to serve from; to be called once, before workers start.

    SQLite is migrated. A server's database must be at the right revision: an operator migrates it,
    with a backup at hand, when no older version writes to it any more.

    Raises:
        UnusableDatabase: It cannot be reached, migrated or written, or is of another revision.
    """
    if config.sqlite_path:
        migrate_sqlite(app, config.sqlite_path)
    with app.app_context():
        if not config.sqlite_path:
            check_revision(config)
        db.engine.dispose()  # no connection may cross a fork


def migrate_sqlite(app: Flask, path: Path) -> None:
    """Make the SQLite file if it is not there, and migrate it.

    Raises:
        UnusableDatabase: It cannot be made, opened, migrated or written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.closing(sqlite3.connect(path, timeout=30)) as connection:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA user_version = 0")  # nobody uses it: can it be written?
    except (OSError, sqlite3.Error) as error:
        raise UnusableDatabase(
            f"cannot open the database {path}: {error}; set ZEUS_BSO_DATABASE_URL to a file that "
            "this user can write, such as sqlite:////var/lib/zeus/zeus.sqlite3"
        ) from error
    upgrade(app)


def upgrade(app: Flask, revision: str = "head", *, sql: TextIO | None = None) -> None:
    """Migrate up to a revision, or write the SQL that would, without a connection.

    Args:
        app: The application, which names the database.
        revision: Up to this one; with `sql` also `FROM:TO`.
        sql: Where to write SQL to.

    Raises:
        UnusableDatabase: It cannot be reached or migrated, or has a revision unknown here.
    """
    _migrate(app, command.upgrade, revision, sql=sql)


def downgrade(app: Flask, revision: str) -> None:
    """Migrate down to a revision; `base` drops everything.

    Raises:
        UnusableDatabase: As for `upgrade`.
    """
    _migrate(app, command.downgrade, revision)


def _migrate(
    app: Flask, carry_out: Callable[..., None], revision: str, *, sql: TextIO | None = None
) -> None:
    with app.app_context():
        try:
            carry_out(_alembic(sql), revision, sql=sql is not None)
        except SQLAlchemyError as error:
            raise UnusableDatabase(f"cannot migrate {_shown()}: {cause(error)}") from error
        except CommandError as error:
            raise UnusableDatabase(
                f"cannot migrate {_shown()}: {error}. A database that a newer version of "
                "zeus-service made is migrated by that version alone"
            ) from error


def current_revision() -> str | None:
    """The database's revision; None: it has no tables. To be called in the application's context.

    Raises:
        UnusableDatabase: It cannot be read.
    """
    try:
        return _read_revision()
    except SQLAlchemyError as error:
        raise UnusableDatabase(f"cannot read {_shown()}: {cause(error)}") from error


@use_case(read_only=True)
def _read_revision(connection: Connection) -> str | None:
    return MigrationContext.configure(connection).get_current_revision()


def head_revision() -> str | None:
    """The revision that this version works with."""
    return ScriptDirectory.from_config(_alembic()).get_current_head()


def check_exists(config: Config) -> None:
    """Check that a SQLite file is there: opening it would make it.

    Raises:
        UnusableDatabase: It is not.
    """
    path = config.sqlite_path
    if path and not path.exists():
        raise UnusableDatabase(
            f"no database at {path}; `zeus-service serve` makes it, or ZEUS_BSO_DATABASE_URL "
            "names another"
        )


def check_revision(config: Config) -> None:
    """Check that the database is there, and of the revision that this version works with.

    To be called in the application's context.

    Raises:
        UnusableDatabase: It is not.
    """
    check_exists(config)
    found, head = current_revision(), head_revision()
    if found == head:
        return
    known = {script.revision for script in ScriptDirectory.from_config(_alembic()).walk_revisions()}
    raise UnusableDatabase(
        f"{_shown()} is at revision {found}, this version of zeus-service works with {head}: "
        + (
            "run `zeus-service db upgrade`"
            if found is None or found in known
            else "use the newer version that migrated it, or its `zeus-service db downgrade`"
        )
    )


def _alembic(sql: TextIO | None = None) -> AlembicConfig:
    alembic = AlembicConfig(str(MIGRATIONS / "alembic.ini"), output_buffer=sql)
    alembic.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    return alembic


def _shown() -> str:
    """The database without its password, which may stand in the query too."""
    return f"the database {db.engine.url.set(query={}).render_as_string(hide_password=True)}"
