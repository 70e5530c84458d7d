"""A database in which values are damaged: these rows are broken, the others are as they were.

SQLite stores anything in any column: a disk, a script or another version may leave anything there.

Each test damages up to three columns of one kind (number, text, JSON, time), each by its share of
the nine values. So each kind meets every value, each column three of them or more, and which ones
differs from test to test: all values in all columns took three times as long.
"""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from databases import migrated_database
from flask.testing import FlaskClient
from service.conftest import application
from service.db.test_power_profiles import profile
from service.jobs import spec_json
from sqlalchemy import update
from zeus_service import maintenance
from zeus_service.db.tables import CHECKPOINTS, EVENTS, POWER_PROFILES, REPORTS, TRIALS, db
from zeus_service.db.tables import JOBS as JOBS_TABLE
from zeus_service.db.transactions import transaction
from zeus_service.errors import OptimizerError

VALUES: dict[str, Any] = {
    "words": "not what it was",
    "bytes": b"\x00\xff",
    "no-utf-8": "CAST(x'ff' AS TEXT)",
    "negative": -7,
    "infinite": float("inf"),
    "huge": 1e300,
    "nested": "[" * 5000 + "]" * 5000,
    "empty-object": "{}",
    "another-jobs": "(SELECT {column} FROM {table} WHERE job_id = 'a')",
}
"""By the id of the job that is damaged; SQL where it is in parentheses."""

WHOLE = ("a", "z")
API = "/api/v1/jobs"
REPORT = {"epoch": 1, "time_s": 1.0, "energy_j": 5.0, "metric": 0.1}
COLUMNS = [
    column
    for table in (JOBS_TABLE, TRIALS, REPORTS, EVENTS, CHECKPOINTS, POWER_PROFILES)
    for column in table.columns
]


def kind(column: sa.Column[Any]) -> str:
    if column.name.endswith("_at"):
        return "time"
    return {sa.JSON: "JSON", sa.String: "text"}.get(column.type._type_affinity, "number")


