"""A use case is carried out once and whole, whatever other transactions and connections do."""

from __future__ import annotations

import http.client
import json
import socket
import sqlite3
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
import requests
from databases import waiting_sessions
from flask import Flask
from service.api.test_v1_baselines import LearningJob
from service.api.wires import Api
from service.api.wires import report as report_json
from service.conftest import application, on_sqlite
from service.db.races import add_one, just_before, on_servers, trials_of
from service.jobs import START, register, report, spec_json
from service_process import ServiceProcess
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session
from waiting import LIMIT_S, wait_until
from zeus_service import optimizer
from zeus_service.bandit.stopping import Decision
from zeus_service.db import jobs, queries
from zeus_service.db import session as session_module
from zeus_service.db.session import transaction, use_case
from zeus_service.db.tables import db
from zeus_service.errors import Contended, ReportConflict


@on_servers
def test_two_that_deadlock_are_both_carried_out_once(app: Flask) -> None:
    for job_id in ("one", "two"):
        register(job_id=job_id)
    barrier = threading.Barrier(2)
    attempts = []

    @use_case()
    def both(session: Session, first: str, second: str) -> None:
        attempts.append(first)
        add_one(session, first)
        if len(attempts) <= 2:
            barrier.wait(LIMIT_S)
        add_one(session, second)

    def in_thread(first: str, second: str) -> None:
        with app.app_context():
            both(first, second)

    with ThreadPoolExecutor() as pool:
        futures = [pool.submit(in_thread, *pair) for pair in (("one", "two"), ("two", "one"))]
        for future in futures:
            future.result(timeout=LIMIT_S)
    assert len(attempts) >= 3  # more if the one that begins again overtakes the one that waits
    assert (trials_of("one"), trials_of("two")) == (2, 2)


def test_many_that_register_start_report_and_delete_the_same_jobs_see_no_failure(
    any_service: ServiceProcess,
) -> None:
    def client(number: int) -> set[int]:
        statuses = set()
        with requests.Session() as session:
            for turn in range(6):
                jobs = f"{any_service.url}/api/v1/jobs"
                job = f"{jobs}/job-{(number + turn) % 2}"
                answers = [session.post(jobs, json=spec_json(job_id=job.rpartition("/")[2]))]
                start = session.post(f"{job}/trials", json=START)
                answers.append(start)
                if start.ok:
                    for sequence in (1, 2):
                        body = report_json(sequence, metric=sequence / 2)
                        path = f"{job}/trials/{start.json()['trial_number']}/reports"
                        of_it = {"generation": start.json()["generation"]}
                        answers.append(session.post(path, json=body, params=of_it))
                if turn % 2:
                    answers.append(session.delete(f"{job}?force=true"))
                statuses.update(answer.status_code for answer in answers)
        return statuses

    with ThreadPoolExecutor(8) as pool:
        statuses = set().union(*pool.map(client, range(8)))
    assert statuses <= {200, 201, 204, 404, 409}
    assert statuses >= {200, 201, 204}


@on_servers
def test_two_starts_at_once_with_one_key_are_one_trial(app: Flask, database_url: str) -> None:
    register()
    starts_there = []

    def start_on_another_server() -> None:
        with application(database_url):
            starts_there.append(optimizer.start_trial("job", "key"))

    other = threading.Thread(target=start_on_another_server)

    def let_the_other_wait() -> None:
        other.start()  # it looks for the key, and waits for the job
        wait_until(lambda: waiting_sessions() == 1)

    with just_before("INTO trials", let_the_other_wait):
        _, one, new = optimizer.start_trial("job", "key")
    other.join()
    ((_, same, again),) = starts_there
    assert (one.generation, new, again) == (same.generation, True, False)
    assert optimizer.get_job("job").trials == 1


def test_one_of_many_that_end_at_once_sets_the_target(api: Api) -> None:
    job = LearningJob(api)
    metrics = [0.9 + 0.01 * number for number in range(8)]
    for number, metric in enumerate(metrics, 1):
        job.start()
        job.report(number, metric)
    with ThreadPoolExecutor(8) as pool:
        ended = [answer.json() for answer in pool.map(job.end, range(1, 9))]
    names = sorted(trial["reason"].partition(":")[0] for trial in ended)
    assert names[5:] == ["baseline 1 of 3", "baseline 2 of 3", "baseline 3 of 3"]
    assert set(names[:5]) == {"an extra baseline"}
    target = job.shown()["target_metric"]
    for trial, metric in zip(job.trials(), metrics, strict=True):
        assert trial["outcome"] == ("converged" if metric >= target else "completed")


