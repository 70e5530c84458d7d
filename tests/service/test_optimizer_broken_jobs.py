"""One row that cannot be read is one broken job; the others are as they were."""

import json
from typing import Any

import pytest
from flask import Flask
from service.jobs import spec_json
from sqlalchemy import text
from zeus_service import maintenance, optimizer
from zeus_service.errors import BrokenJob
from zeus_service.messages import Report
from zeus_service.spec import JobSpec
from zeus_service.store.models import db
from zeus_service.store.transactions import transaction

NO_JSON = "this is no JSON"  # where the database stores it; else JSON that is no object
STATES = [NO_JSON, "7", "{}"]
SPECS = [NO_JSON, "7", "{}", json.dumps(spec_json(job_id="b", policy="of another version"))]


def break_job(column: str, value: str) -> None:
    """Of three jobs with a trial each, break the second one."""
    for job_id in "abc":
        optimizer.register_job(JobSpec.model_validate(spec_json(job_id=job_id, policy="zeus")))
        optimizer.start_trial(job_id, None)
    if value == NO_JSON and db.engine.name != "sqlite":
        value = "[]"
    with transaction() as connection:
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
        client.post(f"{job}/trials/1/reports", json=report.model_dump()),
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
