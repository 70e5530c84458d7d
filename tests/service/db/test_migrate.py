"""The revisions of the schema."""

from __future__ import annotations

import contextlib
import io
import os
import re
import shutil
import sqlite3
import tempfile
from pathlib import Path
from typing import Any

import flask_migrate
import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from click.testing import CliRunner
from databases import DATABASES, new_database
from flask import Flask
from forked import in_forked_child
from service.conftest import on_sqlite
from service.jobs import register, report
from service.test_cli import one_error, zeus_service
from service_fork import ServiceFork
from service_process import free_port
from sqlalchemy import Engine, create_engine, func, inspect, select
from waiting import LIMIT_S
from zeus_service import create_app, optimizer
from zeus_service.cli import main
from zeus_service.config import Config
from zeus_service.db import migrate as database
from zeus_service.db.migrate import (
    MIGRATIONS,
    current_revision,
    known_revisions,
    upgrade,
)
from zeus_service.db.session import transaction
from zeus_service.db.tables import Job, Report, Trial, db
from zeus_service.errors import Unusable


def description(engine: Engine) -> dict[str, Any]:
    """Everything that the database says of its tables: types with collations, keys, indices."""
    inspector = inspect(engine)
    found: dict[str, Any] = {}
    for name in sorted(set(inspector.get_table_names()) - {"alembic_version"}):
        columns = [
            {**column, "type": (repr(column["type"]), getattr(column["type"], "collation", None))}
            for column in inspector.get_columns(name)
        ]
        found[name] = {
            "columns": columns,
            "primary key": inspector.get_pk_constraint(name),
            "foreign keys": inspector.get_foreign_keys(name),
            "unique": inspector.get_unique_constraints(name),
            "checks": inspector.get_check_constraints(name),
            "indices": sorted(inspector.get_indexes(name), key=lambda index: str(index["name"])),
            "options": inspector.get_table_options(name),
        }
    return found


def differences() -> list[Any]:
    """What Alembic finds between the database and the models."""
    with db.engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        return compare_metadata(context, db.metadata)