def test_a_last_report_that_many_send_at_once_is_taken_once(api: Api, job: str, trial: str) -> None:
    def send(_number: int) -> tuple[int, str]:
        path = f"{api.root}/api/v1{trial}/reports"
        body, query = report_json(metric=1.0), api.generation(trial)
        answer = requests.post(path, json=body, params=query, timeout=LIMIT_S)
        return answer.status_code, answer.text

    with ThreadPoolExecutor(12) as pool:
        answers = set(pool.map(send, range(24)))
    hardware = api("GET", f"/jobs/{job}").json()["hardware"]
    pulls = {arm["batch_size"]: arm["pulls"] for arm in hardware[0]["arms"]}
    taken = api("GET", f"/jobs/{job}/trials").json()["trials"][0]
    assert len(answers) == 1
    assert answers.pop()[0] == 200
    assert pulls[taken["batch_size"]] == 1
    assert (taken["outcome"], taken["reports"]) == ("converged", 1)


@on_servers
def test_requests_that_change_a_job_are_served_in_the_order_in_which_they_came(
    app: Flask, database_url: str, tmp_path: Path
) -> None:
    register()
    body = json.dumps(START)
    start = (
        "POST /api/v1/jobs/job/trials HTTP/1.1\r\nHost: localhost\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n{body}"
    ).encode()
    with (
        ServiceProcess(tmp_path, database_url=database_url) as service,
        socket.create_connection(("127.0.0.1", service.port)) as first,
        socket.create_connection(("127.0.0.1", service.port)) as second,
    ):
        with transaction() as session:
            jobs.lock(session, "job")
            first.sendall(start + start)  # the next request is there before the first is answered
            wait_until(lambda: waiting_sessions() == 1)
            second.sendall(start)
            # Answered by the same worker, after it has read what came before.
            assert requests.get(f"{service.url}/healthz", timeout=LIMIT_S).ok
        second.settimeout(LIMIT_S)
        answer = http.client.HTTPResponse(second)
        answer.begin()
        assert json.loads(answer.read())["trial_number"] == 2


@on_servers
def test_what_happens_before_the_lock_is_seen_behind_it(app: Flask, database_url: str) -> None:
    """The row that is joined to the locked one must be as new: PostgreSQL's may be older."""
    register()
    optimizer.start_trial("job")
    waiting = threading.Event()

    def report_it() -> None:
        with application(database_url):
            waiting.set()
            decisions.append(optimizer.report("job", 1, report(2)))

    decisions: list[Decision] = []
    other = threading.Thread(target=report_it)
    with transaction() as session:
        _, trial = jobs.lock_trial(session, "job", 1)
        other.start()
        wait_until(lambda: waiting_sessions() == 1)
        trial.reports, trial.cost = 1, 1e6  # as a report before
    other.join()
    assert decisions[0].outcome is None
    trial = queries.get_trial("job", 1)[0]
    assert (trial.reports, trial.cost) == (2, decisions[0].cost)
    with pytest.raises(ReportConflict):
        optimizer.report("job", 1, report(1))


@on_sqlite
def test_all_transactions_of_a_request_share_one_deadline(
    app: Flask, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("zeus_service.db.session.DEADLINE_S", 2.0)
    attempts = []

    @use_case()
    def conflict(session: Session, job_id: str) -> None:
        attempts.append(job_id)
        time.sleep(0.3)
        error = sqlite3.OperationalError("database is locked")
        error.sqlite_errorname = "SQLITE_BUSY"
        raise OperationalError("", {}, error)

    began = time.monotonic()
    with app.test_request_context():
        for job_id in ("one", "two"):
            with pytest.raises(Contended):
                conflict(job_id)
    assert time.monotonic() - began < 3.9  # with a deadline each, at least 4
    assert attempts.count("one") > attempts.count("two")


@contextmanager
def locked_file() -> Iterator[None]:
    """Another connection has the write lock of the SQLite file."""
    with closing(sqlite3.connect(str(db.engine.url.database), isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield


@on_sqlite
@pytest.mark.usefixtures("app")
def test_an_attempt_waits_briefly_for_a_locked_file_even_if_each_pause_takes_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pauses: list[float] = []
    clock = SimpleNamespace(
        monotonic=lambda: 0.02 * len(pauses),  # as in a worker that has much to do
        sleep=pauses.append,
    )
    monkeypatch.setattr(session_module, "time", clock)
    with locked_file(), pytest.raises(OperationalError, match="locked"), transaction():
        pass
    assert len(pauses) == 3


@on_sqlite
@pytest.mark.usefixtures("app")
def test_a_connection_that_lets_sqlite_wait_waits_once() -> None:
    with locked_file(), db.engine.connect() as connection:
        connection.connection.dbapi_connection.execute("PRAGMA busy_timeout = 1000")
        began = time.monotonic()
        with pytest.raises(OperationalError, match="locked"):
            connection.begin()
    assert time.monotonic() - began < 10
