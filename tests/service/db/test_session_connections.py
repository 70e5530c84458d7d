"""Connections that are lost, stale, taken or refused, and locks that are not released."""

from __future__ import annotations

import contextlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import requests
from databases import kill_connections, migrated_database, waiting_sessions
from flask import Flask
from service.conftest import application
from service.db.races import SERVERS, add_one, on_servers, trials_of
from service.jobs import START, register
from service_process import ServiceProcess
from sqlalchemy import exc, text
from sqlalchemy.orm import Session
from waiting import LIMIT_S, wait_until
from zeus_service.db import jobs
from zeus_service.db.session import POOL_SIZE, transaction, use_case
from zeus_service.db.tables import db

ROUNDS = 2


@on_servers
def test_a_connection_lost_before_the_commit_is_replaced(app: Flask, database_url: str) -> None:
    register()
    attempts = []

    @use_case()
    def lose_the_connection_once(session: Session) -> None:
        add_one(session, "job")
        attempts.append(1)
        if len(attempts) == 1:
            kill_connections(database_url)
        session.execute(text("SELECT 1"))

    lose_the_connection_once()
    assert len(attempts) == 2
    assert trials_of("job") == 1


@pytest.mark.parametrize("database_url", SERVERS[:1], indirect=True)
def test_transactions_read_what_is_committed_whatever_the_database_does_by_default(
    app: Flask,
) -> None:
    with transaction() as session:
        session.execute(
            text(
                f"ALTER DATABASE {db.engine.url.database} "
                "SET default_transaction_isolation = 'serializable'"
            )
        )
    db.engine.dispose()
    for options in ({}, {"read_only": True}):
        with transaction(**options) as session:
            level = session.execute(text("SHOW transaction_isolation")).scalar_one()
            assert level == "read committed"


@on_servers
def test_a_connection_lost_at_the_commit_is_reported(app: Flask, database_url: str) -> None:
    """Nobody knows whether it was carried out: the caller must ask."""
    register()
    attempts = []

    @use_case()
    def lose_the_connection_at_the_end(session: Session) -> None:
        attempts.append(1)
        add_one(session, "job")
        kill_connections(database_url)

    with pytest.raises(exc.DBAPIError):
        lose_the_connection_at_the_end()
    assert len(attempts) == 1
    assert trials_of("job") == 0


@pytest.mark.parametrize("kind", SERVERS)
def test_connections_that_went_stale_while_idle_fail_no_request(kind: str, tmp_path: Path) -> None:
    with (
        migrated_database(kind, tmp_path) as url,
        application(url),
        ServiceProcess(tmp_path, database_url=url) as service,
        ThreadPoolExecutor(16) as pool,
    ):
        names = [f"job-{n}" for n in range(8)]
        for name in names:
            register(job_id=name)
        root = f"{service.url}/api/v1/jobs"
        for _ in range(ROUNDS):
            with transaction() as session:
                for name in names:
                    jobs.lock(session, name)  # so that each job takes a connection
                starts = [
                    pool.submit(requests.post, f"{root}/{name}/trials", json=START)
                    for name in (*names, *names)
                ]
                wait_until(lambda: waiting_sessions() == len(names))
            lists = [pool.submit(requests.get, root) for _ in range(16)]
            statuses = [future.result(timeout=LIMIT_S).status_code for future in (*starts, *lists)]
            assert statuses == [201] * 16 + [200] * 16
            db.engine.dispose()
            assert kill_connections(url) > 4
        assert requests.get(f"{root}/job-0", timeout=LIMIT_S).json()["trials"] == ROUNDS * 2


@pytest.mark.parametrize("kind", SERVERS)
def test_a_pool_that_is_exhausted_is_reported_as_unavailable(kind: str, tmp_path: Path) -> None:
    with (
        migrated_database(kind, tmp_path) as url,
        application(url) as app,
        contextlib.ExitStack() as taken,
    ):
        for _ in range(POOL_SIZE):
            taken.enter_context(db.engine.connect())
        db.engine.pool._timeout = 0.1  # type: ignore[attr-defined]
        answer = app.test_client().get("/api/v1/jobs")
        assert (answer.status_code, answer.json["code"]) == (503, "unavailable")
        assert answer.headers["Retry-After"] == "1"
        taken.close()
        assert app.test_client().get("/api/v1/jobs").status_code == 200
