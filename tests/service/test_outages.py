"""What the service survives: its database going away, its disk filling up, its own end."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Any

import pytest
import requests
from databases import migrated_database
from postgres_cluster import PostgresCluster, binaries
from service.api.wires import problem, report
from service.conftest import application
from service.jobs import START, spec_json
from service_process import ServiceProcess
from sqlalchemy import select
from waiting import LIMIT_S, wait_until
from zeus_service import create_app, maintenance
from zeus_service.config import Config
from zeus_service.db import jobs as db_jobs
from zeus_service.db.migrate import upgrade
from zeus_service.db.session import transaction
from zeus_service.db.tables import Report


def check_unavailable(response: requests.Response) -> None:
    """Check that a response says that the database cannot be used, and when to come again."""
    body = problem(response, 503, "unavailable")
    assert response.headers["Retry-After"] == "1"
    assert "127.0.0.1" not in body["detail"]


needs_server = pytest.mark.skipif(binaries() is None, reason="no PostgreSQL server is installed")


@pytest.fixture(scope="module")
def cluster() -> Iterator[PostgresCluster]:
    """A PostgreSQL server of these tests' own, at the head revision."""
    with PostgresCluster() as cluster:
        upgrade(create_app(Config(database_url=cluster.url)))
        yield cluster


def wait_for_more(answers: list[Any]) -> None:
    """Wait until each of the 16 clients could have had two more answers."""
    before = len(answers)
    wait_until(lambda: len(answers) >= before + 32)


@needs_server
def test_postgresql_may_be_restarted_in_the_middle(
    cluster: PostgresCluster, tmp_path: Path
) -> None:
    acknowledged: list[tuple[int, int, float]] = []
    refused: list[int] = []
    finished = Event()

    def client(number: int) -> None:
        turn = 0
        with requests.Session() as session:

            def until_it_is_taken(path: str, body: Any, **headers: str) -> dict[str, Any]:
                while True:
                    url = f"{service.url}/api/v1/jobs/job/trials{path}"
                    response = session.post(url, json=body, headers=headers, timeout=LIMIT_S)
                    if response.ok:
                        return dict(response.json())
                    check_unavailable(response)
                    refused.append(number)
                    time.sleep(0.1)

            while turn < 3 or not finished.is_set():
                turn += 1
                key = {"Idempotency-Key": f"{number}-{turn}"}
                start = until_it_is_taken("", START, **key)
                trial = start["trial_number"]
                path = f"/{trial}/reports?generation={start['generation']}"
                for sequence in (1, 2):
                    answer = until_it_is_taken(path, report(sequence, metric=sequence / 2))
                    acknowledged.append((trial, sequence, answer["cost"]))

    with (
        ServiceProcess(tmp_path, database_url=cluster.url, workers=2) as service,
        ThreadPoolExecutor(16) as pool,
    ):
        jobs = f"{service.url}/api/v1/jobs"
        requests.post(jobs, json=spec_json(beta_knob=None), timeout=LIMIT_S).raise_for_status()
        clients = [pool.submit(client, number) for number in range(16)]
        try:
            for mode in ("fast", "immediate"):
                wait_for_more(acknowledged)
                cluster.stop(mode)
                check_unavailable(requests.get(jobs, timeout=LIMIT_S))
                assert "refused" in service.log.read_text()
                assert requests.get(f"{service.url}/healthz", timeout=LIMIT_S).ok
                wait_for_more(refused)
                cluster.start()
                assert requests.get(jobs, timeout=LIMIT_S).ok
            wait_for_more(acknowledged)
        finally:
            finished.set()
        for future in clients:
            future.result(timeout=LIMIT_S)
    with application(cluster.url):
        assert maintenance.rebuild("job")
        with transaction(read_only=True) as session:
            columns = (Report.trial_number, Report.sequence, Report.cost)
            stored = [tuple(row) for row in session.execute(select(*columns))]
    assert sorted(stored) == sorted(acknowledged)
    trials = {trial for trial, _, _ in acknowledged}
    assert trials == set(range(1, len(trials) + 1))


