"""A use case is carried out once and whole, whatever other transactions and connections do."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import requests
from databases import DATABASES, kill_connections, migrated_database, waiting_sessions
from flask import Flask
from service.conftest import application
from service.jobs import spec_json
from service_process import ServiceProcess
from sqlalchemy import Connection, bindparam, event, exc, select, text, update
from waiting import LIMIT_S, wait_until
from zeus_service import create_app, maintenance, messages, optimizer
from zeus_service.config import Config
from zeus_service.errors import Contended, ReportConflict, TrialFinished
from zeus_service.spec import JobSpec
from zeus_service.store.engine import POOL_SIZE
from zeus_service.store.jobs import LockedJob
from zeus_service.store.models import EVENTS, JOBS, REPORTS, TRIALS, db
from zeus_service.store.transactions import (
    ATTEMPTS,
    Raced,
    after_commit,
    transaction,
    use_case,
)
from zeus_service.store.writes import Writes, bind_values, parameters

SERVERS = DATABASES[1:]
ROUNDS = 2
on_servers = pytest.mark.parametrize("database_url", SERVERS, indirect=True)


def register(job_id: str) -> None:
    optimizer.register_job(JobSpec.model_validate(spec_json(job_id=job_id)))


def trials_of(job_id: str) -> int:
    """A number in the job's row, which these tests count with."""
    with transaction(read_only=True) as connection:
        return connection.execute(select(JOBS.c.trials).where(JOBS.c.job_id == job_id)).scalar_one()


def add_one(connection: Connection, job_id: str) -> None:
    connection.execute(update(JOBS).where(JOBS.c.job_id == job_id).values(trials=JOBS.c.trials + 1))


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


@on_servers
def test_a_connection_lost_before_the_commit_is_replaced(app: Flask, database_url: str) -> None:
    register("job")
    attempts = []

    @use_case()
    def lose_the_connection_once(connection: Connection) -> None:
        add_one(connection, "job")
        attempts.append(1)
        if len(attempts) == 1:
            kill_connections(database_url)
        connection.execute(text("SELECT 1"))

    lose_the_connection_once()
    assert len(attempts) == 2
    assert trials_of("job") == 1