def test_the_revisions_make_what_the_models_say(app: Flask, tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    with new_database(db.engine.dialect.name, tmp_path / "models") as url:
        made_from_models = create_engine(Config(database_url=url).database_url)
        db.metadata.create_all(made_from_models)
        assert description(db.engine) == description(made_from_models)
        made_from_models.dispose()
    assert differences() == []


def fill() -> None:
    """Put rows into the tables."""
    register()
    optimizer.start_trial("job")
    optimizer.report("job", 1, report(1))


def rows() -> dict[str, int]:
    """How many rows each table has."""
    with transaction(read_only=True) as session:
        return {
            table.__tablename__: session.scalar(select(func.count()).select_from(table)) or 0
            for table in (Job, Trial, Report)
        }


def test_every_revision_goes_down_and_up_with_rows_in_the_tables(app: Flask) -> None:
    fill()
    assert rows() == {"jobs": 1, "trials": 1, "reports": 1}
    while current_revision() is not None:
        flask_migrate.downgrade(revision="-1")
    assert inspect(db.engine).get_table_names() == ["alembic_version"]
    while current_revision() != known_revisions()[0]:
        flask_migrate.upgrade(revision="+1")
    fill()


@on_sqlite
def test_altering_a_table_keeps_the_rows_that_refer_to_it(
    app: Flask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill()
    before = rows()
    revisions = tmp_path / "migrations"
    shutil.copytree(MIGRATIONS, revisions)
    (revisions / "versions" / "9999_alter.py").write_text(
        "import sqlalchemy as sa\n"
        "from alembic import op\n"
        f"revision, down_revision = '9999', {known_revisions()[0]!r}\n"
        "def upgrade():\n"
        "    with op.batch_alter_table('jobs') as jobs:\n"
        "        jobs.alter_column('saved_time_s', type_=sa.Float())\n"
    )
    monkeypatch.setattr(database, "MIGRATIONS", revisions)
    upgrade(app)
    assert current_revision() == "9999"
    assert rows() == before


def test_the_sql_of_an_upgrade_needs_no_connection_and_makes_the_same_tables(
    app: Flask, tmp_path: Path
) -> None:
    kind = db.engine.dialect.name
    unreachable = {
        "sqlite": f"sqlite:///{tmp_path}/not/there/x.sqlite3",
        "postgresql": "postgresql://127.0.0.1:1/x",
        "mysql": "mariadb://127.0.0.1:1/x",
    }[kind]
    with create_app(Config(database_url=unreachable)).app_context():
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            flask_migrate.upgrade(sql=True)
    folder = tmp_path / "by_hand"
    folder.mkdir()
    with new_database(kind, folder) as url:
        engine = create_engine(Config(database_url=url).database_url)
        with engine.connect() as connection:
            for statement in re.split(r";\n", printed.getvalue()):
                if statement.strip() and statement.strip() not in ("BEGIN", "COMMIT"):
                    connection.exec_driver_sql(statement)
            connection.commit()
        assert description(engine) == description(db.engine)
        engine.dispose()
        assert zeus_service("jobs", database_url=url).stdout == "no jobs yet\n"


def test_the_revision_is_shown_and_changed_by_hand(database_url: str) -> None:
    head = known_revisions()[0]

    def db_command(command: str) -> str:
        environment = {"ZEUS_BSO_DATABASE_URL": database_url}
        result = CliRunner(env=environment).invoke(main, ["db", command])
        assert result.exit_code == 0, result.output
        return result.stdout

    needs = f"this version needs {head}\n"
    assert db_command("current") == f"database revision {head}; {needs}"
    with create_app(Config(database_url=database_url)).app_context():
        flask_migrate.downgrade(revision="base")
    assert db_command("current") == f"database revision none; {needs}"
    for _ in range(2):
        assert db_command("upgrade") == f"database revision {head}; {needs}"


@pytest.mark.parametrize("kind", DATABASES[1:])
def test_serving_is_refused_while_a_servers_database_is_empty(kind: str, tmp_path: Path) -> None:
    with new_database(kind, tmp_path) as url:
        bind = f"--bind=127.0.0.1:{free_port()}"
        refused = one_error(zeus_service("serve", bind, database_url=url))
        assert "is empty: run" in refused
        assert "run `zeus-service db upgrade`" in refused


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_a_new_file_is_its_owners_alone_in_a_new_folder_whatever_the_umask(
    tmp_path: Path, umask: int
) -> None:
    path = tmp_path / "new" / "folder" / "service.sqlite3"
    app = create_app(Config(database_url=f"sqlite:///{path}"))
    before = os.umask(umask)
    try:
        upgrade(app)
        with app.app_context(), transaction() as session:
            session.execute(sa.text("CREATE TABLE x (y)"))
        modes = {path.name: path.stat().st_mode & 0o777 for path in path.parent.iterdir()}
    finally:
        os.umask(before)
    assert set(modes.values()) == {0o600}
    assert {"service.sqlite3", "service.sqlite3-wal"} <= modes.keys()
    assert sqlite3.connect(path).execute("PRAGMA journal_mode").fetchone() == ("wal",)


@pytest.mark.parametrize("kind", DATABASES)
def test_several_processes_may_migrate_one_new_database_at_once(kind: str, tmp_path: Path) -> None:
    log = tmp_path / "log"
    with new_database(kind, tmp_path) as url:
        env = {**os.environ, "ZEUS_BSO_DATABASE_URL": url}
        processes = [ServiceFork(["db", "upgrade"], env, tmp_path, log) for _ in range(3)]
        statuses = [process.wait(timeout=LIMIT_S) for process in processes]
        assert set(statuses) == {0}, log.read_text()


def test_a_file_that_this_user_cannot_write_is_reported_by_name() -> None:
    def try_to_serve_as_nobody() -> None:
        if os.getuid() == 0:  # who may write any file
            os.setuid(65534)
        with pytest.raises(Unusable, match=r"service\.sqlite3.*readonly"):
            upgrade(app)

    with tempfile.TemporaryDirectory() as folder:  # other users cannot enter pytest's
        path = Path(folder) / "service.sqlite3"
        app = create_app(Config(database_url=f"sqlite:///{path}"))
        upgrade(app)
        path.chmod(0o444)
        Path(folder).chmod(0o755)
        in_forked_child(try_to_serve_as_nobody)
