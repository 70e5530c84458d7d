"""Bodies that parsers read differently, or that would have to be decoded, are refused."""

import json

import pytest
from flask import Flask
from service.api.wires import result, zeus_job
from service.jobs import spec_json
from sqlalchemy import update
from zeus_service.db.tables import TRIALS
from zeus_service.db.transactions import transaction

on_sqlite = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
JSON = {"Content-Type": "application/json"}
ROUTES = {
    "/api/v1/jobs": spec_json(job_id="another"),
    "/api/v1/jobs/job/trials": {},
    "/api/v1/jobs/job/trials/1/heartbeat?generation=known": {},
    "/jobs": zeus_job(job_id="zeus-another"),
    "/report": result({"job_id": "job", "batch_size": 32, "trial_number": 1}),
}


@pytest.fixture
def routes(app: Flask) -> Flask:
    """With a job and a trial, so that each of the routes succeeds."""
    client = app.test_client()
    client.post("/api/v1/jobs", json=spec_json(policy="zeus"))
    client.post("/api/v1/jobs/job/trials", json={})
    with transaction() as connection:
        connection.execute(update(TRIALS).values(generation="known"))
    return app


@on_sqlite
@pytest.mark.parametrize("path", ROUTES)
def test_a_key_that_is_repeated_is_refused_at_any_depth(routes: Flask, path: str) -> None:
    client = routes.test_client()
    body = ROUTES[path]
    for more, name in (({"a": 1}, "a"), ({"b": [{"a": {}, "c": 1}]}, "c")):
        text = json.dumps({**body, **more})
        twice = (
            text[: text.rindex(f'"{name}"')] + f'"{name}": 7, ' + text[text.rindex(f'"{name}"') :]
        )
        answer = client.post(path, data=twice, headers=JSON)
        assert answer.status_code == 400
        assert f"repeats a key: {name!r}" in answer.text
        assert client.post(path, data=text, headers=JSON).status_code in (200, 201)


@on_sqlite
@pytest.mark.parametrize("path", ROUTES)
def test_an_encoded_body_is_refused(routes: Flask, path: str) -> None:
    client = routes.test_client()
    for encoding, statuses in (
        ("gzip", (400,)),
        ("identity, br", (400,)),
        ("Identity", (200, 201)),
    ):
        headers = {"Content-Encoding": encoding}
        assert client.post(path, json=ROUTES[path], headers=headers).status_code in statuses
