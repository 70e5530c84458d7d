"""Bring the database to the revision that this version works with."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

import flask_migrate
from flask import Flask

MIGRATIONS = Path(__file__).parent / "migrations"


class DatabaseError(Exception):
    """The database cannot be used; the message names it and the remedy."""


def migrate_sqlite(app: Flask, path: Path) -> None:
    """Make the SQLite file if it is not there, and migrate it.

    To be called once, before workers start.

    Raises:
        DatabaseError: The file cannot be made, opened or written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.closing(sqlite3.connect(path, timeout=30)) as connection:
            connection.execute("PRAGMA journal_mode = WAL")
        with app.app_context():
            flask_migrate.upgrade(directory=str(MIGRATIONS))
    except (OSError, sqlite3.Error) as error:
        raise DatabaseError(
            f"cannot open the database {path}: {error}; set ZEUS_BSO_DATABASE_URL to a file that "
            "this user can write, such as sqlite:////var/lib/zeus/zeus.sqlite3"
        ) from error
