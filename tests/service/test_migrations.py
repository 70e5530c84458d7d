"""The revisions of the schema."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from pathlib import Path

import flask_migrate
import pytest
import requests
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from flask import Flask
from forked import in_forked_child
from service.jobs import spec_json
from service_process import ServiceProcess
from sqlalchemy import inspect, select
from zeus_service import create_app, optimizer
from zeus_service.config import Config
from zeus_service.database import MIGRATIONS, UnusableDatabase, migrate_sqlite
from zeus_service.extensions import db, transaction
from zeus_service.models import EVENTS
from zeus_service.spec import JobSpec


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


def test_altering_a_table_keeps_the_rows_that_refer_to_it(app: Flask, tmp_path: Path) -> None:
    optimizer.register_job(JobSpec.model_validate(spec_json()))
    optimizer.start_trial("job", None)
    revisions = tmp_path / "migrations"
    shutil.copytree(MIGRATIONS, revisions)
    (revisions / "versions" / "0002_alter.py").write_text(
        "import sqlalchemy as sa\n"
        "from alembic import op\n"
        "revision, down_revision = '0002', '0001'\n"
        "def upgrade():\n"
        "    with op.batch_alter_table('jobs') as jobs:\n"
        "        jobs.alter_column('cost_bound', type_=sa.Float())\n"
    )
    flask_migrate.upgrade(directory=str(revisions))
    assert len(optimizer.list_trials("job").trials) == 1
    with transaction(read_only=True) as connection:
        assert len(connection.execute(select(EVENTS)).all()) == 1


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


def test_a_file_that_this_user_cannot_write_is_told_by_name(app: Flask) -> None:
    def try_to_serve_as_nobody() -> None:
        if os.getuid() == 0:  # who may write any file
            os.setuid(65534)
        with pytest.raises(UnusableDatabase, match=r"service\.sqlite3.*readonly"):
            migrate_sqlite(app, path)

    with tempfile.TemporaryDirectory() as folder:  # other users cannot enter pytest's
        path = Path(folder) / "service.sqlite3"
        migrate_sqlite(create_app(Config(database_url=f"sqlite:///{path}")), path)
        path.chmod(0o444)
        Path(folder).chmod(0o755)
        in_forked_child(try_to_serve_as_nobody)


def test_a_file_damaged_while_serving_is_told_as_unavailable(own_service: ServiceProcess) -> None:
    path = Path(own_service.database_url.removeprefix("sqlite:///"))
    for part in path.parent.glob(f"{path.name}-*"):
        part.unlink()
    path.write_text("this is not a database" * 1000)
    answer = requests.get(f"{own_service.url}/api/v1/jobs", timeout=5)
    assert (answer.status_code, answer.json()["code"]) == (503, "unavailable")
    assert requests.get(f"{own_service.url}/healthz", timeout=5).ok


def test_a_file_that_is_no_database_is_told_by_name(tmp_path: Path, app: Flask) -> None:
    path = tmp_path / "text.sqlite3"
    path.write_text("this is not a database, however long it may be " * 100)
    with pytest.raises(UnusableDatabase, match=r"text\.sqlite3.*not a database"):
        migrate_sqlite(app, path)
