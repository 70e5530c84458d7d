"""A defect of the service is told as one, on each wire, and its traceback is in the log."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import numpy as np
import pytest
from flask import Flask
from flask.testing import FlaskClient
from service.jobs import register
from sqlalchemy.exc import IntegrityError
from zeus_service import optimizer

on_sqlite = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
SECRET = "a detail that only the log has"


@pytest.fixture(params=[np.linalg.LinAlgError, KeyError, "IntegrityError"])
def defective(
    request: pytest.FixtureRequest, app: Flask, monkeypatch: pytest.MonkeyPatch
) -> Iterator[FlaskClient]:
    """A client of a service whose use cases raise what none of them means to."""
    register()

    def fail(*_arguments: object, **_more: object) -> None:
        if request.param == "IntegrityError":
            raise IntegrityError("INSERT", {}, Exception(SECRET))
        raise request.param(SECRET)

    for name in ("describe_job", "start_trial", "report"):
        monkeypatch.setattr(optimizer, name, fail)
    return app.test_client()


def check_log(caplog: pytest.LogCaptureFixture) -> None:
    (record,) = (each for each in caplog.records if each.levelno >= logging.ERROR)
    assert record.exc_info
    assert "Traceback" in caplog.text
    assert SECRET in caplog.text


@on_sqlite
def test_the_api_answers_with_a_problem(
    defective: FlaskClient, caplog: pytest.LogCaptureFixture
) -> None:
    answer = defective.get("/api/v1/jobs/job")
    assert answer.mimetype == "application/problem+json"
    assert (answer.status_code, answer.json["code"]) == (500, "internal_server_error")
    assert SECRET not in answer.text
    check_log(caplog)
    assert defective.get("/api/v1/jobs").status_code == 200


@on_sqlite
def test_zeus_client_gets_a_message(
    defective: FlaskClient, caplog: pytest.LogCaptureFixture
) -> None:
    answer = defective.get("/jobs/batch_size?job_id=job")
    assert (answer.status_code, set(answer.json)) == (500, {"message"})
    assert SECRET not in answer.text
    check_log(caplog)


@on_sqlite
def test_a_page_says_so(defective: FlaskClient, caplog: pytest.LogCaptureFixture) -> None:
    answer = defective.get("/job/job", headers={"Accept": "text/html"})
    assert (answer.status_code, answer.mimetype) == (500, "text/html")
    assert SECRET not in answer.text
    check_log(caplog)
