"""A use case is carried out once and whole, whatever other transactions and connections do."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import requests
from databases import waiting_sessions
from flask import Flask
from service.conftest import application
from service.db.races import (
    add_one,
    just_before,
    on_servers,
    register,
    trials_of,
)
from service.jobs import spec_json
from service_process import ServiceProcess
from sqlalchemy import Connection, bindparam, select, update
from waiting import LIMIT_S, wait_until
from zeus_service import optimizer
from zeus_service.bandit.spec import JobSpec
from zeus_service.db.queries import JobQuery
from zeus_service.db.tables import EVENTS, JOBS, TRIALS
from zeus_service.db.transactions import (
    ATTEMPTS,
    Raced,
    after_commit,
    transaction,
    use_case,
)
from zeus_service.db.writes import Writes, bind_values, parameters
from zeus_service.errors import BrokenJob, Contended


@on_servers
def test_two_that_deadlock_are_both_carried_out_once(app: Flask) -> None:
    for job_id in ("one", "two"):
        register(job_id)
    barrier = threading.Barrier(2)
    attempts = []

    @use_case()
    def both(connection: Connection, first: str, second: str) -> None:
        attempts.append(first)
        add_one(connection, first)
        if len(attempts) <= 2:
            barrier.wait(LIMIT_S)
        add_one(connection, second)

    def in_thread(first: str, second: str) -> None:
        with app.app_context():
            both(first, second)

    with ThreadPoolExecutor() as pool:
        futures = [pool.submit(in_thread, *pair) for pair in (("one", "two"), ("two", "one"))]
        for future in futures:
            future.result(timeout=LIMIT_S)
    assert len(attempts) == 3
    assert (trials_of("one"), trials_of("two")) == (2, 2)


def test_a_use_case_that_races_each_time_ends_as_contended(app: Flask) -> None:
    attempts = []

    @use_case()
    def race(connection: Connection) -> None:
        attempts.append(1)
        raise Raced

    with pytest.raises(Contended):
        race()
    assert len(attempts) == ATTEMPTS


def test_what_an_attempt_did_before_it_raced_is_undone(app: Flask) -> None:
    register("job")
    attempts = []

    @use_case()
    def race_once(connection: Connection) -> None:
        add_one(connection, "job")
        attempts.append(1)
        if len(attempts) == 1:
            raise Raced

    race_once()
    assert trials_of("job") == 1


def test_an_error_names_the_job_only_if_there_is_one(app: Flask) -> None:
    @use_case(read_only=True)
    def fail(_connection: Connection, _first: object) -> None:
        raise ValueError("damaged")

    for job in ("one", JobSpec.model_validate(spec_json(job_id="one"))):
        with pytest.raises(BrokenJob, match="job 'one' cannot be read"):
            fail(job)
    with pytest.raises(ValueError, match="damaged"):
        fail(JobQuery())


def test_callbacks_run_after_the_commit_and_never_after_a_rollback(app: Flask) -> None:
    called: list[str] = []

    def roll_back() -> None:
        with transaction() as connection:
            after_commit(connection, lambda: called.append("rolled back"))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        roll_back()
    with transaction() as connection:  # of the pool: the same as before
        after_commit(connection, lambda: called.append("committed"))
        assert called == []
    assert called == ["committed"]


def test_an_attempt_that_raced_calls_nothing_back(app: Flask) -> None:
    attempts: list[int] = []
    called: list[int] = []

    @use_case()
    def race_once(connection: Connection) -> None:
        attempts.append(1)
        number = len(attempts)
        after_commit(connection, lambda: called.append(number))
        if number == 1:
            raise Raced

    race_once()
    assert called == [2]


def test_many_that_register_start_report_and_delete_the_same_jobs_see_no_failure(
    database_url: str, tmp_path: Path
) -> None:
    def client(number: int) -> set[int]:
        statuses = set()
        with requests.Session() as session:
            for turn in range(12):
                jobs = f"{service.url}/api/v1/jobs"
                job = f"{jobs}/job-{(number + turn) % 2}"
                answers = [session.post(jobs, json=spec_json(job_id=job.rpartition("/")[2]))]
                start = session.post(f"{job}/trials", json={})
                answers.append(start)
                if start.ok:
                    for sequence in (1, 2):
                        figures = {"epoch": sequence, "time_s": 1.0, "energy_j": 1.0}
                        body = {"sequence": sequence, "metric": sequence / 2, **figures}
                        path = f"{job}/trials/{start.json()['trial_number']}/reports"
                        of_it = {"generation": start.json()["generation"]}
                        answers.append(session.post(path, json=body, params=of_it))
                if turn % 2:
                    answers.append(session.delete(f"{job}?force=true"))
                statuses.update(answer.status_code for answer in answers)
        return statuses

    with (
        ServiceProcess(tmp_path, database_url=database_url, workers=2) as service,
        ThreadPoolExecutor(12) as pool,
    ):
        statuses = set().union(*pool.map(client, range(12)))
    assert statuses <= {200, 201, 204, 404, 409}
    assert statuses >= {200, 201, 204}


@on_servers
def test_two_starts_at_once_with_one_key_are_one_trial(app: Flask, database_url: str) -> None:
    register("job")
    starts_there = []

    def start_on_another_server() -> None:
        with application(database_url):
            starts_there.append(optimizer.start_trial("job", "key"))

    other = threading.Thread(target=start_on_another_server)

    def let_the_other_wait() -> None:
        other.start()  # it looks for the key, and waits for the job
        wait_until(lambda: waiting_sessions() == 1)

    with just_before("INTO trials", let_the_other_wait):
        one, new = optimizer.start_trial("job", "key")
    other.join()
    ((same, again),) = starts_there
    assert (one, new, again) == (same, True, False)
    assert optimizer.get_job("job").trials == 1


def test_writes_are_carried_out_only_if_the_first_one_changes_a_row(app: Flask) -> None:
    register("job")
    writes = Writes(
        update(TRIALS)
        .where(TRIALS.c.job_id == bindparam("this_job"))
        .values(parameters(TRIALS, "epoch")),
        EVENTS,
        update(JOBS).values(parameters(JOBS, "events")),
    )
    what = {"job_id": "job", "sequence": 7, "kind": "started", "trial_number": 1, "batch_size": 8}
    why = {"why": "explore", "outcome": None, "cost": 0.0, "happened_at": 1.0}
    values = {
        "this_job": "job",
        "trials_epoch": 3,
        "jobs_events": 7,
        **bind_values(EVENTS, what | why),
    }

    def happened() -> tuple[int, list[int]]:
        with transaction(read_only=True) as connection:
            recorded = connection.execute(select(EVENTS.c.sequence)).scalars().all()
            return connection.execute(select(JOBS.c.events)).scalar_one(), list(recorded)

    with transaction() as connection:
        assert not writes.execute(connection, values)
    assert happened() == (0, [])
    optimizer.start_trial("job", None)
    with transaction() as connection:
        assert writes.execute(connection, values)
    assert happened() == (7, [1, 7])
    assert optimizer.get_trial("job", 1).epoch == 3
