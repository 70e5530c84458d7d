"""Bring the database to the revision that this version works with."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

import flask_migrate
from alembic.config import Config as AlembicConfig
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from alembic.util import CommandError
from flask import Flask
from sqlalchemy.exc import SQLAlchemyError

from zeus_service.config import Config
from zeus_service.extensions import db, transaction

MIGRATIONS = Path(__file__).parent / "migrations"


class UnusableDatabase(Exception):
    """The database cannot be used; the message names it and the remedy."""


def prepare(app: Flask, config: Config) -> None:
    """Make the database ready to serve from; to be called once, before workers start.

    Raises:
        UnusableDatabase: It cannot be made, opened, migrated or written.
    """
    if config.sqlite_path:
        migrate_sqlite(app, config.sqlite_path)


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
        with app.app_context():
            flask_migrate.upgrade(directory=str(MIGRATIONS))
    except (OSError, sqlite3.Error, SQLAlchemyError) as error:
        raise UnusableDatabase(
            f"cannot open the database {path}: {getattr(error, 'orig', error)}; set "
            "ZEUS_BSO_DATABASE_URL to a file that this user can write, such as "
            "sqlite:////var/lib/zeus/zeus.sqlite3"
        ) from error
    except CommandError as error:
        raise UnusableDatabase(
            f"the database {path} is not of this version or an older one ({error}); start the "
            "version of zeus-service that made it, or name another file in ZEUS_BSO_DATABASE_URL"
        ) from error


def check_revision(config: Config) -> None:
    """Check that the database is there, and of the revision that this version works with.

    To be called within the application's context, by what reads but does not serve.

    Raises:
        UnusableDatabase: It is not.
    """
    path = config.sqlite_path
    if path and not path.exists():
        raise UnusableDatabase(
            f"no database at {path}; `zeus-service serve` makes it, or ZEUS_BSO_DATABASE_URL "
            "names another"
        )
    alembic = AlembicConfig()
    alembic.set_main_option("script_location", str(MIGRATIONS))
    head = ScriptDirectory.from_config(alembic).get_current_head()
    try:
        with transaction(read_only=True) as connection:
            found = MigrationContext.configure(connection).get_current_revision()
    except SQLAlchemyError as error:
        shown = db.engine.url.render_as_string(hide_password=True)
        raise UnusableDatabase(
            f"cannot read the database {shown}: {getattr(error, 'orig', error)}"
        ) from error
    if found != head:
        raise UnusableDatabase(
            f"the database is at revision {found}, this version of zeus-service works with {head}; "
            "`zeus-service serve` of this version migrates an older one"
        )