@pytest.mark.parametrize("database_url", SERVERS[:1], indirect=True)  # others commit apart
def test_a_report_whose_answer_was_lost_is_answered_again(app: Flask, database_url: str) -> None:
    register("job")
    optimizer.start_trial("job", None)
    lost = []

    @event.listens_for(db.engine, "after_cursor_execute")
    def lose_the_connection_once(connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if "UPDATE trials" in statement and not lost:
            lost.append(statement)
            kill_connections(database_url)
            connection.exec_driver_sql("SELECT 1")

    assert report(1).decision == "continue"
    assert lost
    with transaction(read_only=True) as connection:
        assert connection.execute(select(REPORTS.c.sequence)).scalars().all() == [1]


@pytest.mark.parametrize("database_url", SERVERS[:1], indirect=True)
def test_transactions_read_what_is_committed_whatever_the_database_does_by_default(
    app: Flask,
) -> None:
    with transaction() as connection:
        connection.execute(
            text(
                f"ALTER DATABASE {db.engine.url.database} "
                "SET default_transaction_isolation = 'serializable'"
            )
        )
    db.engine.dispose()
    for options in ({}, {"read_only": True}, {"one_write": True}):
        with transaction(**options) as connection:
            level = connection.execute(text("SHOW transaction_isolation")).scalar_one()
            assert level == "read committed"


@on_servers
def test_a_connection_lost_at_the_commit_is_reported(app: Flask, database_url: str) -> None:
    """Nobody knows whether it was carried out: the caller must ask."""
    register("job")
    attempts = []

    @use_case()
    def lose_the_connection_at_the_end(connection: Connection) -> None:
        attempts.append(1)
        add_one(connection, "job")
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
            register(name)
        jobs = f"{service.url}/api/v1/jobs"
        for _ in range(ROUNDS):
            with transaction() as connection:
                for name in names:
                    LockedJob.lock(connection, name)  # so that each job takes a connection
                starts = [
                    pool.submit(requests.post, f"{jobs}/{name}/trials", json={})
                    for name in (*names, *names)
                ]
                wait_until(lambda: waiting_sessions() == len(names))
            lists = [pool.submit(requests.get, jobs) for _ in range(16)]
            statuses = [future.result(timeout=LIMIT_S).status_code for future in (*starts, *lists)]
            assert statuses == [201] * 16 + [200] * 16
            db.engine.dispose()
            assert kill_connections(url) > 4
        assert requests.get(f"{jobs}/job-0", timeout=LIMIT_S).json()["trials"] == ROUNDS * 2


@on_servers
@pytest.mark.parametrize(
    ("path", "expected"), [("/readyz", '"ok"'), ("/metrics", "zeus_bso_database_up 1.0")]
)
def test_stale_connections_raise_no_alarm(
    app: Flask, database_url: str, path: str, expected: str
) -> None:
    client = app.test_client()
    assert client.get("/readyz").status_code == 200
    assert kill_connections(database_url) > 0
    assert expected in client.get(path).text


@contextlib.contextmanager
def just_before(words: str, other: Callable[[], object]) -> Iterator[None]:
    """Have another transaction carried out just before the first statement with these words."""
    others = [other]

    def carry_out(_connection: Any, _cursor: Any, statement: str, *_more: Any) -> None:
        if words in statement and others:
            others.pop()()

    event.listen(db.engine, "before_cursor_execute", carry_out)
    yield
    event.remove(db.engine, "before_cursor_execute", carry_out)
    assert not others


def just_before_the_trial_is_written(
    other: Callable[[], object],
) -> contextlib.AbstractContextManager[None]:
    """Have another transaction carried out between a use case's reading a trial and writing it."""
    return just_before("UPDATE trials", other)


def errored() -> None:
    optimizer.end_trial("job", 1, messages.TrialEnd(outcome="errored"))


def report(sequence: int, metric: float = 0.1) -> messages.Decision:
    figures = {"epoch": sequence, "time_s": 1.0, "energy_j": 1.0, "metric": metric}
    return optimizer.report("job", 1, messages.Report(sequence=sequence, **figures))


@on_servers
def test_a_heartbeat_whose_trial_ends_meanwhile_gets_the_outcome(app: Flask) -> None:
    register("job")
    optimizer.start_trial("job", None)
    with (
        just_before_the_trial_is_written(errored),
        pytest.raises(TrialFinished, match="has ended: errored"),
    ):
        optimizer.heartbeat("job", 1)


@on_servers
def test_a_report_whose_trial_ends_meanwhile_takes_the_end_back(app: Flask) -> None:
    register("job")
    optimizer.start_trial("job", None)
    with just_before_the_trial_is_written(errored):
        assert report(1).decision == "continue"
    assert optimizer.get_trial("job", 1).outcome is None
    with transaction(read_only=True) as connection:
        kinds = connection.execute(select(EVENTS.c.kind).order_by(EVENTS.c.sequence)).scalars()
        assert list(kinds) == ["started", "ended", "revived"]
    assert maintenance.rebuild("job")


@on_servers
def test_a_report_that_the_next_one_overtakes_is_refused(app: Flask) -> None:
    register("job")
    optimizer.start_trial("job", None)
    with (
        just_before_the_trial_is_written(lambda: report(2)),
        pytest.raises(ReportConflict, match="report 1 comes after report 2"),
    ):
        report(1)
    assert optimizer.get_trial("job", 1).epoch == 2


@on_servers
def test_the_same_report_twice_at_once_is_taken_once(app: Flask) -> None:
    register("job")
    optimizer.start_trial("job", None)
    answers = []
    with just_before_the_trial_is_written(lambda: answers.append(report(1))):
        answers.append(report(1))
    assert answers[0] == answers[1]


@pytest.mark.parametrize("database_url", SERVERS[:1], indirect=True)  # MySQL locks the trial too
def test_a_last_report_that_another_one_overtakes_is_taken_after_it(app: Flask) -> None:
    register("job")
    optimizer.start_trial("job", None)
    with just_before_the_trial_is_written(lambda: report(1)):
        assert report(2, metric=1.0).outcome == "converged"
    with transaction(read_only=True) as connection:
        reports = connection.execute(select(REPORTS.c.sequence).order_by(REPORTS.c.sequence))
        assert list(reports.scalars()) == [1, 2]
        events = connection.execute(select(EVENTS.c.kind).order_by(EVENTS.c.sequence))
        assert list(events.scalars()) == ["started", "ended"]
    assert maintenance.rebuild("job")


@on_servers
def test_a_report_that_finds_its_trial_taken_up_again_meanwhile_is_taken(
    app: Flask, database_url: str
) -> None:
    def report_to_another_server() -> None:
        with application(database_url):
            report(1)

    register("job")
    optimizer.start_trial("job", None)
    errored()
    with just_before(" UPDATE", report_to_another_server):  # FOR UPDATE, FOR NO KEY UPDATE
        assert report(2).decision == "continue"
    assert optimizer.get_trial("job", 1).epoch == 2
    with transaction(read_only=True) as connection:
        events = connection.execute(select(EVENTS.c.kind).order_by(EVENTS.c.sequence))
        assert list(events.scalars()) == ["started", "ended", "revived"]
    assert maintenance.rebuild("job")


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


@on_servers
def test_a_job_that_stays_locked_is_reported_as_unavailable(
    app: Flask, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A host that died may have locked it until the database server notices."""
    monkeypatch.setattr("zeus_service.store.transactions.PATIENCE_S", 1.0)
    register("job")
    with ThreadPoolExecutor(1) as pool, transaction() as connection:
        LockedJob.lock(connection, "job")
        start = pool.submit(app.test_client().post, "/api/v1/jobs/job/trials", json={})
        with contextlib.suppress(TimeoutError):
            start.result(timeout=LIMIT_S)
        in_time = start.done()
    assert in_time
    answer = start.result()
    assert (answer.status_code, answer.json["code"]) == (503, "unavailable")
    assert answer.headers["Retry-After"] == "1"


@pytest.mark.parametrize("scheme", ["postgresql", "postgres", "mysql", "mariadb"])
def test_a_server_that_is_away_is_reported_as_unavailable(scheme: str) -> None:
    app = create_app(Config(database_url=f"{scheme}://user:secret@127.0.0.1:1/database"))
    answer = app.test_client().get("/api/v1/jobs")
    assert (answer.status_code, answer.json["code"]) == (503, "unavailable")
    assert answer.headers["Retry-After"] == "1"
    assert answer.mimetype == "application/problem+json"
    assert "refused" in answer.json["detail"]
    assert "secret" not in answer.text


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
                        answers.append(session.post(path, json=body))
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
    starts = []

    def start() -> None:
        starts.append(optimizer.start_trial("job", "key"))

    def start_on_another_server() -> None:
        with application(database_url):
            start()

    other = threading.Thread(target=start_on_another_server)

    def let_the_other_wait() -> None:
        other.start()  # it looks for the key, and waits for the job
        wait_until(lambda: waiting_sessions() == 1)

    with just_before("INTO trials", let_the_other_wait):
        start()
    other.join()
    (one, new), (same, again) = starts
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
