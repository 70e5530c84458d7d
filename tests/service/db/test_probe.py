"""The service is ready only where its database takes writes."""

import contextlib
import sqlite3
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from flask import Flask
from service.conftest import application
from service.db.races import on_servers
from service.jobs import spec_json
from sqlalchemy import event, make_url
from zeus_service.config import Config
from zeus_service.db.tables import db

on_sqlite = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)


def sqlite_file(url: str) -> Path:
    return Path(url.removeprefix("sqlite:///"))


def check_not_ready(url: str, caplog: pytest.LogCaptureFixture) -> None:
    with application(url) as app:
        client = app.test_client()
        assert client.get("/api/v1/jobs").status_code == 200
        assert client.post("/api/v1/jobs", json=spec_json()).status_code == 503
        answer = client.get("/readyz")
        assert (answer.status_code, answer.json["code"]) == (503, "unavailable")
        assert "cannot write the database" in caplog.text
        assert client.get("/healthz").status_code == 200


def test_a_database_that_takes_writes_is_ready_and_keeps_none_of_the_probe(app: Flask) -> None:
    for _ in range(3):
        assert app.test_client().get("/readyz").json["status"] == "ok"
    with db.engine.connect() as connection:
        for table in db.metadata.sorted_tables:
            assert connection.execute(sa.select(sa.func.count()).select_from(table)).scalar() == 0


@contextmanager
def who_may_only_read(url: str) -> Iterator[str]:
    """The URL for a user without the right to insert."""
    name = f"reader_{uuid.uuid4().hex[:12]}"
    database = make_url(Config(database_url=url).database_url)
    admin = sa.create_engine(database, isolation_level="AUTOCOMMIT")
    create, drop = {
        "postgresql": (
            [f"CREATE ROLE {name} LOGIN", f"GRANT SELECT ON ALL TABLES IN SCHEMA public TO {name}"],
            [f"DROP OWNED BY {name}", f"DROP ROLE {name}"],
        ),
        "mysql": (
            [f"CREATE USER {name}", f"GRANT SELECT ON {database.database}.* TO {name}"],
            [f"DROP USER {name}"],
        ),
    }[database.get_backend_name()]
    with contextlib.closing(admin.connect()) as connection:
        for statement in create:
            connection.exec_driver_sql(statement)
        yield database.set(username=name).render_as_string(hide_password=False)
        for statement in drop:
            connection.exec_driver_sql(statement)
    admin.dispose()


@contextmanager
def whose_sessions_only_read(url: str) -> Iterator[str]:
    option = {
        "postgresql": {"options": "-c default_transaction_read_only=on"},
        "mysql": {"init_command": "SET SESSION TRANSACTION READ ONLY"},
    }[make_url(url).get_backend_name()]
    yield make_url(url).update_query_dict(option).render_as_string(hide_password=False)


@on_servers
@pytest.mark.parametrize("hindered", [who_may_only_read, whose_sessions_only_read])
def test_it_is_not_ready_where_it_may_not_write(
    database_url: str,
    hindered: Callable[[str], AbstractContextManager[str]],
    caplog: pytest.LogCaptureFixture,
) -> None:
    with hindered(database_url) as url:
        check_not_ready(url, caplog)


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_it_is_not_ready_where_it_may_store_jobs_but_no_reports(database_url: str) -> None:
    database = make_url(Config(database_url=database_url).database_url)
    with who_may_only_read(database_url) as url:
        user = make_url(url).username
        admin = sa.create_engine(database, isolation_level="AUTOCOMMIT")
        with admin.connect() as connection:
            connection.exec_driver_sql(f"GRANT INSERT ON ALL TABLES IN SCHEMA public TO {user}")
            connection.exec_driver_sql(f"GRANT UPDATE ON jobs TO {user}")
        with application(url) as app:
            client = app.test_client()
            assert client.post("/api/v1/jobs", json=spec_json()).status_code == 201
            assert client.get("/readyz").status_code == 503
            with admin.connect() as connection:
                connection.exec_driver_sql(f"GRANT UPDATE ON trials TO {user}")
            assert client.get("/readyz").status_code == 200
        admin.dispose()


@on_sqlite
def test_it_is_not_ready_on_a_full_disk(
    database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    def fill(connection: Any, _record: Any) -> None:
        connection.execute("PRAGMA max_page_count = 1")  # the file may not grow

    event.listen(sa.Engine, "connect", fill)
    try:
        with application(database_url) as app:
            assert app.test_client().get("/readyz").status_code == 503
    finally:
        event.remove(sa.Engine, "connect", fill)
    assert "database or disk is full" in caplog.text


@on_sqlite
@pytest.mark.parametrize("table", ["jobs", "trials", "reports", "events"])
def test_it_is_not_ready_with_a_malformed_page(
    database_url: str, table: str, caplog: pytest.LogCaptureFixture
) -> None:
    with contextlib.closing(sqlite3.connect(sqlite_file(database_url))) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        query = "SELECT rootpage FROM sqlite_master WHERE name = ?"
        (page,) = connection.execute(query, [table]).fetchone()
        (size,) = connection.execute("PRAGMA page_size").fetchone()
    with sqlite_file(database_url).open("r+b") as file:
        file.seek((page - 1) * size)
        file.write(b"\xff" * size)
    with application(database_url) as app:
        assert app.test_client().get("/readyz").status_code == 503
    assert "malformed" in caplog.text


@on_sqlite
def test_a_file_that_another_one_writes_is_ready(app: Flask, database_url: str) -> None:
    with contextlib.closing(sqlite3.connect(sqlite_file(database_url))) as connection:
        connection.execute("BEGIN IMMEDIATE")
        assert app.test_client().get("/readyz").status_code == 200


@on_sqlite
def test_a_file_that_another_one_writes_next_is_ready(app: Flask, database_url: str) -> None:
    options = {"isolation_level": None, "check_same_thread": False}
    with contextlib.closing(sqlite3.connect(sqlite_file(database_url), **options)) as other:

        def write_next(connection: Any) -> None:
            if not other.in_transaction:
                connection.exec_driver_sql("ROLLBACK")  # earlier than SQLAlchemy's own
                other.execute("BEGIN IMMEDIATE")

        event.listen(db.engine, "rollback", write_next)
        assert app.test_client().get("/readyz").status_code == 200
        assert other.in_transaction
