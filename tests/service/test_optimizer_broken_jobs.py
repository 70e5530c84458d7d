"""One row that cannot be read is one broken job; the others are as they were."""

import json
import re
import sqlite3
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest
from click.testing import CliRunner
from flask import Flask
from service.db.test_power_profiles import profile
from service.jobs import register, spec_json
from sqlalchemy import delete, insert, select, text, update
from zeus_service import maintenance, optimizer
from zeus_service.cli import main
from zeus_service.db import jobs
from zeus_service.db.tables import EVENTS, JOBS, SAVED_ON_DAYS, db
from zeus_service.db.transactions import transaction
from zeus_service.errors import BrokenJob, IncompleteHistory
from zeus_service.messages import Report, TrialEnd
from zeus_service.savings.ledger import new_ledger

LONG = "c" * 50

on_sqlite = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)  # it takes anything

NO_JSON = "this is no JSON"  # where the database stores it; else JSON that is no object
STATES = [NO_JSON, "7", "{}"]
SPECS = [NO_JSON, "7", "{}", json.dumps(spec_json(job_id="b", policy="of another version"))]


def break_job(column: str, value: str) -> None:
    """Of three jobs with a trial each, break the second one."""
    for job_id in "abc":
        register(job_id=job_id, policy="zeus")
        optimizer.start_trial(job_id, None)
    if value == NO_JSON and db.engine.name != "sqlite":
        value = "[]"
    with transaction() as connection:
        connection.execute(text("UPDATE trials SET generation = 'x'"))
        update = text(f"UPDATE jobs SET {column} = :value WHERE job_id = 'b'")
        if db.engine.name == "postgresql":
            update = text(f"UPDATE jobs SET {column} = CAST(:value AS json) WHERE job_id = 'b'")
        connection.execute(update, {"value": value})


def stages(app: Flask) -> list[tuple[str, str]]:
    answer = app.test_client().get("/api/v1/jobs")
    assert answer.status_code == 200
    return [(job["job_id"], job["stage"]) for job in answer.get_json()["jobs"]]


PRUNING = "pruning 1/2"


def calls(app: Flask) -> list[Any]:
    client, job = app.test_client(), "/api/v1/jobs/b"
    report = Report(sequence=1, epoch=1, time_s=1.0, energy_j=1.0, metric=1.0)
    return [
        client.get(job),
        client.post(f"{job}/trials", json={}),
        client.post(f"{job}/trials/1/reports?generation=x", json=report.model_dump()),
        client.post("/api/v1/jobs", json=spec_json(job_id="b", max_epochs=11)),
    ]


@pytest.mark.parametrize("state", STATES)
def test_a_state_that_cannot_be_read_is_made_anew(app: Flask, state: str) -> None:
    break_job("state", state)
    assert stages(app) == [("a", PRUNING), ("b", "broken"), ("c", PRUNING)]
    for answer in calls(app):
        assert (answer.status_code, answer.get_json()["code"]) == (500, "broken_job")
        assert "zeus-service rebuild" in answer.get_json()["detail"]
    assert maintenance.rebuild("b") is False
    assert stages(app) == [("a", PRUNING), ("b", PRUNING), ("c", PRUNING)]
    assert maintenance.rebuild("b") is True
    assert optimizer.start_trial("b", None)[0].why == "concurrent"


@pytest.mark.parametrize("column", ["ledger", "saved_cost"])
@pytest.mark.parametrize("by", ["run", "rebuild"])
def test_savings_that_cannot_be_read_begin_anew_and_stop_no_run(
    app: Flask, column: str, by: str, caplog: pytest.LogCaptureFixture
) -> None:
    break_job("ledger", "[]" if column == "ledger" else json.dumps(new_ledger()))
    with transaction() as connection:
        amounts = {column.name: 1.0 for column in SAVED_ON_DAYS.c}
        day = amounts | {"day": 1, "job_id": "b", "recurrences": 1}
        connection.execute(insert(SAVED_ON_DAYS).values(day))
        if column == "saved_cost":  # alone
            connection.execute(update(JOBS).where(JOBS.c.job_id == "b").values(saved_cost=1.0))
    assert stages(app) == [("a", PRUNING), ("b", PRUNING), ("c", PRUNING)]
    assert app.test_client().get("/api/v1/jobs/b/savings").status_code == 200
    if by == "rebuild":
        assert maintenance.rebuild("b") is False
    else:
        optimizer.start_trial("b", None)
    assert "'b' has saved cannot be read: its savings begin anew" in caplog.text
    with transaction(read_only=True) as connection:
        assert not connection.execute(select(SAVED_ON_DAYS)).all()
        job = jobs.get(connection, "b")
    assert not job.savings_are_damaged
    assert job.ledger == new_ledger()
    assert maintenance.rebuild("b") is True


