"""Migrate the database to the revision that this version works with, and check it.

The functions raise `Unusable` if the database cannot be opened or read, or has a revision that they
cannot work with. What else an operator may need, Flask-Migrate has: `flask --app zeus_service db`.
"""

import functools
import sqlite3
from pathlib import Path

from alembic import command
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from alembic.util import CommandError
from flask import Flask, current_app
from sqlalchemy.orm import Session

from zeus_service.config import current_config
from zeus_service.db.session import cause, create_sqlite_file, use_case
from zeus_service.db.tables import db
from zeus_service.errors import Unusable

MIGRATIONS = Path(__file__).parent / "migrations"


def prepare(app: Flask) -> None:
    """Prepare the database for the service; to be called by the master, before workers start.

    SQLite is migrated. A server's database must be at the right revision: an operator migrates it,
    with a backup, when no older version writes to it any more.
    """
    with app.app_context():
        try:
            if current_config().sqlite_path:
                upgrade(app)
            check_revision()
        finally:
            db.engine.dispose()  # no connection may cross a fork


def upgrade(app: Flask) -> None:
    """Migrate to this version's revision. An SQLite file that does not exist is created."""
    with app.app_context():
        if path := current_config().sqlite_path:
            try:
                create_sqlite_file(path)
            except (OSError, sqlite3.Error) as error:
                raise Unusable(
                    f"cannot open {_shown()}: {error}; set ZEUS_BSO_DATABASE_URL to a file that "
                    "this user can write"
                ) from error
        current_revision()  # names what is wrong with a connection
        try:
            migrate = current_app.extensions["migrate"].migrate
            command.upgrade(migrate.get_config(MIGRATIONS), "head")
        except CommandError as error:
            raise Unusable(
                f"cannot migrate {_shown()}: {error}; use the newer version that migrated it"
            ) from error


def current_revision() -> str | None:
    """The database's revision, within the application's context, or None without tables."""
    path = current_config().sqlite_path
    if path and not path.exists():  # opening it would create it
        raise Unusable(
            f"no database at {path}; if the service uses another, set "
            "ZEUS_BSO_DATABASE_URL=sqlite:///FILE as it does (`recur` uses "
            ".zeus/recur/zeus.sqlite3); otherwise start the service, which creates it"
        )
    try:
        return _read_revision()
    except Exception as error:  # drivers raise any for a URL that they cannot use
        raise Unusable(
            f"cannot read {_shown()}: {cause(error)}; check ZEUS_BSO_DATABASE_URL and the server"
        ) from error


@use_case(read_only=True)
def _read_revision(session: Session) -> str | None:
    return MigrationContext.configure(session.connection()).get_current_revision()


@functools.cache
def known_revisions() -> tuple[str, ...]:
    """The revisions of this version, the newest first, which is the one it works with."""
    scripts = ScriptDirectory(MIGRATIONS).walk_revisions()
    return tuple(script.revision for script in scripts)


def check_revision() -> None:
    """Check, within the application's context, that the database has this version's revision."""
    found, (head, *older) = current_revision(), known_revisions()
    if found == head:
        return
    if found is None:
        raise Unusable(f"{_shown()} is empty: run `zeus-service db upgrade`")
    remedy = "use the newer version that migrated it"
    if found in older:
        remedy = "run `zeus-service db upgrade`"
    raise Unusable(
        f"{_shown()} is at revision {found}, but this version of zeus-service needs {head}: "
        f"{remedy}"
    )


def _shown() -> str:
    return f"the database {current_config().shown_database}"
