"""The revisions of the schema."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from pathlib import Path

import flask_migrate
import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from flask import Flask
from sqlalchemy import inspect
from zeus_service.database import MIGRATIONS, DatabaseError, migrate_sqlite
from zeus_service.extensions import db


def test_the_revisions_make_what_the_models_say(app: Flask) -> None:
    with db.engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, db.metadata) == []


def test_every_revision_goes_down_again(app: Flask) -> None:
    assert {"jobs", "trials", "reports", "events"} < set(inspect(db.engine).get_table_names())
    flask_migrate.downgrade(directory=str(MIGRATIONS), revision="base")
    assert inspect(db.engine).get_table_names() == ["alembic_version"]
    flask_migrate.upgrade(directory=str(MIGRATIONS))
    assert "jobs" in inspect(db.engine).get_table_names()


def test_a_new_file_is_made_with_its_folder_and_a_write_ahead_log(tmp_path: Path) -> None:
    from service.conftest import migrated_app

    path = tmp_path / "new" / "folder" / "service.sqlite3"
    with migrated_app(path):
        assert sqlite3.connect(path).execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_several_processes_may_migrate_one_new_file_at_once(tmp_path: Path) -> None:
    path = tmp_path / "service.sqlite3"
    program = (
        "from pathlib import Path; from zeus_service import create_app\n"
        "from zeus_service.config import Config\n"
        "from zeus_service.database import migrate_sqlite\n"
        f"migrate_sqlite(create_app(Config(database_url='sqlite:///{path}')), Path({str(path)!r}))"
    )
    processes = [
        subprocess.Popen([sys.executable, "-c", program], stderr=subprocess.PIPE, text=True)
        for _ in range(6)
    ]
    for process in processes:
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 0, errors


def test_a_file_that_is_no_database_is_told_by_name(tmp_path: Path, app: Flask) -> None:
    path = tmp_path / "text.sqlite3"
    path.write_text("this is not a database, however long it may be " * 100)
    with pytest.raises(DatabaseError, match=r"text\.sqlite3.*not a database"):
        migrate_sqlite(app, path)