@on_sqlite
def test_a_ledger_that_is_no_json_is_made_anew(app: Flask) -> None:
    break_job("ledger", NO_JSON)
    for answer in calls(app):
        assert (answer.status_code, answer.get_json()["code"]) == (500, "broken_job")
        assert "zeus-service rebuild" in answer.get_json()["detail"]
    assert maintenance.rebuild("b") is False
    assert maintenance.rebuild("b") is True
    assert optimizer.start_trial("b", None)[0].why == "concurrent"


@pytest.mark.parametrize("spec", SPECS)
def test_a_specification_that_cannot_be_read_is_told(app: Flask, spec: str) -> None:
    break_job("spec", spec)
    assert stages(app) == [("a", PRUNING), ("b", "broken"), ("c", PRUNING)]
    for answer in calls(app):
        assert (answer.status_code, answer.get_json()["code"]) == (500, "broken_job")
    with pytest.raises(BrokenJob, match="delete"):
        maintenance.rebuild("b")
    maintenance.delete_job("b", force=True)
    assert stages(app) == [("a", PRUNING), ("c", PRUNING)]


def break_value(table: str, column: str, value: object) -> None:
    with transaction() as connection:
        sql = text(f"UPDATE {table} SET {column} = :value WHERE job_id = 'b'")
        connection.execute(sql, {"value": value})


@on_sqlite
@pytest.mark.parametrize(
    ("column", "value", "named"),
    [
        ("spec", b"\x00\xff", "the specification of job 'b'"),
        ("spec", json.dumps(spec_json(job_id="a", policy="zeus")), "it is that of job 'a'"),
        ("state", "[" * 5000 + "]" * 5000, "the state of job 'b'"),
        ("trials", "many", "trials: Input should be a valid integer"),
        ("created_at", 1e300, "created_at: Input should be less than"),
    ],
)
def test_the_message_names_what_is_broken(
    app: Flask, column: str, value: object, named: str
) -> None:
    break_job("state", "{}")
    maintenance.rebuild("b")
    break_value("jobs", column, value)
    assert stages(app)[1] == ("b", "broken")
    assert named in calls(app)[0].get_json()["detail"]
    if column == "spec":
        with pytest.raises(BrokenJob, match=named):
            maintenance.rebuild("b")
    else:
        assert maintenance.rebuild("b") is False
        assert stages(app)[1] == ("b", PRUNING)
        assert optimizer.start_trial("b", None)[0].trial_number == 2


@on_sqlite
@pytest.mark.parametrize("column", ["outcome", "why"])
def test_a_trial_that_cannot_be_read_is_told_beside_the_others(app: Flask, column: str) -> None:
    break_job("state", "{}")
    maintenance.rebuild("b")
    break_value("trials", column, "unheard-of")
    optimizer.start_trial("b", None)
    client, trials = app.test_client(), "/api/v1/jobs/b/trials"
    listed = client.get(trials).get_json()
    assert [trial["trial_number"] for trial in listed["trials"]] == [2]
    assert listed["broken"] == [1]
    answer = client.patch(f"{trials}/1?generation=x", json={"outcome": "errored"})
    assert answer.status_code == 500
    assert f"trial 1 of job 'b' cannot be read: {column}:" in answer.get_json()["detail"]
    url = db.engine.url.render_as_string(hide_password=False)
    shown = CliRunner().invoke(main, ["show", "b"], env={"ZEUS_BSO_DATABASE_URL": url})
    assert "trial 1: its row cannot be read" in shown.output


@pytest.mark.parametrize("value", ["{}", NO_JSON, json.dumps(profile(batch_size=64))])
def test_a_power_profile_that_cannot_be_read_is_left_out(
    app: Flask, value: str, caplog: pytest.LogCaptureFixture
) -> None:
    break_job("state", "{}")
    maintenance.rebuild("b")
    client, profiles = app.test_client(), "/api/v1/jobs/b/power-profiles"
    for size in (16, 32):
        client.put(f"{profiles}/{size}", json=profile(batch_size=size))
    if value == NO_JSON and db.engine.name != "sqlite":
        value = "[]"
    with transaction() as connection:
        new = f"CAST('{value}' AS json)" if db.engine.name == "postgresql" else f"'{value}'"
        set_ = f"UPDATE power_profiles SET profile = {new} WHERE batch_size = 16"
        connection.exec_driver_sql(set_)
    listed = client.get(profiles).get_json()
    assert [each["batch_size"] for each in listed["profiles"]] == [32]
    assert listed["broken"] == [16]
    named = "the power profile of batch size 16 on 'Fake H100' of job 'b' cannot be read"
    assert named in caplog.text
    answer = client.get(f"{profiles}/16?device_model=Fake%20H100")
    assert (answer.status_code, answer.get_json()["code"]) == (500, "broken_job")
    assert named in answer.get_json()["detail"]
    figure = client.get("/job/b/figures/power")
    assert figure.status_code == 200
    assert "Damaged profiles are left out: of batch size 16." in figure.text
    assert "32 at 275 W" in figure.text
    assert client.put(f"{profiles}/16", json=profile(batch_size=16)).status_code == 200
    assert client.get(profiles).get_json()["broken"] == []