def unread_bytes_of_clients(service: ServiceProcess) -> list[int]:
    """For each connection of a client, how many bytes of its requests no worker has read."""
    found = []
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        _, local, _, state, queues, *_ = line.split()
        if int(local.rpartition(":")[2], 16) == service.port and state == "01":  # established
            found.append(int(queues.rpartition(":")[2], 16))
    return found


def test_sigterm_lets_the_requests_in_flight_finish(tmp_path: Path) -> None:
    with (
        migrated_database("sqlite", tmp_path) as url,
        application(url),
        ServiceProcess(tmp_path, database_url=url, workers=2) as service,
        ThreadPoolExecutor(5) as pool,
    ):
        jobs = f"{service.url}/api/v1/jobs"
        requests.post(jobs, json=spec_json(), timeout=LIMIT_S).raise_for_status()
        idle = requests.Session()
        assert idle.get(jobs, timeout=LIMIT_S).ok
        with transaction() as locking:
            db_jobs.lock(locking, "job")
            starts = [
                pool.submit(requests.post, f"{jobs}/job/trials", json=START, timeout=LIMIT_S)
                for _ in range(4)
            ]
            wait_until(lambda: unread_bytes_of_clients(service) == [0] * 5)
            assert not any(start.done() for start in starts)
            status = pool.submit(service.stop)
            wait_until(lambda: "Handling signal: term" in service.log.read_text())
        assert sorted(start.result().json()["trial_number"] for start in starts) == [1, 2, 3, 4]
        assert status.result() == 0
        idle.close()


FULL_OR_NOT = """#!{python}
from pathlib import Path
from sqlalchemy import Engine, event
from zeus_service.cli import main

@event.listens_for(Engine, "checkout")
def checkout(connection, *more):
    pages = 1 if Path("full").exists() else 2**30  # 1: the file may not grow, as on a full disk
    connection.execute(f"PRAGMA max_page_count = {{pages}}")

main()
"""


def program(folder: Path, source: str) -> Path:
    """Make a program of a text, as a stand-in for `zeus-service`."""
    path = folder / "program"
    path.write_text(source.format(python=sys.executable))
    path.chmod(0o755)
    return path


def test_a_full_disk_is_told_and_passes(tmp_path: Path) -> None:
    with ServiceProcess(tmp_path, program=program(tmp_path, FULL_OR_NOT)) as service:
        jobs = f"{service.url}/api/v1/jobs"
        full = tmp_path / "full"
        full.touch()
        for number in range(100):
            answer = requests.post(jobs, json=spec_json(job_id=f"job-{number}"), timeout=LIMIT_S)
            if answer.status_code != 201:
                break
        check_unavailable(answer)
        assert "database or disk is full" in service.log.read_text()
        assert len(requests.get(jobs, timeout=LIMIT_S).json()["jobs"]) == number
        check_unavailable(
            requests.post(jobs, json=spec_json(job_id=f"job-{number}"), timeout=LIMIT_S)
        )
        full.unlink()
        answer = requests.post(jobs, json=spec_json(job_id=f"job-{number}"), timeout=LIMIT_S)
        assert answer.status_code == 201


@needs_server
def test_a_server_that_hangs_holds_no_request_for_long(
    cluster: PostgresCluster, tmp_path: Path
) -> None:
    """Its host goes on to acknowledge what it is sent, so TCP's timeouts never come."""
    with ServiceProcess(tmp_path, database_url=cluster.url) as service:
        jobs = f"{service.url}/api/v1/jobs"
        body = spec_json(job_id="hangs")
        assert requests.post(jobs, json=body, timeout=LIMIT_S).status_code == 201
        with cluster.stopped():  # within a request on the connection that is open
            metrics = requests.get(f"{service.url}/metrics", timeout=LIMIT_S).text
            assert "zeus_bso_database_up 0.0" in metrics
        wait_until(lambda: requests.get(f"{jobs}/hangs", timeout=LIMIT_S).status_code == 200)
        with cluster.stopped():
            check_unavailable(requests.get(f"{jobs}/hangs", timeout=LIMIT_S))
            check_unavailable(requests.get(f"{service.url}/readyz", timeout=LIMIT_S))
        wait_until(lambda: requests.get(f"{jobs}/hangs", timeout=LIMIT_S).status_code == 200)
        assert "the database did not answer within 15 s" in service.log.read_text()
