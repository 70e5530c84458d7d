"""A database that refuses connections, or has lost its file, is an outage and no defect."""

import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Event

import pytest
import sqlalchemy as sa
from flask import Flask
from service.api.wires import Api, report
from service.conftest import application
from service.db.races import on_servers
from service.jobs import START, spec_json
from service_process import ServiceProcess
from sqlalchemy import make_url
from waiting import LIMIT_S, wait_until
from zeus_service.config import Config
from zeus_service.db.session import transaction
from zeus_service.db.tables import db


@contextmanager
def limited(url: str, *, connections: int) -> Iterator[str]:
    """The URL for a user with a limit of connections."""
    name = f"limited_{uuid.uuid4().hex[:12]}"
    database = make_url(Config(database_url=url).database_url)
    admin = sa.create_engine(database, isolation_level="AUTOCOMMIT")
    create, drop = {
        "postgresql": (
            [
                f"CREATE ROLE {name} LOGIN CONNECTION LIMIT {connections}",
                f"GRANT ALL ON ALL TABLES IN SCHEMA public TO {name}",
                f"GRANT ALL ON ALL SEQUENCES IN SCHEMA public TO {name}",
            ],
            [f"DROP OWNED BY {name}", f"DROP ROLE {name}"],
        ),
        "mysql": (
            [
                f"CREATE USER {name} WITH MAX_USER_CONNECTIONS {connections}",
                f"GRANT ALL ON {database.database}.* TO {name}",
            ],
            [f"DROP USER {name}"],
        ),
    }[database.get_backend_name()]
    with admin.connect() as connection:
        for statement in create:
            connection.exec_driver_sql(statement)
        yield database.set(username=name).render_as_string(hide_password=False)
        for statement in drop:
            connection.exec_driver_sql(statement)
    admin.dispose()


@on_servers
def test_where_no_more_connections_are_allowed_a_request_waits_for_a_pooled_one(
    database_url: str,
) -> None:
    with (
        limited(database_url, connections=1) as url,
        application(url) as app,
        ThreadPoolExecutor(2) as pool,
    ):
        held, release = Event(), Event()
        refused: list[str] = []

        @sa.event.listens_for(db.engine, "do_connect")
        def note(*_: object) -> None:
            refused.append("perhaps")

        def hold_the_connection() -> None:
            with app.app_context(), transaction(read_only=True) as session:
                session.execute(sa.text("SELECT 1"))
                held.set()
                release.wait(LIMIT_S)

        def register() -> int:
            return app.test_client().post("/api/v1/jobs", json=spec_json()).status_code

        holding = pool.submit(hold_the_connection)
        assert held.wait(LIMIT_S)
        answer = pool.submit(register)
        wait_until(lambda: answer.done() or len(refused) > 1)
        release.set()
        assert answer.result(LIMIT_S) == 201
        holding.result(LIMIT_S)


@on_servers
def test_many_clients_share_the_few_connections_that_are_allowed(
    database_url: str, tmp_path: Path
) -> None:
    def client(number: int) -> list[int]:
        api, job = Api(service.url), f"/jobs/job-{number}"
        answers = [api("POST", "/jobs", spec_json(job_id=job.rpartition("/")[2]))]
        for trial in range(1, 4):
            answers.append(api("POST", f"{job}/trials", START))
            answers += [api("POST", f"{job}/trials/{trial}/reports", report(n)) for n in (1, 2)]
            answers.append(api("GET", job))
        return [answer.status_code for answer in answers]

    with (
        limited(database_url, connections=2) as url,
        ServiceProcess(tmp_path, database_url=url) as service,
        ThreadPoolExecutor(8) as pool,
    ):
        statuses = [status for each in pool.map(client, range(8)) for status in each]
    assert {status for status in statuses if status not in (200, 201)} == set()


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
@pytest.mark.parametrize("used", [True, False])
def test_a_file_that_was_removed_is_an_outage_and_is_not_made_anew(
    app: Flask, database_url: str, used: bool
) -> None:
    client, path = app.test_client(), Path(database_url.removeprefix("sqlite:///"))
    if used:
        assert client.post("/api/v1/jobs", json=spec_json()).status_code == 201
    kept = {part: part.read_bytes() for part in path.parent.glob(f"{path.name}*")}
    for part in kept:
        part.unlink()
    for _ in range(2):
        for answer in (
            client.get("/api/v1/jobs"),
            client.post("/api/v1/jobs", json=spec_json()),
            client.get("/readyz"),
        ):
            assert (answer.status_code, answer.get_json()["code"]) == (503, "unavailable")
    assert not path.exists()
    for part, content in kept.items():
        part.write_bytes(content)
    assert client.get("/api/v1/jobs").status_code == 200