@on_sqlite
def test_numbers_that_the_rows_contradict_are_told_and_mended(app: Flask) -> None:
    break_job("state", "{}")
    maintenance.rebuild("b")
    for column in ("trials", "events"):
        break_value("jobs", column, 0)
        answer = app.test_client().post("/api/v1/jobs/b/trials", json={})
        assert (answer.status_code, answer.get_json()["code"]) == (500, "broken_job")
        assert maintenance.rebuild("b") is False
    assert optimizer.start_trial("b", None)[0].trial_number == 2


@pytest.mark.parametrize("later_starts", [0, 2])
def test_a_number_of_events_that_is_too_high_stops_no_run_and_is_mended(
    app: Flask, later_starts: int, caplog: pytest.LogCaptureFixture
) -> None:
    break_job("state", "{}")
    maintenance.rebuild("b")
    break_value("jobs", "events", 1000)
    for _ in range(later_starts):
        optimizer.start_trial("b", None)
    before = optimizer.get_job("b")
    maintenance.prune(older_than_s=-1e6)
    assert "event 2 of job 'b' is missing" in caplog.text
    assert "zeus-service rebuild" in caplog.text
    assert maintenance.rebuild("b") is False
    assert maintenance.rebuild("b") is True
    optimizer.end_trial("b", 1, TrialEnd(outcome="diverged"))
    assert maintenance.rebuild("b") is True
    assert optimizer.get_job("b").trials == before.trials
    caplog.clear()
    maintenance.prune(older_than_s=-1e6)
    assert not caplog.text
    with transaction(read_only=True) as connection:
        assert not connection.execute(select(EVENTS).where(EVENTS.c.job_id == "b")).all()


@pytest.mark.parametrize("later_starts", [0, 2])
def test_an_event_that_is_missing_is_no_number_that_was_too_high(
    app: Flask, later_starts: int
) -> None:
    break_job("state", "{}")
    maintenance.rebuild("b")
    optimizer.end_trial("b", 1, TrialEnd(outcome="diverged"))
    with transaction() as connection:
        is_end = EVENTS.c.job_id == "b", EVENTS.c.outcome == "diverged"
        assert connection.execute(delete(EVENTS).where(*is_end)).rowcount == 1
    for _ in range(later_starts):
        optimizer.start_trial("b", None)
    before = optimizer.get_job("b")
    with pytest.raises(IncompleteHistory, match="event 2 of job 'b' is missing"):
        maintenance.rebuild("b")
    assert optimizer.get_job("b") == before


@on_sqlite
@pytest.mark.parametrize(
    "value",
    [
        *("x'00ff'", "CAST(x'62ff' AS TEXT)", "char(98, 10)"),
        *(f"'{LONG}' || char(10)", f"printf('%s%*c', '{LONG}', 1200, 'x')"),
    ],
)
@pytest.mark.parametrize("remedy", ["UPDATE", "DELETE"])
def test_a_row_whose_id_is_no_id_is_logged_with_what_mends_it_alone(
    app: Flask, value: str, remedy: str, caplog: pytest.LogCaptureFixture
) -> None:
    break_job("state", "{}")
    url = db.engine.url.render_as_string(hide_password=False)
    with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as file, file:
        file.execute(f"UPDATE jobs SET job_id = {value} WHERE job_id = 'b'")
        file.execute(f"UPDATE jobs SET job_id = '{LONG}' WHERE job_id = 'c'")
    assert [job_id for job_id, _ in stages(app)] == ["a", LONG]
    assert app.test_client().get("/").status_code == 200
    caplog.clear()
    listed = CliRunner().invoke(main, ["jobs"], env={"ZEUS_BSO_DATABASE_URL": url})
    assert listed.output.count("\n") == 3
    found = re.search(f'"({remedy} [^"]*)"', caplog.text)
    assert found
    with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as file, file:
        assert file.execute(found[1]).rowcount == 1
    caplog.clear()
    assert len(stages(app)) == (3 if remedy == "UPDATE" else 2)
    assert "has the id" not in caplog.text


def end() -> None:
    optimizer.end_trial("b", 1, TrialEnd(outcome="diverged"))


@pytest.mark.parametrize(
    ("table", "learn"), [("trials", end), ("events", lambda: maintenance.rebuild("b"))]
)
def test_a_batch_size_that_the_job_does_not_have_teaches_it_nothing(
    app: Flask, table: str, learn: Callable[[], object]
) -> None:
    break_job("state", "{}")
    maintenance.rebuild("b")
    break_value(table, "batch_size", 7)
    before = optimizer.get_job("b").arms
    with pytest.raises(BrokenJob, match="the job has no batch size 7"):
        learn()
    assert optimizer.get_job("b").arms == before