def cases() -> Iterator[Any]:
    """Columns by the ids of the jobs that they are damaged in."""
    for each in ("number", "text", "JSON", "time"):
        columns = [column for column in COLUMNS if kind(column) == each]
        for turn, start in enumerate(range(0, len(columns), 3)):
            some = columns[start : start + 3]
            shares = {
                job_id: some[(n + turn * (n // 3) + turn) % len(some)]
                for n, job_id in enumerate(VALUES)
            }
            yield pytest.param(shares, id="-".join(map(str, some)))


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A database of jobs with an ended trial, one whose lease is over, and a checkpoint each."""
    with (
        migrated_database("sqlite", tmp_path_factory.mktemp("healthy")) as url,
        application(url) as app,
    ):
        client = app.test_client()
        for job_id in (*WHOLE, *VALUES):
            client.post(API, json=spec_json(job_id=job_id, policy="zeus"))
            for number, metric in ((1, 1.0), (2, 0.1)):
                trial = client.post(f"{API}/{job_id}/trials", json={}).get_json()
                path = f"{API}/{job_id}/trials/{number}/reports?generation={trial['generation']}"
                report = {**REPORT, "sequence": 1, "metric": metric}
                assert client.post(path, json=report).status_code == 200
            client.put(f"{API}/{job_id}/power-profiles/32", json=profile())
            spec, start, events = maintenance._read_on(job_id, None)
            maintenance._move_checkpoint(job_id, start, start.after(spec, events[:2]))
        with transaction() as connection:
            connection.execute(update(TRIALS).values(lease_expires_at=1, generation="known"))
            connection.execute(update(TRIALS).where(TRIALS.c.trial_number == 1).values(ended_at=1))
            connection.execute(update(EVENTS).where(EVENTS.c.sequence < 3).values(happened_at=1))
        db.engine.dispose()  # nothing is left in the log then
        yield Path(url.removeprefix("sqlite:///"))


def damage(path: Path, columns: dict[str, sa.Column[Any]]) -> list[str]:
    """Damage a column of a row of each job but the whole ones; return the damaged jobs."""
    damaged = []
    with sqlite3.connect(path) as connection:  # without its foreign keys
        for job_id, value in VALUES.items():
            table, column = columns[job_id].table, columns[job_id].name
            is_sql = isinstance(value, str) and ")" in value
            new = value.format(table=table.name, column=column) if is_sql else "?"
            where = f"rowid = (SELECT min(rowid) FROM {table.name} WHERE job_id = '{job_id}')"
            try:
                connection.execute(
                    f"UPDATE {table.name} SET {column} = {new} WHERE {where}",
                    () if is_sql else (value,),
                )
                damaged.append(job_id)
            except sqlite3.IntegrityError:  # such as a key that another row has
                continue
    return damaged


def send_all(client: FlaskClient, job_id: str) -> list[tuple[int, dict[str, Any]]]:
    """Every request about a job, and its trials."""
    trials, spec = f"{API}/{job_id}/trials", spec_json(job_id=job_id, policy="zeus")
    requests: list[tuple[str, str, Any]] = [
        ("GET", f"{API}/{job_id}", None),
        ("GET", trials, None),
        ("POST", f"{trials}/2/heartbeat?generation=known", {}),
        ("POST", f"{trials}/1/reports?generation=known", {**REPORT, "sequence": 1}),
        ("POST", f"{trials}/2/reports?generation=known", {**REPORT, "sequence": 2}),
        ("POST", trials, {}),
        ("POST", f"{trials}/2/reports?generation=known", {**REPORT, "sequence": 3, "metric": 1.0}),
        ("PATCH", f"{trials}/2?generation=known", {"outcome": "errored"}),
        ("POST", API, spec),
        ("POST", API, {**spec, "max_epochs": 11}),
        ("GET", f"{API}/{job_id}/power-profiles", None),
        ("PUT", f"{API}/{job_id}/power-profiles/32", profile()),
        ("GET", f"/jobs/batch_size?job_id={job_id}", None),  # on the wire of Zeus's clients
    ]
    answers = [client.open(path, method=method, json=body) for method, path, body in requests]
    return [(answer.status_code, answer.get_json()) for answer in answers]


def rebuilt(job_id: str) -> str:
    """What `rebuild` says."""
    try:
        return f"{job_id!r}: {maintenance.rebuild(job_id)}"
    except OptimizerError as error:
        return error.message


@pytest.mark.parametrize("columns", list(cases()))
def test_a_damaged_value_breaks_its_own_job_only(
    healthy: Path, tmp_path: Path, columns: dict[str, sa.Column[Any]]
) -> None:
    path = tmp_path / "service.sqlite3"
    shutil.copy(healthy, path)
    damaged = damage(path, columns)
    assert {columns[job_id] for job_id in damaged} == set(columns.values())
    with application(f"sqlite:///{path}") as app:
        client = app.test_client()

        def stages() -> dict[str, str]:
            answer = client.get(API)
            assert answer.status_code == 200
            return {job["job_id"]: job["stage"] for job in answer.get_json()["jobs"]}

        before = stages()
        assert "broken" not in [before[job_id] for job_id in WHOLE]
        for address in ("/metrics", "/api/v1/savings"):
            assert client.get(address).status_code == 200
        for job_id in damaged:
            for status, answer in send_all(client, job_id):
                assert status in (200, 201, 404, 409, 500), (job_id, answer)
                if status == 500:
                    assert answer.get("code", "broken_job") == "broken_job"
                    assert f"{job_id!r}" in answer.get("detail", answer.get("message"))
            assert f"{job_id!r}" in rebuilt(job_id)
        maintenance.prune(older_than_s=1e6)
        for job_id in WHOLE:
            assert {status for status, _ in send_all(client, job_id)} <= {200, 201, 404, 409}
        for job_id in damaged:
            assert client.delete(f"{API}/{job_id}?force=true").status_code in (204, 404), job_id
        assert set(WHOLE) <= stages().keys()
