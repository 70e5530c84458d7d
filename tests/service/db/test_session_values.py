"""Every database keeps what it is given, and tells the same things apart."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

import pytest
from flask import Flask
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from service.conftest import on_sqlite
from service.jobs import START, register, report, spec_json
from zeus_service import optimizer
from zeus_service.bandit.spec import MAX_AMOUNT, MAX_METRIC


def test_ids_and_keys_differ_by_case(app: Flask) -> None:
    for job_id in ("Job", "job", "JOB"):
        register(job_id=job_id)
    for key in ("Key", "key"):
        optimizer.start_trial("job", key)
    assert [job.trials for job, _ in optimizer.list_jobs()] == [0, 0, 2]


def test_jobs_are_ordered_by_the_bytes_of_their_ids(app: Flask) -> None:
    ids = ["b", "A", "a.b", "a-b", "a", "B", "a_b", "9", "a:b", "ab"]
    for job_id in ids:
        register(job_id=job_id)
    assert [job.job_id for job, _ in optimizer.list_jobs()] == sorted(ids)
    assert [job.job_id for job, _ in optimizer.list_jobs(after="a.")] == sorted(ids)[5:]


def test_texts_are_kept_as_they_are(app: Flask) -> None:
    name, reason = "Größe \U0001f600 'x' \\n ", "x" * 999 + "\U0001f600"
    register(monitor=name, device_model=name)
    optimizer.start_trial("job")
    optimizer.end_trial("job", 1, "errored", reason)
    assert optimizer.get_job("job").spec["monitor"] == name
    assert optimizer.list_trials("job")[0].reason == reason


amounts = st.floats(0, MAX_AMOUNT)
metrics = st.floats(-MAX_METRIC, MAX_METRIC)


@given(time_s=amounts, energy_j=amounts, metric=metrics)
@settings(
    max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_figures_are_kept_to_the_last_bit(
    app: Flask, time_s: float, energy_j: float, metric: float
) -> None:
    register(target_metric=MAX_METRIC, beta_knob=None)
    number = optimizer.start_trial("job")[1].trial_number
    given = report(time_s=time_s, energy_j=energy_j, metric=metric)
    first = optimizer.report("job", number, given)
    trial = optimizer.list_trials("job", after=number - 1)[0]
    assert (trial.time_s, trial.energy_j, trial.metric) == (time_s, energy_j, metric)
    assert optimizer.report("job", number, given) == first


def test_an_id_may_have_255_characters_of_all_that_are_allowed(app: Flask) -> None:
    client, job_id = app.test_client(), ("AZaz09._:-" * 26)[:255]
    jobs = "/api/v1/jobs"
    answer = client.post(jobs, json=spec_json(job_id=job_id))
    assert (answer.status_code, answer.json["job_id"]) == (201, job_id)
    assert client.post(f"{jobs}/{job_id}/trials", json=START).status_code == 201
    key = "~!" * 127 + "k"
    for status in (201, 200):
        headers = {"Idempotency-Key": key}
        started = client.post(f"{jobs}/{job_id}/trials", json=START, headers=headers)
        assert (started.status_code, started.json["trial_number"]) == (status, 2)
    assert client.delete(f"{jobs}/{job_id}?force=true").status_code == 204
    assert client.get(f"{jobs}/{job_id}").status_code == 404


@on_sqlite
def test_a_file_that_was_replaced_is_read_anew(app: Flask, database_url: str) -> None:
    register(job_id="old")
    path = Path(database_url.removeprefix("sqlite:///"))
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("VACUUM INTO ?", [f"{path}.backup"])
    register(job_id="new")
    for part in path.parent.glob(f"{path.name}-*"):
        part.unlink()
    Path(f"{path}.backup").replace(path)
    assert [job.job_id for job, _ in optimizer.list_jobs()] == ["old"]
    register(job_id="newer")
    assert [job.job_id for job, _ in optimizer.list_jobs()] == ["newer", "old"]


@on_sqlite
@pytest.mark.parametrize("used", [True, False])
def test_a_file_that_was_removed_or_damaged_is_an_outage_and_is_not_made_anew(
    app: Flask, database_url: str, used: bool
) -> None:
    client, path = app.test_client(), Path(database_url.removeprefix("sqlite:///"))
    if used:
        assert client.post("/api/v1/jobs", json=spec_json()).status_code == 201
    kept = {part: part.read_bytes() for part in path.parent.glob(f"{path.name}*")}
    for part in kept:
        part.unlink()
    for damaged in (False, True):
        if damaged:
            path.write_text("this is not a database" * 1000)
        for answer in (
            client.get("/api/v1/jobs"),
            client.post("/api/v1/jobs", json=spec_json()),
            client.get("/readyz"),
        ):
            assert (answer.status_code, answer.get_json()["code"]) == (503, "unavailable")
        assert path.exists() == damaged
    for part, content in kept.items():
        part.write_bytes(content)
    assert client.get("/api/v1/jobs").status_code == 200
